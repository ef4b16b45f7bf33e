"""What ONNX Runtime releases while Python's garbage collector runs.

The collector may run between any two bytecodes of any thread. It deletes sessions and values of ONNX Runtime, whose destructors
call vkep's callbacks. The code that it interrupted may hold any of vkep's locks, or be in the middle of a change: a release in
that thread would wait for a lock that the same thread holds. The thread of the finalizers does it instead
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

from gpu_shared.steady import end_later

Method = TypeVar("Method", bound=Callable[..., None])

_collecting = 0  #: the identifier of the thread that the collector runs in
#: releases that wait, or run now, in the order of the calls
_waiting: deque[Callable[[], None]] = deque()


def _note_collection(phase: str, _info: dict[str, int]) -> None:
    global _collecting
    _collecting = get_ident() if phase == "start" else 0


gc.callbacks.append(_note_collection)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_waiting.clear)  # they are the parent's


def released(work: Callable[..., None], *arguments: Any) -> None:
    """Call ``work(*arguments)``: in the thread of the finalizers where the garbage collector runs in this thread, or where
    earlier releases wait, so that the order holds; else at once."""
    if _waiting or _collecting == get_ident():
        _waiting.append(functools.partial(work, *arguments))
        end_later(_release_waiting)
    else:
        work(*arguments)


def releases(method: Method) -> Method:
    """Marks a member of a `vkep.ort.boundary.CStruct` that releases something, and returns nothing: it is called by `released`.
    An exception is logged. Its arguments must be valid after the call."""

    @functools.wraps(method)
    def call(self: Any, *arguments: Any) -> None:
        released(method, self, *arguments)

    call._member = ("value", None)  # type: ignore[attr-defined]
    return call  # type: ignore[return-value]


def _release_waiting() -> None:
    while _waiting:
        try:
            _waiting[0]()
        finally:
            _waiting.popleft()
