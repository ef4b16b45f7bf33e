"""Every Vulkan and loader call fails once, with each result that its specification names, while sessions open, run and close.

    python -m tools.fuzz.faults --what session shared program --most 500 --seed 1
    python -m tools.fuzz.faults --lost

Submits shortly before the fault begin late, so that they still run when it occurs. Conditions of each case:

- nothing is destroyed that the device uses (with VKEP_VALIDATION=1 the layers check that);
- the call raises `GpuError` or gives a right answer, and the next one gives a right answer;
- sessions on the same context and on another device give right answers;
- there are as many live objects as before.

With ``--lost`` the device is lost at each call in turn that may report it, and at all later calls. Then everything on that device
is closed, and the registry gives a new context for its token.
"""

from __future__ import annotations

import argparse
import gc
import logging
import random
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

import vkep
from gpu_shared.errors import GpuError
from gpu_shared.instance import validation_log
from tools.fuzz.injector import Injector
from tools.fuzz.moments import DYNAMIC, PARTS, PROGRAMS, STATIC, B, X, model, no_object_left, ones
from tools.validation_layers import complaints, settle_for_layers

FEEDS = {"x": X, "b": B}


def large(seed: int) -> onnx.ModelProto:
    """What `STATIC` computes, after a product that is 0."""
    made = model(
        "g (float[2,3] x, float[3] b) => (float[2,3] y) { zero = Sub(x, x) p = MatMul(zero, w) s = ReduceMax(p) t = Add(x, b) "
        "u = Add(t, s) y = Relu(u) }"
    )
    weight = np.random.default_rng(seed).standard_normal((3, 1 << 15), np.float32)
    made.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    return made


REGIONS = model(
    "g (float[2,3] x, float[3] b) => (float[2,3] y) { t = Add(x, b) z = Sub(x, x) a = Asinh(z) s = Add(t, a) y = Relu(s) }"
)
RIGHT = np.maximum(X + B, 0)
#: models with a weight of 384 KiB each, and bytes for one of them
LARGE, LIMIT = [large(seed) for seed in (1, 2)], 720 << 10


def session(token: str = "one", source: Any = STATIC) -> list[np.ndarray[Any, Any]]:
    """Open, run, bind, read, close."""
    with vkep.InferenceSession(source, token=token, save_plans=False) as opened:
        found = opened.run(None, FEEDS)
        binding = opened.io_binding()
        with opened.device_tensor(X) as tensor:
            binding.bind_input("x", tensor)
            binding.bind_cpu_input("b", B)
            binding.bind_output("y")
            opened.run_with_iobinding(binding)
            found += binding.copy_outputs_to_cpu()
            binding.clear()
        return found


def shared() -> list[np.ndarray[Any, Any]]:
    """As `session`, with another session on the same context."""
    return session("neighbour")


def parts() -> list[np.ndarray[Any, Any]]:
    """Run a model with steps on the device and on the host."""
    return session("one", PARTS)


def shapes() -> list[np.ndarray[Any, Any]]:
    """Run several signatures, each with a plan."""
    with vkep.InferenceSession(DYNAMIC, token="one", save_plans=False) as opened:
        return [opened.run(None, {"x": X[:rows], "b": B})[0] for rows in (1, 2)][1:]


def turns() -> list[np.ndarray[Any, Any]]:
    """Run two sessions in turn in less memory than both take: weights are given back, and uploaded again."""
    with ExitStack() as opened:
        both = [
            opened.enter_context(vkep.InferenceSession(source, token="one", save_plans=False, max_memory=LIMIT))
            for source in LARGE
        ]
        return [one.run(None, FEEDS)[0] for one in both * 2]


def regions() -> list[np.ndarray[Any, Any]]:
    """Run data graphs (VGF) before and after steps of the Vulkan delegate."""
    with vkep.InferenceSession(REGIONS, token="one:vgf", prefer="vgf_first", save_plans=False) as opened:
        return [opened.run(None, FEEDS)[0] for _ in range(2)]


def onnxruntime() -> list[np.ndarray[Any, Any]]:
    """Register vkep's provider with ONNX Runtime, run a session on it, and unregister it, until no object is left."""
    import onnxruntime as ort

    import vkep.ort

    vkep.ort.register()
    try:
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        made = ort.InferenceSession(
            STATIC.SerializeToString(), options, providers=[(vkep.ort.EP_NAME, {"token": "one"})], enable_fallback=0
        )
        made.disable_fallback()
        return [made.run(None, FEEDS)[0] for _ in range(2)]
    finally:
        made = options = None
        gc.collect()
        vkep.ort.unregister()
        gc.collect()


def program() -> list[np.ndarray[Any, Any]]:
    """Run a .pte program."""
    return _program("vulkan.pte")


def delegate() -> list[np.ndarray[Any, Any]]:
    """Run a .pte program with a VGF delegate."""
    return _program("vgf.pte")


def _program(name: str) -> list[np.ndarray[Any, Any]]:
    from vkep.executorch import Program

    with Program.load(PROGRAMS / name, token="one") as loaded:
        for name in sorted(loaded.method_names):
            method = loaded.load_method(name)
            method.execute(ones(method))
    return [RIGHT]


