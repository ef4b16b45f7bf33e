"""Which exceptions come from a signal's handler: ONNX Runtime passes none on to the caller, whom it means."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import traceback
from types import CodeType
from typing import Any


def signal_of(error: BaseException | None) -> int | None:
    """The signal whose handler raised ``error``, or an exception that is its cause; None where none did.

    The handler's frame in the traceback tells: `signal.default_int_handler` and other functions in C have none.
    """
    # the functions of `signal` itself catch ``ValueError``, and a second signal may come here
    handlers = {_code(_signal.getsignal(number)): number for number in range(1, _signal.NSIG)}
    seen: set[int] = set()
    while error is not None and id(error) not in seen:  # an exception may be its own cause
        for frame, _ in traceback.walk_tb(error.__traceback__):
            if frame.f_code in handlers:
                return handlers[frame.f_code]
        seen.add(id(error))
        error = error.__cause__
    return None


def _code(handler: Any) -> CodeType | None:
    if not callable(handler):  # the system's default
        return None
    function = getattr(handler, "func", handler)  # a `functools.partial`
    code = getattr(function, "__code__", None) or getattr(function.__call__, "__code__", None)
    return code if isinstance(code, CodeType) else None
