"""For tests of what the garbage collector deletes."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from tools.waiting import LONG_S


class Ring:
    """Refers to itself, so that only the collector deletes it, and what it holds; then it calls ``ends``."""

    def __init__(self, held: object = None, ends: Callable[[], object] | None = None) -> None:
        self.held, self.ends, self.me = held, ends, self

    def __del__(self) -> None:
        if self.ends is not None:
            self.ends()


@contextlib.contextmanager
def held_elsewhere(*locks: Any) -> Iterator[None]:
    """Another thread holds these locks. What waits for one of them gets it after `LONG_S`, and the test fails."""
    holds, done, in_time = threading.Event(), threading.Event(), []

    def hold() -> None:
        with contextlib.ExitStack() as stack:
            for lock in locks:
                stack.enter_context(lock)
            holds.set()
            in_time.append(done.wait(LONG_S))

    thread = threading.Thread(target=hold)
    thread.start()
    assert holds.wait(LONG_S)
    try:
        yield
    finally:
        done.set()
        thread.join()
    assert in_time == [True], "it waited for a lock"
