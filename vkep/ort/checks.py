"""The checks of ONNX Runtime's runs: a fused node does not wait for the device, so that its fault is raised when the run ends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from vkep.device.faults import RunCheck


class RunChecks:
    """The open checks of one session's runs, by thread: the one that begins a run runs its nodes and ends it. A node that
    another thread runs (ONNX Runtime's parallel mode, a replay) waits for its own.
    """

    def __init__(self) -> None:
        self._now = threading.local()
        #: has ONNX Runtime tell when runs begin. Called once, when there is a plan with faults.
        self.ask_for_starts: Callable[[], None] | None = None

    def expect(self) -> None:
        """There is a plan with faults."""
        ask, self.ask_for_starts = self.ask_for_starts, None
        if ask is not None:
            ask()

    def start(self) -> None:
        """A run begins on this thread."""
        self._now.open = []

    def add(self, checks: Iterable[RunCheck]) -> None:
        """Those of a node that was sent off. Raises as `end` where this thread's run has not said that it began."""
        held: list[RunCheck] | None = getattr(self._now, "open", None)
        if held is not None:
            held += checks
            return
        for check in checks:
            check.verify()

    def pass_to_host(self) -> None:
        """The host is about to compute from what the run made so far. Raises as `end`."""
        for check in getattr(self._now, "open", None) or ():
            check.verify()

    def end(self) -> None:
        """The run on this thread is over. Raises `InvalidInputError` where its data broke an operator's specification."""
        try:
            self.pass_to_host()
        finally:
            self._now.open = None
