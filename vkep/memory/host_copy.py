"""Copies between host arrays, by several threads where one does not saturate the memory's bandwidth."""

from __future__ import annotations

import os
import sys
from collections import deque
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Lock
from typing import Any

import numpy as np

from gpu_shared.steady import start_thread
from vkep.memory.host_chunks import as_bytes

Array = np.ndarray[Any, Any]

#: below this many bytes a copy is shorter than waking threads for it
LEAST = 4 << 20
_PIECE = 2 << 20


def _cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


#: maximum number of threads that copy at once, with the caller's; on a machine with few cores they would compete with
#: its work
THREADS = min(6, max(1, _cores() // 2))


class _Helpers:
    """Threads that wait for copies to help with, started on first use."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._threads = 0
        self._asked: SimpleQueue[_SharedCopy] = SimpleQueue()

    def ask(self, shared: _SharedCopy, count: int) -> None:
        """Ask for up to ``count`` threads; they come when they are free."""
        with self._lock:
            while self._threads < count and not sys.is_finalizing():  # a new thread would never start
                if not start_thread(self._serve):
                    break
                self._threads += 1
        for _ in range(min(count, self._threads)):
            self._asked.put(shared)

    def _serve(self) -> None:
        while True:
            shared = self._asked.get()
            shared.help()
            del shared  # a waiting thread must not keep arrays alive


_helpers = _Helpers()


def _after_fork() -> None:
    global _helpers
    _helpers = _Helpers()  # the parent's threads do not exist here


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class _SharedCopy:
    """One copy of bytes: each free thread takes its next chunk."""

    def __init__(self, target: Array, source: Array) -> None:
        self._target, self._source = as_bytes(target), as_bytes(source)
        starts = range(0, self._source.size, _PIECE)
        self._pieces, self._starts = len(starts), iter(starts)
        self._came: deque[None] = deque()  #: one for each helper, before it takes its first piece
        self._left: deque[None] = deque()  #: one for each that is done
        self._bell: SimpleQueue[None] = SimpleQueue()  #: wakes the threads that wait for them
        self._errors: list[BaseException] = []

    def run(self) -> None:
        """Copy. No thread reads or writes after the return, even after an interrupt."""
        try:
            _helpers.ask(self, min(THREADS, self._pieces) - 1)
            self._work()
        except BaseException as raised:
            self._errors.insert(0, raised)
        while True:
            try:
                self._starts = iter(range(0))  # threads that come from now on find no work
                while len(self._left) < len(self._came):
                    with suppress(Empty):
                        self._bell.get(timeout=0.1)  # an interrupt may have lost a wake-up
                break
            except BaseException as raised:  # Ctrl-C during the wait: the helpers are still copying
                self._errors.insert(0, raised)
        del self._target, self._source  # late threads hold this object
        if self._errors:
            raise self._errors[0]

    def help(self) -> None:
        """The part of a helper thread."""
        self._came.append(None)
        try:
            self._work()
        except BaseException as raised:
            self._errors.append(raised)
        self._left.append(None)
        self._bell.put(None)

    def _work(self) -> None:
        while (at := next(self._starts, None)) is not None:
            np.copyto(self._target[at : at + _PIECE], self._source[at : at + _PIECE])  # without the GIL


def copy(target: Array, source: Array) -> None:
    """``target[...] = source``, for equal shapes. Long contiguous copies are divided among threads; of several
    concurrent copies each is as fast as with one thread."""
    if THREADS == 1 or source.nbytes < LEAST or not _same_bytes(target, source):
        target[...] = source
    else:
        _SharedCopy(np.asarray(target), np.asarray(source)).run()  # np.matrix has no flat view


def _same_bytes(target: Array, source: Array) -> bool:
    """Whether copying the bytes in any order of chunks is equivalent."""
    return (
        source.flags.c_contiguous
        and target.flags.c_contiguous
        and source.dtype == target.dtype
        and source.shape == target.shape
        and not source.dtype.hasobject
        and not np.may_share_memory(target, source)
    )
