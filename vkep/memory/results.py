"""Host memory of results: a run's arrays are the caller's, and long ones' memory comes back when they go."""

from __future__ import annotations

import math
import weakref
from collections import deque
from threading import Lock
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

#: shorter results are new arrays: the heap hands warm memory out for them
LEAST = 4 << 20
#: bytes that a session keeps
MOST_SPARE = 256 << 20


class ResultMemory:
    """Memory of long results that were dropped, for later results of the same size: the system's own would be cleared
    and mapped page by page, which takes longer than the copy. Keeps ``most`` bytes; thread-safe.
    """

    def __init__(self, most: int = MOST_SPARE) -> None:
        self._most, self._nbytes = most, 0
        self._spares: deque[Array] = deque()  #: of ``_nbytes`` bytes together, the oldest first
        self._lock = Lock()

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """An array to fill, the caller's for as long as it or a view of it is held."""
        nbytes = math.prod(shape) * dtype.itemsize
        if nbytes < LEAST:
            return np.empty(shape, dtype)
        memory = self._take(nbytes)
        if memory is None:
            memory = np.empty(nbytes, np.uint8)
        return np.asarray(_Lent(memory, weakref.ref(self))).view(dtype).reshape(shape)

    def _take(self, nbytes: int) -> Array | None:
        with self._lock:
            for index, memory in enumerate(self._spares):
                if memory.nbytes == nbytes:
                    del self._spares[index]
                    self._nbytes -= nbytes
                    return memory
        return None

    def give(self, memory: Array) -> None:
        """Keep memory that was handed out. Never waits: a garbage collection may call it while this thread has the lock."""
        if memory.nbytes <= self._most and self._lock.acquire(blocking=False):
            try:
                self._spares.append(memory)
                self._nbytes += memory.nbytes
                self._drop(self._most)
            finally:
                self._lock.release()

    def trim(self) -> None:
        """Let go of all that is kept."""
        with self._lock:
            self._drop(0)

    def close(self) -> None:
        """Release kept memory and keep none from now on; arrays handed out are not affected. Never waits: a forked child may
        close what a thread of its parent was using.
        """
        self._most = 0
        if self._lock.acquire(blocking=False):
            self._drop(0)
            self._lock.release()

    def _drop(self, most: int) -> None:
        while self._nbytes > most:
            self._nbytes -= self._spares.popleft().nbytes


class _Lent:
    """Owns the memory of an array that was handed out."""

    __slots__ = ("__array_interface__", "_home", "_memory")

    def __init__(self, memory: Array, home: weakref.ref[ResultMemory]) -> None:
        self._memory, self._home = memory, home
        self.__array_interface__ = memory.__array_interface__

    def __del__(self) -> None:
        home = self._home()
        if home is not None:
            home.give(self._memory)
