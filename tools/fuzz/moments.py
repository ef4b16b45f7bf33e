"""Exceptions raised at random moments of repeated calls, and the small models that campaigns run."""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import itertools
import queue
import random
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx.parser

import vkep
from gpu_shared import Device
from tools.waiting import LONG_S

if TYPE_CHECKING:
    from vkep.executorch import Method

#: seconds after which a call counts as hanging
_HANGS = 300


class Interrupt(BaseException):
    """The exceptions that interrupt: nothing else makes one."""


#: what a handler raises: what few `except` clauses catch, and what many do
INTERRUPTS: tuple[type[Interrupt], ...] = tuple(
    type(f"{base.__name__}ThatInterrupts", (Interrupt, base), {})
    for base in (KeyboardInterrupt, TimeoutError, ValueError, RuntimeError)
)
#: what is raised in a thread: nothing tells a RuntimeError there from that of a thread that cannot be started
IN_THREADS = INTERRUPTS[:3]


def model(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model('<ir_version: 10, opset_import: ["" : 21]>\n' + text)


STATIC = model("g (float[2,3] x, float[3] b) => (float[2,3] y) { t = Add(x, b) y = Relu(t) }")
DYNAMIC = model("g (float[n,3] x, float[3] b) => (float[n,3] y) { t = Add(x, b) y = Relu(t) }")
#: parts on the device, on the host and in a loop
PARTS = model(
    "g (float[2,3] x, float[3] b) => (float[2,3] y) { t = Add(x, b) d = Shape(t) u = Unique(t) n = Size(u)"
    " zero = Constant<value = int64 {0}>() m = Mul(n, zero) f = Cast<to = 1>(m) s = Add(t, f) y = Relu(s) }"
)
X, B = np.arange(6, dtype=np.float32).reshape(2, 3) - 2, np.ones(3, np.float32)
RIGHT = np.maximum(X + B, 0)
#: .pte programs with two methods each
PROGRAMS = Path(__file__).parents[2] / "tests" / "executorch" / "data" / "two_methods"


def ones(method: Method) -> list[Any]:
    """Inputs for a method of a program, all ones."""
    metas = [method.metadata.input_tensor_meta(k) for k in range(method.metadata.num_inputs())]
    return [np.ones(meta.sizes(), np.float32) for meta in metas]


class Moments:
    """Raises in the main thread, or in another one, at random moments after `arm`; counts the exceptions."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.count = 0
        #: how many exceptions the handler raised. Those in threads are not counted: CPython 3.11 may raise one in a thread that
        #: the other one starts
        self.raised = 0
        self.place = ""  #: where the handler raised the last one
        self._armed = 0  # number of interrupts allowed
        self._thread: int | None = None
        # an exception raised in a thread would lose the lock of a `threading.Event`; these are changed in one step
        self._said = queue.SimpleQueue[tuple[int, float]]()  # a number and its delay, or its end: a delay below 0
        self._asked = self._ended = 0

    @property
    def is_over(self) -> bool:
        """Whether no moment is left."""
        return False

    def last(self) -> str:
        """When the last exception was raised."""
        return f"interrupt {self.count}: {self.place}"

    def arm(self, typical: float) -> None:
        self._armed = 2 if self.random.random() < 0.25 else 1
        delay = self.random.uniform(1e-6, 1.2 * typical)
        if self._thread is None:
            signal.setitimer(signal.ITIMER_REAL, delay)
        else:
            self._asked += 1
            self._said.put((self._asked, delay))

    def disarm(self) -> None:
        """No interrupt is raised after this one returns."""
        self._armed = 0
        if self._thread is None:
            signal.setitimer(signal.ITIMER_REAL, 0)
            return
        self._said.put((self._asked, -1))
        while self._ended < self._asked:
            time.sleep(1e-5)
        time.sleep(0)  # the interpreter raises what is pending after a call

    def _signalled(self, _number: int, frame: FrameType | None) -> None:
        inside = frame is not None and frame.f_code is Moments._signalled.__code__  # one is counted, and not raised yet
        if inside or not self._armed:
            return
        self.count += 1
        self._armed -= 1
        kind = self._drawn(frame)
        if self._armed:
            signal.setitimer(signal.ITIMER_REAL, self.random.uniform(1e-6, 1e-4))
        self.raised += 1
        raise kind

    def _drawn(self, frame: FrameType | None) -> type[Interrupt]:
        """What a handler that a signal calls in ``frame`` raises next."""
        kind = self.random.choice(INTERRUPTS)
        at = [f"{one.f_code.co_filename}:{line}" for one, line in itertools.islice(traceback.walk_stack(frame), 6)]
        self.place = f"{kind.__name__} at {' from '.join(at)}"
        return kind

    def _raise_in_thread(self) -> None:
        while True:
            number, delay = self._said.get()
            if number < 0:
                return
            if delay < 0:  # the end of one that has ended
                continue
            with suppress(queue.Empty):
                self._said.get(timeout=delay)
            if self._armed and self._thread:
                self._armed = 0
                self.count += 1
                kind = ctypes.py_object(self.random.choice(IN_THREADS))
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread), kind)
            self._ended = number

    @contextmanager
    def in_main(self) -> Iterator[None]:
        before = signal.signal(signal.SIGALRM, self._signalled)
        try:
            yield
        finally:
            self.disarm()
            signal.signal(signal.SIGALRM, before)

    @contextmanager
    def in_this_thread(self) -> Iterator[None]:
        self._thread = threading.get_ident()
        helper = threading.Thread(target=self._raise_in_thread, daemon=True)
        helper.start()
        try:
            yield
        finally:
            self.disarm()
            self._said.put((-1, 0))
            helper.join()
            self._thread = None


class Campaign:
    """``attempt`` is interrupted ``count`` times; ``check`` follows each hundredth, and the end."""

    def __init__(self, moments: Moments, count: int) -> None:
        self.moments, self.count = moments, count
        self._kept: list[BaseException] = []

    def drive(self, attempt: Callable[[], Any], check: Callable[[], Any]) -> None:
        attempt()
        began = time.perf_counter()
        for _ in range(5):
            attempt()
        typical = (time.perf_counter() - began) / 5
        goal, checked = self.moments.count + self.count, self.moments.count
        while self.moments.count < goal and not self.moments.is_over:
            faulthandler.dump_traceback_later(_HANGS, exit=True)
            self._once(attempt, typical)
            # the call right after an interrupt is in danger of what the interrupted one still does
            if self.moments.count - checked >= (4 if check is attempt else 100):
                checked = self.moments.count
                check()
        self.forget()
        check()
        faulthandler.cancel_dump_traceback_later()

    def forget(self) -> None:
        """Drop the exceptions that were kept, with their frames."""
        self._kept.clear()

    def _once(self, attempt: Callable[[], Any], typical: float) -> None:
        """Raises `AssertionError` where what a handler raised does not arrive here."""
        before, arrived = self.moments.raised, set[Interrupt]()
        try:
            try:
                self.moments.arm(typical)
                attempt()
                self.moments.disarm()
            except Interrupt as error:
                arrived |= _interrupts(error)
                if self.moments.random.random() < 0.5:
                    self._kept.append(error)
                    del self._kept[:-3]
        except Interrupt as error:
            arrived |= _interrupts(error)
        while True:  # a second one may be pending
            try:
                self.moments.disarm()
                break
            except Interrupt as error:
                arrived |= _interrupts(error)
        count = len(arrived)
        arrived.clear()  # their tracebacks refer to this frame
        if count < self.moments.raised - before:
            raise AssertionError("an exception that interrupted a call did not arrive at its caller")


def _interrupts(error: BaseException | None) -> set[Interrupt]:
    """The interrupts that arrive with an exception: itself, and those that it came after."""
    found = set[Interrupt]()
    while error is not None:
        if isinstance(error, Interrupt):
            found.add(error)
        error = error.__context__
    return found


def no_object_left(what: str, but: dict[str, int] | None = None, device: Device | None = None) -> None:
    """Raise unless dropped or closed objects are freed soon; those of ``device`` go with its next close or submit, or here."""
    ends = time.monotonic() + LONG_S
    while True:
        gc.collect()
        left = vkep.live_counts()
        if device is not None and device.collect():
            left = vkep.live_counts()
        if left == (but or {}):
            return
        if time.monotonic() > ends:
            raise AssertionError(f"{what}: left behind: {left}, expected {but or {}}")
        time.sleep(0.01)


def expect(value: Any, right: Any = RIGHT) -> None:
    value = np.asarray(value)
    if value.shape != right.shape or (value != right).any():  # `np.array_equal` catches exceptions
        raise AssertionError(f"wrong answer after an interrupt: {value}, expected {right}")
