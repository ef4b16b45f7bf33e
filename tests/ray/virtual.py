"""An event loop whose time is not real: it moves on only when nothing is ready, at once to the next timer."""

from __future__ import annotations

import asyncio
import contextlib
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Selector(selectors.SelectSelector):
    """Lets time pass where the loop would wait for a timer. Without timers it waits, for what other threads do."""

    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(None if timeout is None else 0)
        if not ready and timeout:
            self.now += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock begins at 0 s. A timer is due at once where only another thread has something to do."""

    def __init__(self) -> None:
        self._clock = _Selector()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now

    def spend(self, seconds: float) -> None:
        """Let time pass, as for work in this thread."""
        self._clock.now += seconds


def played(main: Coroutine[Any, Any, T], loop: VirtualLoop | None = None) -> T:
    """The result of a coroutine in a loop that is closed then, as `asyncio.run`."""
    with contextlib.closing(loop or VirtualLoop()) as loop:
        try:
            return loop.run_until_complete(main)
        finally:
            for task in asyncio.all_tasks(loop):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    loop.run_until_complete(task)
            loop.run_until_complete(loop.shutdown_asyncgens())
