"""What is closed or released while Python's garbage collector runs.

The collector may run between any two bytecodes of any thread. It calls ``__del__`` methods of users, which may close sessions,
and destructors of ONNX Runtime's objects, which call vkep. The code that it interrupted may hold any lock, or be in the middle of
a change: a close in that thread would wait for a lock that the same thread holds. The thread of the finalizers does it instead
(`gpu_shared.steady`).
"""

from __future__ import annotations

import functools
import gc
import os
from collections import deque
from collections.abc import Callable
from threading import get_ident
from typing import Any, TypeVar

from gpu_shared.steady import end_later, run_steady

Close = TypeVar("Close", bound=Callable[..., None])

_collecting = 0  #: the identifier of the thread that the collector runs in
#: releases that wait, or run now, in the order of the calls
_waiting: deque[Callable[[], None]] = deque()


def _note_collection(phase: str, _info: dict[str, int]) -> None:
    global _collecting
    _collecting = get_ident() if phase == "start" else 0


gc.callbacks.append(_note_collection)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_waiting.clear)  # they are the parent's


def steady_close(method: Close) -> Close:
    """Decorates a method that frees something and returns nothing: as `gpu_shared.steady.steady`, but where the garbage collector
    calls it, it does not wait, and an error is logged."""

    @functools.wraps(method)
    def call(*arguments: Any) -> None:
        work = functools.partial(method, *arguments)
        if _collecting == get_ident():
            end_later(work)
        else:
            run_steady(work)

    return call  # type: ignore[return-value]


def released(work: Callable[..., None], *arguments: Any) -> None:
    """Call ``work(*arguments)`` for a library whose order of releases must hold: in the thread of the finalizers where the
    garbage collector calls, or where earlier releases wait; else at once."""
    if _waiting or _collecting == get_ident():
        _waiting.append(functools.partial(work, *arguments))
        end_later(_release_waiting)
    else:
        work(*arguments)


def _release_waiting() -> None:
    while _waiting:
        try:
            _waiting[0]()
        finally:
            _waiting.popleft()
