"""Objects that a context holds once for all its users, by key, with reference counts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from gpu_shared.errors import ClosedError
from gpu_shared.once import InFlight
from gpu_shared.steady import closing, on_end
from gpu_shared.uncopied import Uncopied

if TYPE_CHECKING:
    from gpu_shared.context import SharedGpuContext

T = TypeVar("T")


class Entry(Generic[T]):
    """An object in a `ResourceStore`, created or being created, and the number of its users."""

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.count = 0
        self.making: InFlight[T] = InFlight(f"the shared resource {key!r}")


class ResourceStore:
    """Entries by key. Thread-safe; no lock is held while an object is created or closed."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # re-entrant: finalizers of users may run while it is held
        self._entries: dict[Hashable, Entry[Any]] = {}

    def acquire(self, key: Hashable, factory: Callable[[], T]) -> Entry[T]:
        """The entry of ``key`` with one more user; its object is created by ``factory`` if there is none.

        A failing factory leaves no entry; waiting threads get its error.
        """
        own: Entry[T] = Entry(key)
        with self._lock:
            while True:
                entry: Entry[T] = self._entries.setdefault(key, own)
                entry.count += 1
                if self._entries.get(key) is entry:
                    break  # otherwise a finalizer that ran in this thread, before the count, dropped the last reference
        if entry is own:
            try:
                entry.making.done(entry.making.make(factory))
            except BaseException as error:
                with self._lock:
                    del self._entries[key]
                entry.making.failed(error)
                raise
        else:
            try:
                entry.making.result()
            except BaseException:  # it failed, or its factory waits for this caller
                self.drop(entry)
                raise
        return entry

    def drop(self, entry: Entry[Any]) -> None:
        """Remove one user; with the last one the object's ``close()`` is called, if it has one."""
        with self._lock:
            entry.count -= 1
            if entry.count or self._entries.get(entry.key) is not entry:
                return
            del self._entries[entry.key]
        close = getattr(entry.making.result(), "close", None)
        if close is not None:
            close()


class SharedResource(Uncopied, Generic[T]):
    """One user's reference to a shared object (made by `shared_resource` of a context or a lease).

    ``value`` is valid until `release` (idempotent; also at garbage collection, and by ``with``); the last release
    closes the object. It keeps the context alive.
    """

    _instead = "ask the context or the lease for another reference"

    def __init__(self, context: SharedGpuContext, entry: Entry[T], user: int = 0) -> None:
        self._entry: Entry[T] | None = entry
        token = context._add_user(f"resource {entry.key!r}", user)
        # at exit users end first, in their own order; the rest ends with the process
        self._finalizer = on_end(self, _release, context, entry, token, at_exit=False)

    @property
    def value(self) -> T:
        """The shared object. Raises `ClosedError` after `release`."""
        entry = self._entry
        if entry is None:
            raise ClosedError("shared resource")
        return entry.making.result()

    @closing
    def release(self) -> None:
        """Release the reference; the last release closes the object. Idempotent."""
        self._finalizer()
        self._entry = None

    close = release

    def __enter__(self) -> T:
        return self.value

    def __exit__(self, *exc: object) -> None:
        self.release()


def _release(context: SharedGpuContext, entry: Entry[Any], token: int) -> None:
    try:
        context._resources.drop(entry)
    finally:
        context._remove_user(token)
