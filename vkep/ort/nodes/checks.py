"""The checks of ONNX Runtime's runs: a fused node does not wait for the device, so its fault is raised at the end of
the run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from vkep.device.faults import RunCheck


class RunChecks:
    """The open checks of one session's runs, by thread: the thread that begins a run runs its nodes and ends it. A node
    on another thread (ONNX Runtime's parallel mode) waits for its own check."""

    def __init__(self) -> None:
        self._now = threading.local()
        #: makes ONNX Runtime report when runs begin. Called once, when the first plan with faults exists
        self.ask_for_starts: Callable[[], None] | None = None

    def expect(self) -> None:
        """Note that a plan has faults."""
        ask, self.ask_for_starts = self.ask_for_starts, None
        if ask is not None:
            ask()

    def start(self) -> None:
        """Mark the beginning of a run on this thread."""
        self._now.open = []

    def add(self, checks: Iterable[RunCheck]) -> None:
        """Add the checks of a submitted node. Raises as `end` where this thread has not begun a run."""
        held: list[RunCheck] | None = getattr(self._now, "open", None)
        if held is not None:
            held += checks
            return
        for check in checks:
            check.verify()

    def pass_to_host(self) -> None:
        """Check the results so far, since the host is about to compute from them. Raises as `end`."""
        for check in getattr(self._now, "open", None) or ():
            check.verify()

    def end(self) -> None:
        """Mark the end of the run on this thread. Raises `InvalidInputError` where its data broke an operator's
        specification."""
        try:
            self.pass_to_host()
        finally:
            self._now.open = None
