"""An object that one thread creates while others may wait for it."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Generic, TypeVar

T = TypeVar("T")


class InFlight(Generic[T]):
    """The creation of one object. The creating thread calls `done` or `failed`; the others call `result`, and get the
    same object or the same error."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._maker = threading.get_ident()
        self._future: Future[T] = Future()

    def done(self, value: T) -> None:
        """Give the value to all waiting threads."""
        self._future.set_result(value)

    def failed(self, error: BaseException) -> None:
        """Raise the error in all waiting threads."""
        self._future.set_exception(error)

    def check_not_maker(self) -> None:
        """Raise ``RuntimeError`` when the creating thread itself would wait here, which would never end."""
        if not self._future.done() and self._maker == threading.get_ident():
            raise RuntimeError(f"{self._what} is asked for while this same thread is making it")

    def result(self) -> T:
        """Wait for the creating thread; returns its object, or raises its error."""
        return self._future.result()
