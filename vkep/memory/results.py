"""Host memory of results: a run's arrays belong to the caller, and the memory of long ones is reused once they are
dropped."""

from __future__ import annotations

import math
import weakref
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

#: shorter results are new arrays: the heap returns warm memory for them
LEAST = 4 << 20
#: maximum bytes that a session keeps
MOST_SPARE = 256 << 20


class ResultMemory:
    """Memory of long results that were dropped, for later results of the same size or slightly less. Fresh memory of
    the system would be cleared and mapped page by page, which takes longer than the copy. Keeps at most ``most`` bytes.

    Thread-safe without a lock, by atomic operations of a dictionary: memory is returned in finalizers, which a garbage
    collection or a signal handler may run anywhere.
    """

    def __init__(self, most: int = MOST_SPARE) -> None:
        self._most = most
        self._spares: dict[int, Array] = {}  #: by identity, the oldest first

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """An uninitialized array. It belongs to the caller as long as it or a view of it is referenced."""
        nbytes = math.prod(shape) * dtype.itemsize
        if nbytes < LEAST:
            return np.empty(shape, dtype)
        memory = self._take(nbytes)
        if memory is None:
            memory = np.empty(nbytes, np.uint8)
        return np.asarray(_Lent(memory, nbytes, weakref.ref(self))).view(dtype).reshape(shape)

    def _take(self, nbytes: int) -> Array | None:
        for key, memory in list(self._spares.items()):
            if 4 * memory.nbytes <= 5 * nbytes <= 5 * memory.nbytes and self._spares.pop(key, None) is not None:
                return memory
        return None

    def give(self, memory: Array) -> None:
        """Take back memory that was returned by `empty`."""
        if memory.nbytes <= self._most:
            self._spares[id(memory)] = memory
            self._drop(self._most)

    @property
    def nbytes(self) -> int:
        """Bytes that are kept."""
        return sum(memory.nbytes for memory in list(self._spares.values()))

    def trim(self) -> None:
        """Free all kept memory."""
        self._drop(0)

    def close(self) -> None:
        """Free the kept memory and keep none from now on; existing arrays are not affected."""
        self._most = 0
        self._drop(0)

    def _drop(self, most: int) -> None:
        for key in list(self._spares):
            if self.nbytes <= most:
                return
            self._spares.pop(key, None)


class _Lent:
    """Owns the memory of an array that `empty` returned."""

    __slots__ = ("__array_interface__", "_home", "_memory")

    def __init__(self, memory: Array, nbytes: int, home: weakref.ref[ResultMemory]) -> None:
        self._memory, self._home = memory, home
        self.__array_interface__ = memory[:nbytes].__array_interface__

    def __del__(self) -> None:
        home = self._home()
        if home is not None:
            home.give(self._memory)
