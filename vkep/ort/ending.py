"""The interpreter's exit, when a program leaves sessions and running threads.

ONNX Runtime releases its objects when its Python objects are deleted, or even later: with onnxruntime-genai when the names
of vkep's modules are cleared, with objects that a module of C holds when the interpreter is gone. Callbacks then do nothing
(`before_modules_are_cleared`). When the interpreter exits, a daemon thread inside ONNX Runtime is terminated inside C++ code,
which aborts the process with any provider: such threads are stopped before, where they call a run or return to vkep, and
never continue.
"""

from __future__ import annotations

import _thread
import atexit
import logging
import sys
import threading
import time
import weakref
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import Any

logger = logging.getLogger("vkep.ort")

#: has an item once the interpreter exits: callbacks then call `park`
over: list[bool] = []
_PATIENCE = 5.0  #: seconds to wait for daemon threads inside a run
_RUNS = ("run", "run_with_iobinding", "run_with_ort_values", "run_with_ortvaluevector")
_FILE = "onnxruntime_inference_collection.py"
_parked: set[int] = set()


class _Last:
    """An object that is deleted when Python begins to clear its modules."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work

    def __del__(self) -> None:
        self._work()


#: the module that Python clears first: the last one in ``sys.modules``
_first = ModuleType("vkep.ort._first_to_go")


def before_modules_are_cleared(work: Callable[[], None]) -> Callable[[], None]:
    """Decorates a function that is called at the interpreter's end, when Python's code still works."""
    vars(_first)[work.__qualname__] = _Last(work)
    return work


def park() -> None:
    """Block forever in a daemon thread of Python. ONNX Runtime's own threads, which it waits for, continue."""
    thread = threading.current_thread()
    if not thread.daemon or isinstance(thread, threading._DummyThread):
        return
    _parked.add(threading.get_ident())
    forever = _thread.allocate_lock()
    forever.acquire()
    while True:
        forever.acquire()


weakref.finalize(threading.main_thread(), int)  # registered first, so that `_end` runs before


@atexit.register
def _end() -> None:
    over.append(True)
    sys.modules[_first.__name__] = _first
    onnxruntime: Any = sys.modules.get("onnxruntime")
    kind = getattr(onnxruntime, "InferenceSession", None)
    for name in _RUNS:
        if hasattr(kind, name):
            setattr(kind, name, _stopped(getattr(kind, name)))
    ends = time.monotonic() + _PATIENCE
    while _within():
        if time.monotonic() > ends:
            logger.warning(
                "the interpreter ends while daemon threads run sessions of ONNX Runtime's: it may abort the process"
            )
            return
        time.sleep(0.001)


def _stopped(run: Callable[..., Any]) -> Callable[..., Any]:
    def stopped(*args: Any, **options: Any) -> Any:
        park()
        return run(*args, **options)

    return stopped


def _within() -> bool:
    """Whether a daemon thread is inside a run and has not been stopped there."""
    daemons = {t.ident for t in threading.enumerate() if t.daemon and not isinstance(t, threading._DummyThread)}
    for ident, frame in sys._current_frames().items():
        at: FrameType | None = frame
        while ident in daemons and ident not in _parked and at is not None:
            if at.f_code.co_name in _RUNS and at.f_code.co_filename.endswith(_FILE):
                return True
            at = at.f_back
    return False
