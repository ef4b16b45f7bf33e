"""Sessions that come and go for a long time: memory, live objects, threads and file descriptors must not grow.

    python -m tools.soak --seconds 86400             # a day
    python -m tools.soak --seconds 20 --rounds 10    # the shortest that tells something
    python -m tools.soak --what bound --no-faults    # one kind of work alone

In each round, threads open sessions of vkep and of ONNX Runtime (where it is installed), run them at sizes drawn by the seed,
with host arrays, device tensors and bindings, feed wrong inputs, and close or drop them; one session lives through all rounds.
Vulkan calls fail at random (``tools.fuzz.injector``), the device is lost now and then. Every answer is checked.

After each round the numbers are read: resident memory, memory allocated by malloc, live objects, threads, file descriptors. The
process starts itself again with two arenas of glibc's malloc (`tools.heap`). Growth is the slope over the rounds times their
number, after the first third, which fills caches (`tools.growth`). Exit code 1 where either memory grew by more than ``--allow``
MB, live objects by more than a plan has, another number by one or more, an answer was wrong, an exception was not expected, or an
object is left at the end. Each round prints its numbers. Ctrl-C ends the soak after the rounds that are complete.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import logging
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import gpu_shared
import vkep
from gpu_shared.steady import idle_threads
from tools.fuzz.faults import of_onnxruntime
from tools.fuzz.injector import MOST_RESULTS, Injector
from tools.growth import after_a_third, grown
from tools.heap import allocated_mb, resident_mb, restart_with_two_arenas
from tools.waiting import comes_true
from vkep.device import run_commands

_MODEL = onnx.parser.parse_model(
    '<ir_version: 9, opset_import: ["" : 18]> soak (float[n,m] x) => (float[n,m] y) <float b = {2}>'
    " { a = Add(x, b) r = Relu(a) s = Mul(r, x) y = Sub(s, b) }"
)
#: memory that the C library may keep of a thread's heap, and the interpreter of its objects
ALLOW_MB = 8.0
_READ_TRIES = 3
WHAT = ("plain", "bound", "refused", "kept", "onnxruntime")
#: objects of one more plan in the cache of the session that lives on, and of one with other sizes
PLAN_OBJECTS = 10


def numbers() -> dict[str, float]:
    """Memory, live objects, threads and file descriptors of this process.

    Idle threads of `gpu_shared.steady` do not count: there are as many as calls were ever in progress at once.
    """
    return {
        "resident MB": resident_mb(),
        "allocated MB": allocated_mb(),
        "live objects": sum(vkep.live_counts().values()),
        "threads": sum(1 for _ in Path("/proc/self/task").iterdir()) - idle_threads(),
        "file descriptors": sum(1 for _ in Path("/proc/self/fd").iterdir()),
    }


class Soak:
    """The work of all threads. ``count`` has the number of operations by name; ``wrong`` lists unexpected results."""

    def __init__(self, seed: int, faults: bool, what: Sequence[str] = WHAT) -> None:
        """``what``: methods of this class, which threads call."""
        self._seed, self._faults = seed, faults
        self._model = _MODEL.SerializeToString()
        self._lock = threading.Lock()
        self.injector = Injector()
        self.injector.arm(-1, 0, False)
        self.count: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._kept: vkep.InferenceSession | None = None
        self._ort: Any = None
        if "onnxruntime" in what:
            with contextlib.suppress(ImportError):
                import onnxruntime

                import vkep.ort

                vkep.ort.register()
                self._ort = onnxruntime
        self._work: list[Callable[[random.Random], None]] = [
            getattr(self, name) for name in what if name != "onnxruntime" or self._ort is not None
        ]

    def _array(self, draw: random.Random) -> np.ndarray[Any, Any]:
        shape = (draw.choice((1, 2, 3, 16, 100)), draw.choice((1, 4, 17, 64, 256)))
        return np.full(shape, draw.randrange(-3, 9), np.float32)

    def _check(self, found: Any, x: np.ndarray[Any, Any]) -> None:
        if not np.array_equal(found, np.maximum(x + 2, 0) * x - 2):
            self.wrong.append(f"a wrong answer for {x.shape} of {x.flat[0]}")

    def plain(self, draw: random.Random) -> None:
        token = draw.choice(("soak", "soak", "other"))
        with vkep.InferenceSession(self._model, token=token, save_plans=False) as session:
            for _ in range(draw.randrange(1, 6)):
                x = self._array(draw)
                self._check(session.run(None, {"x": x})[0], x)

    def bound(self, draw: random.Random) -> None:
        session = vkep.InferenceSession(self._model, token="soak", save_plans=False)  # dropped, not closed
        x = self._array(draw)
        binding = session.io_binding()
        with session.device_tensor(x) as tensor:
            binding.bind_input("x", tensor)
            binding.bind_output("y", *draw.choice(((), ("gpu",))))
            session.run_with_iobinding(binding)
            self._check(binding.copy_outputs_to_cpu()[0], x)
            binding.clear()

    def refused(self, draw: random.Random) -> None:
        with vkep.InferenceSession(self._model, token="soak", save_plans=False) as session:
            try:
                session.run(None, {"x": np.ones(draw.randrange(1, 9), np.float32)})
                self.wrong.append("an input of the wrong rank was not refused")
            except vkep.InvalidInputError:
                pass

    def kept(self, draw: random.Random) -> None:
        with self._lock:
            if self._kept is None:
                self._kept = vkep.InferenceSession(self._model, token="kept", save_plans=False, plan_cache_size=4)
            session = self._kept
        x = self._array(draw)
        try:
            self._check(session.run(None, {"x": x})[0], x)
        except vkep.DeviceLostError:
            with self._lock:
                if self._kept is session:
                    self._kept = None
            session.close()
            raise

    def onnxruntime(self, draw: random.Random) -> None:
        options = self._ort.SessionOptions()
        options.log_severity_level = 4
        made = self._ort.InferenceSession(
            self._model, options, providers=[("VulkanExecutionProvider", {"token": "soak"})], enable_fallback=0
        )
        made.disable_fallback()
        for _ in range(draw.randrange(1, 4)):
            x = self._array(draw)
            self._check(made.run(None, {"x": x})[0], x)

    def _expected(self, error: Exception) -> bool:
        of_ours = isinstance(error, (vkep.GpuError, vkep.ArenaOutOfMemory, vkep.ClosedError))
        return self._faults and (of_ours or of_onnxruntime(error))

    def _repeat(self, until: float, least: int, draw: random.Random) -> None:
        pieces = 0
        while (time.monotonic() < until or pieces < least) and len(self.wrong) < 20:
            pieces += 1
            work = draw.choice(self._work)
            if self._faults and draw.random() < 0.05:
                self.injector.arm(draw.randrange(100), draw.randrange(MOST_RESULTS), False)
            try:
                work(draw)
                self.count[work.__name__] += 1
            except Exception as error:
                error.__traceback__ = None
                if self._expected(error):
                    self.count[type(error).__name__] += 1
                else:
                    self.wrong.append(f"{work.__name__}: {error!r}")

    def round(self, number: int, seconds: float, least: int, threads: int) -> dict[str, float]:
        """Run all threads for some seconds, and for ``least`` pieces of work each; returns the numbers after that."""
        until = time.monotonic() + seconds
        started = [
            threading.Thread(target=self._repeat, args=(until, least, random.Random(f"{self._seed}/{number}/{k}")))
            for k in range(threads)
        ]
        for thread in started:
            thread.start()
        for thread in started:
            thread.join()
        self.injector.arm(-1, 0, False)
        found = numbers()
        for _ in range(_READ_TRIES):  # objects that a finalizer's thread still frees
            time.sleep(0.05)
            again = numbers()
            found = {name: min(value, again[name]) for name, value in found.items()}
        return found

    def close(self) -> dict[str, int]:
        """Close the objects that lived through all rounds; returns the objects that are left."""
        if self._kept is not None:
            self._kept.close()
        gc.collect()
        if self._ort is not None:
            vkep.ort.unregister()
        comes_true(lambda: gc.collect() >= 0 and not vkep.live_counts())
        return vkep.live_counts()


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0 where nothing grew, no answer was wrong and no object was left."""
    parser = argparse.ArgumentParser(prog="python -m tools.soak", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument(
        "--pieces", type=int, default=0, help="the least that each thread does in a round, however long"
    )
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--allow", type=float, default=ALLOW_MB, metavar="MB", help="growth of memory that is noise")
    parser.add_argument("--what", nargs="+", default=WHAT, choices=WHAT, help="kinds of work")
    parser.add_argument("--no-faults", action="store_true", help="inject none")
    given = parser.parse_args(arguments)
    for name in ("vkep", "gpu_shared"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    device = gpu_shared.select_device(gpu_shared.list_devices()).capabilities
    objects = PLAN_OBJECTS + (
        0 if device.host_visible_device_local else run_commands._COPIES
    )  # staged copies of other sizes
    soak = Soak(given.seed, not given.no_faults, given.what)
    found: list[dict[str, float]] = []
    pieces: list[int] = []
    with soak.injector.installed():
        try:
            for k in range(given.rounds):
                found.append(soak.round(k, given.seconds / given.rounds, given.pieces, given.threads))
                pieces.append(sum(soak.count.values()))
                numbers_now = ", ".join(f"{value:.1f} {name}" for name, value in found[-1].items())
                print(f"round {k + 1} of {given.rounds}: {numbers_now}; {pieces[-1]} pieces of work", flush=True)
        except KeyboardInterrupt:
            if len(found) < 4:  # too few for a slope
                raise
        left = soak.close()
    bad = bool(left or soak.wrong)
    for name in found[0]:
        values = [one[name] for one in found]
        first, growth = after_a_third(values)[0], grown(values)
        allowed = given.allow if name.endswith("MB") else objects if name == "live objects" else 0.99
        bad |= growth > allowed
        print(
            f"{name}: {values[0]:.0f}, {first:.0f} after a third, {values[-1]:.0f} at the end; growth {growth:+.2f} over "
            f"{pieces[-1] - pieces[len(values) // 3]} pieces of work"
        )
    for wrong in soak.wrong[:20]:
        print(wrong)
    print(", ".join(f"{n} {name}" for name, n in soak.count.most_common()))
    print(f"{sum(soak.count.values())} pieces of work, {len(soak.wrong)} wrong; left behind: {left or 'nothing'}")
    return int(bad)


if __name__ == "__main__":
    restart_with_two_arenas("tools.soak")
    sys.exit(main())
