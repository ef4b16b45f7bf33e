"""Copies between arrays of the host: by several threads where one does not keep up with the memory, and into result arrays whose
memory comes back.
"""

from __future__ import annotations

import os
from collections import deque
from queue import SimpleQueue
from threading import Lock, Thread
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
    """Threads that wait for copies to help with, started when the first ask for them."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._threads = 0
        self._asked: SimpleQueue[_SharedCopy] = SimpleQueue()

    def ask(self, shared: _SharedCopy, count: int) -> None:
        """Have up to ``count`` threads come, when they are free."""
        with self._lock:
            while self._threads < count:
                try:
                    Thread(target=self._serve, name=f"vkep-copy-{self._threads}", daemon=True).start()
                except RuntimeError:  # at the interpreter's end, or too many
                    break
                self._threads += 1
        for _ in range(min(count, self._threads)):
            self._asked.put(shared)

    def _serve(self) -> None:
        while True:
            shared = self._asked.get()
            shared.help()
            del shared  # while it waits it holds nobody's memory


_helpers = _Helpers()


def _after_fork() -> None:
    global _helpers
    _helpers = _Helpers()  # the parent's threads are not here


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class _SharedCopy:
    """One copy of bytes: whoever is free takes its next piece."""

    def __init__(self, target: Array, source: Array) -> None:
        self._target, self._source = target.reshape(-1).view(np.uint8), source.reshape(-1).view(np.uint8)
        self._starts = deque(range(0, self._source.size, _PIECE))
        self._helpers = min(THREADS, len(self._starts)) - 1
        self._places = deque(range(self._helpers))  #: taken by those that come in time
        self._left: SimpleQueue[BaseException | None] = SimpleQueue()

    def run(self) -> None:
        """Copy. On return, also by an interrupt, nobody reads or writes any more."""
        _helpers.ask(self, self._helpers)
        failed = []
        try:
            self._work()
        finally:
            self._starts.clear()
            came = self._helpers - _drain(self._places)
            failed = [error for error in (self._left.get() for _ in range(came)) if error is not None]
            del self._target, self._source  # those that come too late keep this
        if failed:
            raise failed[0]

    def help(self) -> None:
        """A helper's part."""
        try:
            self._places.popleft()
        except IndexError:
            return
        error = None
        try:
            self._work()
        except BaseException as raised:
            error = raised
        self._left.put(error)

    def _work(self) -> None:
        while True:
            try:
                at = self._starts.popleft()
            except IndexError:
                return
            np.copyto(self._target[at : at + _PIECE], self._source[at : at + _PIECE])  # without Python's lock


def _drain(places: deque[int]) -> int:
    """Take all that are left; how many they were."""
    count = 0
    while True:
        try:
            places.popleft()
        except IndexError:
            return count
        count += 1


def copy(target: Array, source: Array) -> None:
    """``target[...] = source``, where both have the same shape. Long ones that are contiguous are shared out to threads; a copy
    beside others is no slower than one thread's.
    """
    dense = source.flags.c_contiguous and target.flags.c_contiguous and source.dtype == target.dtype
    if THREADS == 1 or source.nbytes < LEAST or not dense:
        target[...] = source
    else:
        _SharedCopy(target, source).run()


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
