"""Counts of users that hold through exceptions at any point."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable


class UseCount:
    """Counts users of an object, each by a ``with`` statement on `hold`. A user is a view of a byte array, which
    cannot be resized meanwhile: the interpreter releases the view in one step, also when the frame that holds it is
    deleted."""

    __slots__ = ("_bytes", "hold")

    def __init__(self) -> None:
        self._bytes = bytearray(1)
        #: a user, until the view is released or deleted
        self.hold: Callable[[], memoryview] = functools.partial[memoryview](memoryview, self._bytes)

    @property
    def held(self) -> bool:
        """Whether there is a user."""
        try:
            self._bytes.append(0)
            self._bytes.pop()
        except BufferError:
            return True
        return False

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until there is no user; returns False where one is left after ``seconds``."""
        ends = None if seconds is None else time.monotonic() + seconds
        pause = 0.0001
        while self.held:
            if ends is not None and time.monotonic() > ends:
                return False
            time.sleep(pause)
            pause = min(2 * pause, 0.01)
        return True
