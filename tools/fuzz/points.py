"""Interrupts at each point in turn where the interpreter looks for signals (CPython 3.11).

The interpreter handles signals and exceptions for a thread at calls, at the begin of functions and at backward jumps only. Most
of them are microseconds apart, and some are passed once in a call: random moments miss them.
"""

from __future__ import annotations

import ctypes
import dis
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import FrameType

from tools.fuzz.moments import IN_THREADS, Moments

#: the instructions after which CPython 3.11 looks for signals, but for RESUME, for which there is another event
_CHECKED = ("CALL", "CALL_FUNCTION_EX", "JUMP_BACKWARD")


@cache
def _tracer() -> ctypes.PyDLL:
    """`points.c`, compiled. Raises `RuntimeError` without a C compiler, `subprocess.CalledProcessError` without Python.h."""
    compiler = next((found for name in ("cc", "gcc", "clang") if (found := shutil.which(name))), None)
    if compiler is None:
        raise RuntimeError("interrupts at each point need a C compiler (apt install gcc)")
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "points.so"
        include = sysconfig.get_path("include")
        source = Path(__file__).with_name("points.c")
        subprocess.run([compiler, "-O1", "-shared", "-fPIC", f"-I{include}", "-o", library, source], check=True)
        loaded = ctypes.PyDLL(str(library))
    loaded.start.argtypes = [
        *(ctypes.c_char_p, ctypes.c_long, ctypes.c_long),
        *(ctypes.c_int, ctypes.c_ulong, ctypes.py_object),
    ]
    loaded.start.restype = None
    loaded.place.restype = ctypes.c_char_p
    return loaded


class Points(Moments):
    """Interrupts a call at its first point, the next one at its second, and so on with ``step``, until calls have fewer points.
    One in four interrupts is followed by a second one within 40 points."""

    def __init__(self, seed: int, step: int = 1) -> None:
        super().__init__(seed)
        if sys.version_info[:2] != (3, 11):
            raise RuntimeError("interrupts at each point are for CPython 3.11, whose instructions they know")
        self._tracer = _tracer()
        self._checked = bytes(
            dis.opname[k].startswith("POP_JUMP_BACKWARD") or dis.opname[k] in _CHECKED for k in range(256)
        )
        self._number, self._step = 1, step
        self._armed_at = 0
        self._traced = False
        self._missed = 0

    @property
    def is_over(self) -> bool:
        """Whether calls have fewer points: a call may have more of them than the one before."""
        return self._missed == 4

    def last(self) -> str:
        places = (self._tracer.place(k).decode() for k in range(2))
        return f"{super().last()}, point {self._armed_at}: {' and '.join(filter(None, places))}"

    def arm(self, typical: float) -> None:
        then = self.random.randint(1, 40) if self.random.random() < 0.25 else 0
        self._armed = 2
        self._armed_at = self._number
        self._traced = True
        number = 0 if self._thread else signal.SIGALRM
        kind = self.random.choice(IN_THREADS)
        self._tracer.start(self._checked, self._number, then, number, self._thread or 0, kind)

    def disarm(self) -> None:
        self._armed = 0
        if not self._traced:
            return
        interrupts = self._tracer.stop()
        self._traced = False
        self.count += interrupts
        self._missed = 0 if interrupts else self._missed + 1
        self._number += self._step if interrupts else 0
        time.sleep(0)  # the interpreter raises what is pending after a call

    def _signalled(self, _number: int, frame: FrameType | None) -> None:
        if self._armed:
            kind = self._drawn(frame)
            self.raised += 1
            raise kind

    @contextmanager
    def in_this_thread(self) -> Iterator[None]:
        self._thread = threading.get_ident()
        try:
            yield
        finally:
            self.disarm()
            self._thread = None