WHAT: dict[str, Callable[[], list[np.ndarray[Any, Any]]]] = {
    f.__name__: f for f in (session, shared, parts, shapes, turns, program, regions, delegate, onnxruntime)
}


def of_onnxruntime(error: Exception) -> bool:
    """Whether an exception is ONNX Runtime's: for an error status of the provider, or for a missing device."""
    return any(text in str(error) for text in ("[ONNXRuntimeError]", "Unknown Provider Type"))


class Bystanders:
    """Two sessions that must not be affected: one on the context ``neighbour``, and one on a device of its own."""

    def __init__(self) -> None:
        self.near = vkep.InferenceSession(STATIC, token="neighbour", save_plans=False)
        self.far = vkep.InferenceSession(STATIC, context_mode="disabled", save_plans=False)

    def check(self, may_be_lost: bool) -> str:
        wrong = ""
        for name, one in (("near", self.near), ("far", self.far)):
            try:
                if not np.array_equal(one.run(None, FEEDS)[0], RIGHT):
                    wrong += f" the {name} session's answer is wrong;"
            except vkep.DeviceLostError:
                if name == "far" or not may_be_lost:
                    wrong += f" the {name} session lost its device;"
            except Exception as error:
                wrong += f" the {name} session raised {error!r};"
        return wrong

    def close(self) -> None:
        self.near.close()
        self.far.close()


class Cases:
    """Cases of one kind, one after the other."""

    def __init__(self, injector: Injector, what: str, lost: bool) -> None:
        self._injector, self._what, self._lost = injector, what, lost
        self._bystanders: Bystanders | None = None
        self._before: dict[str, int] = {}

    def one(self, at: int, which: int) -> tuple[str, str]:
        """Run one case. Returns the call that failed ("": no call or result is left to fail), and the error that was
        found."""
        injector = self._injector
        injector.quiet = True
        if self._bystanders is None:
            self._bystanders = Bystanders()
            for _ in range(2):  # the second run records another copy where memory is staged, as in `interrupts.closes`
                self._bystanders.check(False)
            self._before = vkep.live_counts()
        injector.arm(at, which, self._lost)
        said = len(validation_log)
        injector.quiet = False
        wrong = self._attempt()
        injector.quiet = True
        if not injector.hit:
            return "", wrong
        lost = injector.hit.endswith("DEVICE_LOST")
        wrong += self._bystanders.check(lost and self._what == "shared")
        try:
            if lost:
                self.close()
            else:
                no_object_left("after the fault", self._before)
            wrong += self._attempt(may_fail=False)
        except Exception as error:
            wrong += f" {error!r};"
        wrong += "".join(f" {message};" for message in complaints(since=said))
        return injector.hit, wrong

    def _attempt(self, may_fail: bool = True) -> str:
        try:
            found = WHAT[self._what]()
        except Exception as error:
            expected = may_fail and (isinstance(error, (GpuError, vkep.ArenaOutOfMemory)) or of_onnxruntime(error))
            return "" if expected else f" {'' if may_fail else 'the next time '}raised {error!r};"
        finally:
            settle_for_layers()
        return "" if all(np.array_equal(one, RIGHT) for one in found) else f" a wrong answer {found};"

    def close(self) -> None:
        """Close the bystanders; raises where they leave something."""
        bystanders, self._bystanders = self._bystanders, None
        if bystanders is not None:
            bystanders.close()
            no_object_left("after closing")


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0 where no case found an error."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--what", nargs="*", default=list(WHAT), choices=list(WHAT))
    parser.add_argument("--lost", action="store_true", help="lose the device at each call in turn")
    parser.add_argument("--most", type=int, default=10**9, help="cases of each kind, drawn by the seed")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(arguments)
    logging.getLogger("vkep").setLevel(logging.ERROR)
    logging.getLogger("gpu_shared").setLevel(logging.ERROR)
    injector, bad, total = Injector(), 0, 0
    with injector.installed():
        for what in given.what:
            began = time.monotonic()
            WHAT[what]()  # by now shaders are compiled and kernels are known
            settle_for_layers()
            injector.arm(-1, 0, given.lost)
            injector.quiet = False
            WHAT[what]()
            settle_for_layers()
            injector.quiet = True
            cases = [(at, which) for at, most in enumerate(injector.results) for which in range(most)]
            random.Random(given.seed).shuffle(cases)
            done: dict[str, int] = {}
            run = Cases(injector, what, given.lost)
            for at, which in cases:
                if sum(done.values()) >= given.most:
                    break
                hit, wrong = run.one(at, which)
                if hit:
                    done[hit] = done.get(hit, 0) + 1
                if wrong:
                    bad += 1
                    print(f"{what}, call {at}, {hit}:{wrong}", flush=True)
            run.close()
            total += sum(done.values())
            kinds = len({name.split()[0] for name in done})
            seconds = time.monotonic() - began
            print(f"{what}: {sum(done.values())} faults of {kinds} functions, {seconds:.0f} s", flush=True)
    print(f"{total} faults, {bad} with something wrong")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
