"""A dictionary of weakly referenced values."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Hashable
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class _Entry(weakref.ref[Any]):
    key: Any


class WeakValues(Generic[K, V]):
    """As `weakref.WeakValueDictionary`, but no Python code runs where a value is deleted: there the interpreter drops an
    exception that a signal handler raises. A dead entry goes when the dictionary is used again. Threads that use a key
    again, after its value was deleted, need a lock."""

    def __init__(self) -> None:
        self._entries: dict[K, _Entry] = {}
        self._dead: deque[_Entry] = deque()

    def __setitem__(self, key: K, value: V) -> None:
        self._forget()
        entry = _Entry(value, self._dead.append)
        entry.key = key
        self._entries[key] = entry

    def get(self, key: K) -> V | None:
        """The value; None where there is none, or where it was deleted."""
        self._forget()
        entry = self._entries.get(key)
        return None if entry is None else entry()

    def values(self) -> list[V]:
        """All values."""
        self._forget()
        return [value for entry in list(self._entries.values()) if (value := entry()) is not None]

    def _forget(self) -> None:
        while self._dead:
            try:
                entry = self._dead.popleft()
            except IndexError:  # another thread took it
                return
            if self._entries.get(entry.key) is entry:
                self._entries.pop(entry.key, None)
