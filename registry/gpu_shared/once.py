"""An object that one thread creates while others may wait for it."""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

T = TypeVar("T")


class _Creation:
    """A creation and those that it waits for. It does not refer to what is created: copies of a context live long."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.awaits: list[_Creation] = []

    def waits_for(self, others: tuple[_Creation, ...]) -> bool:
        """Whether it is one of these, or waits for one: directly, or for creations that do."""
        found, new = {self}, [self]
        while new:
            new = [creation for one in new for creation in tuple(one.awaits) if creation not in found]
            found.update(new)
        return not found.isdisjoint(others)


#: the creations that the caller is part of, the outermost first; the threads of `gpu_shared.steady` have their caller's
_outer: contextvars.ContextVar[tuple[_Creation, ...]] = contextvars.ContextVar("_outer", default=())


class InFlight(Generic[T]):
    """The creation of one object. The creating thread calls `make`, then `done` or `failed`; the others call `result`,
    and get the same object or the same error."""

    def __init__(self, what: str) -> None:
        self._creation = _Creation(what)
        self._future: Future[T] = Future()

    def make(self, create: Callable[[], T]) -> T:
        """The result of ``create``. This creation waits for what that waits for."""
        token = _outer.set((*_outer.get(), self._creation))
        try:
            return create()
        finally:
            _outer.reset(token)

    def done(self, value: T) -> None:
        """Give the value to all waiting threads."""
        self._future.set_result(value)

    def failed(self, error: BaseException) -> None:
        """Raise the error in all waiting threads."""
        self._future.set_exception(error)

    @property
    def ended(self) -> bool:
        """Whether it is done or has failed."""
        return self._future.done()

    def result(self) -> T:
        """Wait for the creating thread; returns its object, or raises its error. Raises ``RuntimeError`` where this
        creation waits for one that the caller is part of: none of them would ever end."""
        outer, mine = _outer.get(), self._creation
        for creation in outer:
            creation.awaits.append(mine)  # before the search: of several that close a circle, one at least finds it
        try:
            if not self.ended and mine.waits_for(outer):
                raise RuntimeError(
                    f"{mine.what} is asked for in the creation of {outer[-1].what}, for which its own creation waits: "
                    "create one before the other"
                    if mine not in outer
                    else f"{mine.what} is asked for in its own creation"
                )
            return self._future.result()
        finally:
            for creation in outer:
                creation.awaits.remove(mine)
