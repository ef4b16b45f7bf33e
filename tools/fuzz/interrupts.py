"""Interrupts at random moments of a session's calls: nothing hangs, nothing is lost, the next call is right.

    python -m tools.fuzz.interrupts --count 100000 --seed 1 --what run

A timer's signal handler raises in the main thread while it opens, runs, binds, reads or closes; one in four is followed by a
second within microseconds, and one in two tracebacks is kept for a while, with all frames. With ``--threads`` the calls run in a
thread that another raises in (`PyThreadState_SetAsyncExc`). A call that does not return ends the process with all stacks.
"""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import gc
import queue
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import onnx
import onnx.parser

import vkep

#: seconds after which a call counts as hanging
_HANGS = 60


class Interrupt(KeyboardInterrupt):
    """The exception that the handler raises."""


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


class Moments:
    """Raises in the main thread, or in ``thread``, at random moments after `arm`; counts the exceptions."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.count = 0
        self._armed = 0  # number of interrupts allowed
        self._thread: int | None = None
        # an exception raised in a thread would lose the lock of a `threading.Event`; these are changed in one step
        self._said = queue.SimpleQueue[tuple[int, float]]()  # a number and its delay, or its end: a delay below 0
        self._asked = self._ended = 0

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

    def _signalled(self, *_: object) -> None:
        if not self._armed:
            return
        self.count += 1
        self._armed -= 1
        if self._armed:
            signal.setitimer(signal.ITIMER_REAL, self.random.uniform(1e-6, 1e-4))
        raise Interrupt

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
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread), ctypes.py_object(Interrupt))
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
        while self.moments.count < goal:
            faulthandler.dump_traceback_later(_HANGS, exit=True)
            self._once(attempt, typical)
            if self.moments.count - checked >= 100:
                checked = self.moments.count
                check()
        self._kept.clear()
        check()
        faulthandler.cancel_dump_traceback_later()

    def _once(self, attempt: Callable[[], Any], typical: float) -> None:
        try:
            try:
                self.moments.arm(typical)
                attempt()
                self.moments.disarm()
            except Interrupt as error:
                if self.moments.random.random() < 0.5:
                    self._kept.append(error)
                    del self._kept[:-3]
        except Interrupt:
            pass
        while True:  # a second one may be pending
            try:
                self.moments.disarm()
                return
            except Interrupt:
                pass


def no_object_left(what: str, but: dict[str, int] | None = None) -> None:
    """Raise unless dropped or closed objects are freed soon."""
    ends = time.monotonic() + 20
    while True:
        gc.collect()
        left = vkep.live_counts()
        if left == (but or {}):
            return
        if time.monotonic() > ends:
            raise AssertionError(f"{what}: left behind: {left}, expected {but or {}}")
        time.sleep(0.01)


def expect(value: Any, right: Any = RIGHT) -> None:
    if not np.array_equal(value, right):
        raise AssertionError(f"wrong answer after an interrupt: {value}, expected {right}")


def ends_well(session: vkep.InferenceSession) -> None:
    graph = session._parts.graph
    ends = time.monotonic() + 20  # the thread of an interrupted run ends soon
    while any(entry.uses.held for entry in (*graph._entries.values(), *graph._evicted)):
        if time.monotonic() > ends:
            raise AssertionError("an executable is in use, and nobody runs it")
        time.sleep(0.01)
    for island in session.islands():
        runner: Any = getattr(island.runner, "_runner", island.runner)  # a runner with sizes wraps another one
        if any(room.lock.locked() for room in runner._rooms):
            raise AssertionError("a recording is in use, and nobody runs it")
    session.close()
    no_object_left("after close")


def runs(campaign: Campaign) -> None:
    session = vkep.InferenceSession(STATIC, save_plans=False)
    feeds = {"x": X, "b": B}
    campaign.drive(lambda: expect(session.run(None, feeds)[0]), lambda: expect(session.run(None, feeds)[0]))
    ends_well(session)


def parts(campaign: Campaign) -> None:
    session = vkep.InferenceSession(PARTS, save_plans=False)
    feeds = {"x": X, "b": B}
    campaign.drive(lambda: expect(session.run(None, feeds)[0]), lambda: expect(session.run(None, feeds)[0]))
    ends_well(session)


def shapes(campaign: Campaign) -> None:
    """Each run plans: the cache holds two executables, and sizes take turns."""
    session = vkep.InferenceSession(DYNAMIC, save_plans=False, plan_cache_size=2)
    sizes = random.Random(0)

    def attempt() -> None:
        x = np.full((sizes.randint(1, 6), 3), 2, np.float32)
        expect(session.run(None, {"x": x, "b": B})[0], x + 1)

    campaign.drive(attempt, attempt)
    ends_well(session)


def binds(campaign: Campaign) -> None:
    session = vkep.InferenceSession(STATIC, save_plans=False)
    bound = session.empty_device_tensor((2, 3))

    def attempt() -> None:
        binding = session.io_binding()
        binding.bind_input("x", session.device_tensor(X))
        binding.bind_cpu_input("b", B)
        binding.bind_output("y", bound if sizes.random() < 0.5 else None)
        session.run_with_iobinding(binding)
        expect(binding.copy_outputs_to_cpu()[0])

    sizes = random.Random(0)
    campaign.drive(attempt, attempt)
    bound.close()
    ends_well(session)


def reads(campaign: Campaign) -> None:
    session = vkep.InferenceSession(STATIC, save_plans=False)
    tensor = session.device_tensor(X)

    def attempt() -> None:
        tensor.write(X)
        expect(tensor.numpy(), X)

    campaign.drive(attempt, attempt)
    tensor.close()
    ends_well(session)


def opens(campaign: Campaign) -> None:
    def attempt() -> None:
        vkep.InferenceSession(DYNAMIC if turn.random() < 0.5 else STATIC, token="opens", save_plans=False).close()

    def check() -> None:
        with vkep.InferenceSession(STATIC, token="opens", save_plans=False) as session:
            expect(session.run(None, {"x": X, "b": B})[0])
        campaign._kept.clear()
        no_object_left("after opening")

    turn = random.Random(0)
    campaign.drive(attempt, check)


def closes(campaign: Campaign) -> None:
    with vkep.InferenceSession(STATIC, token="closes", save_plans=False) as other:
        waiting: list[vkep.InferenceSession] = []

        def ready() -> vkep.InferenceSession:
            session = vkep.InferenceSession(STATIC, token="closes", save_plans=False)
            session.run(None, {"x": X, "b": B})
            return session

        def attempt() -> None:
            if waiting:
                waiting[-1].close()

        def check() -> None:
            for session in waiting:
                session.close()
            waiting.clear()
            campaign._kept.clear()
            expect(other.run(None, {"x": X, "b": B})[0])
            no_object_left("after closing", live)

        for _ in range(2):  # the second run records another copy where memory is staged: the addresses have been sent
            other.run(None, {"x": X, "b": B})
        live = vkep.live_counts()
        once = campaign._once

        def with_a_session(attempt: Callable[[], Any], typical: float) -> None:
            waiting.append(ready())
            once(attempt, max(typical, 1e-3))

        campaign._once = with_a_session  # type: ignore[method-assign]
        campaign.drive(attempt, check)
    no_object_left("after closing")


WHAT = {f.__name__: f for f in (runs, parts, shapes, binds, reads, opens, closes)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0 where no check failed. Raises where one did; a call that hangs ends the process."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=1000, help="interrupts of each kind")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--what", nargs="*", default=list(WHAT), choices=list(WHAT))
    parser.add_argument("--threads", action="store_true", help="raise in another thread than the main one")
    given = parser.parse_args(arguments)
    for what in given.what:
        moments = Moments(given.seed)
        began = time.monotonic()

        def work(what: str = what, moments: Moments = moments) -> None:
            with moments.in_this_thread() if given.threads else moments.in_main():
                WHAT[what](Campaign(moments, given.count))

        failed: list[BaseException] = []
        if given.threads:

            def guarded(work: Callable[[], None] = work, failed: list[BaseException] = failed) -> None:
                try:
                    work()
                except BaseException as error:
                    failed.append(error)

            thread = threading.Thread(target=guarded)
            thread.start()
            thread.join()
        else:
            work()
        if failed:
            raise failed[0]
        print(f"{what}: {moments.count} interrupts, {time.monotonic() - began:.1f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
