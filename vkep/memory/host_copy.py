"""Copies between arrays of the host: by several threads where one does not keep up with the memory, and into result arrays whose
memory comes back.
"""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

#: below this many bytes a copy is shorter than waking threads for it, and the heap hands warm memory out
LEAST = 4 << 20
_PIECE = 2 << 20


def _cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


#: threads that copy at once, the caller's among them; on a machine with few cores they would be taken from its work
THREADS = min(6, max(1, _cores() // 2))


class _Helpers:
    """The threads that help, started at the first copy that asks for them."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._pool: ThreadPoolExecutor | None = None

    def ask(self, work: Any, count: int) -> list[Future[None]]:
        """Have up to ``count`` threads do ``work`` as well; none at the interpreter's end."""
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(THREADS - 1, thread_name_prefix="vkep-copy")
            try:
                return [self._pool.submit(work) for _ in range(count)]
            except RuntimeError:  # "cannot schedule new futures after shutdown"
                return []


_helpers = _Helpers()


def _after_fork() -> None:
    global _helpers
    _helpers = _Helpers()  # the parent's threads are not here


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def copy(target: Array, source: Array) -> None:
    """``target[...] = source``, where both have the same shape and dtype.

    Long ones that are contiguous are shared out to threads; whoever is free takes the next piece, so that a copy beside
    others is no slower than one thread's.
    """
    dense = source.flags.c_contiguous and target.flags.c_contiguous and source.dtype == target.dtype
    if THREADS == 1 or source.nbytes < LEAST or not dense:
        target[...] = source
        return
    to, data = target.reshape(-1).view(np.uint8), source.reshape(-1).view(np.uint8)
    starts = deque(range(0, data.size, _PIECE))

    def work() -> None:
        while True:
            try:
                at = starts.popleft()
            except IndexError:
                return
            np.copyto(to[at : at + _PIECE], data[at : at + _PIECE])  # without Python's lock

    helping = _helpers.ask(work, min(THREADS, len(starts)) - 1)
    try:
        work()
    finally:  # also of an interrupt: nobody writes once this has returned
        starts.clear()
        for future in helping:
            if not future.cancel():
                future.result()


class ResultArrays:
    """Arrays of one shape, for a run's result. Memory of a long one comes back when its last view goes, for the next run to
    write: the system's own would be cleared and mapped page by page, which takes longer than the copy. One is kept.
    """

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self._shape, self._dtype = shape, dtype
        self._nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        self._spare: deque[Array] = deque(maxlen=1)

    def empty(self) -> Array:
        """An array to fill. Thread-safe."""
        if self._nbytes < LEAST:
            return np.empty(self._shape, self._dtype)
        try:
            memory = self._spare.pop()
        except IndexError:
            memory = np.empty(self._nbytes, np.uint8)
        return np.asarray(_Lent(memory, self._spare)).view(self._dtype).reshape(self._shape)


class _Lent:
    """Owns the memory of an array that was handed out."""

    __slots__ = ("__array_interface__", "_home", "_memory")

    def __init__(self, memory: Array, home: deque[Array]) -> None:
        self._memory, self._home = memory, home
        self.__array_interface__ = memory.__array_interface__

    def __del__(self) -> None:
        self._home.append(self._memory)
