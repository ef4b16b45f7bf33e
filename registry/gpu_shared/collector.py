"""What is closed or released while Python's garbage collector runs.

The collector may run between any two bytecodes of any thread. It calls ``__del__`` methods of users, which may close sessions,
and destructors of ONNX Runtime's objects, which call vkep. The code that it interrupted may hold any lock, or be in the middle of
a change: a close in that thread would wait for a lock that the same thread holds. Another thread does it instead.
"""

from __future__ import annotations

import functools
import gc
import os
import threading
from collections import deque
from collections.abc import Callable
from threading import get_ident
from typing import Any, TypeVar

from gpu_shared.steady import close_later, end_later, settle_within, steady

Close = TypeVar("Close", bound=Callable[..., None])


# The collector's callbacks must be functions written in C: it drops what a signal handler raises in one written in Python.
# It passes both of them the same dict, which no later collection has while they refer to it.
_last = BaseException()  #: ``args``: the phase of the last collection ("start" or "stop"), and its dict
_here = threading.local()  #: ``start``: the dict of the last collection that began in this thread
gc.callbacks[:0] = [_last.__init__, _here.__setattr__]  # type: ignore[misc]


def collects_here() -> bool:
    """Whether the collector runs in this thread."""
    last = _last.args
    return len(last) == 2 and last[0] == "start" and getattr(_here, "start", None) is last[1]


def outside_collector(close: Close) -> Close:
    """Decorates a function that closes something and returns nothing. Where the garbage collector calls it, it returns at once,
    another thread does the work soon after, and an error is logged."""

    @functools.wraps(close)
    def call(*arguments: Any, **options: Any) -> None:
        if collects_here():
            close_later(functools.partial(close, *arguments, **options))
        else:
            close(*arguments, **options)

    call.is_outside_collector = True  # type: ignore[attr-defined]  # for tests
    return call  # type: ignore[return-value]


def steady_close(close: Close) -> Close:
    """As `gpu_shared.steady.steady`, and `outside_collector`."""
    return outside_collector(steady(close))


# ---- releases whose order must hold

_waiting: deque[Callable[[], None]] = deque()
_releasing = 0  #: the identifier of the thread that does the work of one that waited


def released(work: Callable[..., None], *arguments: Any) -> None:
    """Call ``work(*arguments)``, after all earlier releases. Where the garbage collector calls, or where another thread does
    earlier ones, the thread of the finalizers does it, and an error is logged. Callers other than the collector wait for that, a
    second at most."""
    if not collects_here() and (_releasing == get_ident() or not _is_releasing()):
        work(*arguments)
        return
    _waiting.append(functools.partial(work, *arguments))
    end_later(_release_waiting)
    if not collects_here():
        settle_within()


def wait_for_releases() -> bool:
    """Wait for releases that another thread does, at most a second. Returns whether there were any."""
    waits = _is_releasing()
    if waits:
        settle_within()
    return waits


def _is_releasing() -> bool:
    return bool(_waiting or _releasing)


def _release_waiting() -> None:
    global _releasing
    while _waiting:
        outer, _releasing = _releasing, get_ident()
        try:
            _waiting.popleft()()
        finally:
            _releasing = outer


def _after_fork_in_child() -> None:
    global _releasing
    _waiting.clear()  # the parent does them
    _releasing = 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
