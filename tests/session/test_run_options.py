"""Runs that are terminated, tagged logs, runs in other threads."""

from __future__ import annotations

import gc
import logging
import sys
import threading
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import numpy as np
import pytest

import vkep
from tests.session.models import ADD_RELU, CPU_MIDDLE, model
from tools.waiting import LONG_S, comes_true
from vkep import InferenceSession, InvalidInputError, OrtValue, RunOptions, RunTerminatedError

pytestmark = pytest.mark.gpu
Open = Callable[..., InferenceSession]
FEEDS = {"x": np.ones((2, 3), np.float32), "b": np.ones(3, np.float32)}
ENDLESS = model(
    """g (float[4] x) => (float[4] y) {
    n = Constant<value_int=1000000000>()
    c = Constant<value = bool {1}>()
    y = Loop(n, c, x) <body = b (int64 i, bool go, float[4] v) => (bool on, float[4] w) { on = Identity(go) w = Sin(v) }>
}"""
)


def test_a_loop_ends_when_another_thread_says_so(open_session: Open) -> None:
    session, options = open_session(ENDLESS), RunOptions(logid="endless")
    threading.Timer(0.5, lambda: setattr(options, "terminate", True)).start()
    with pytest.raises(RunTerminatedError, match="run 'endless': ended"):
        session.run(None, {"x": np.ones(4, np.float32)}, options)
    with pytest.raises(RunTerminatedError):
        session.run(None, {"x": np.ones(4, np.float32)}, options)


def test_a_run_in_another_thread_is_not_reported(open_session: Open) -> None:
    """Only runs that were given the options end."""
    session, told = open_session(ADD_RELU), RunOptions(terminate=True)
    with pytest.raises(RunTerminatedError):
        session.run(None, FEEDS, told)
    assert session.run(None, FEEDS)[0][0, 0] == 2
    assert session.run(None, FEEDS, RunOptions())[0][0, 0] == 2
    binding = session.io_binding()
    for name, array in FEEDS.items():
        binding.bind_cpu_input(name, array)
    binding.bind_output("y")
    with pytest.raises(RunTerminatedError):
        session.run_with_iobinding(binding, told)


def test_the_tag_and_the_severity_of_what_a_run_logs(vulkan: object, caplog: pytest.LogCaptureFixture) -> None:
    feeds = {"x": np.ones((2, 3, 3), np.float32)}
    dynamic = model("g (float[n,3,3] x) => (float[n] y) { a = Mul(x, x) d = Det(a) y = Neg(d) }")
    with caplog.at_level(logging.INFO, logger="vkep.session"):
        for options, expected in ((RunOptions(logid="mine"), True), (RunOptions(log_severity_level=2), False)):
            caplog.clear()
            with InferenceSession(dynamic) as session:
                session.run(None, feeds, options)
            messages = [r.getMessage() for r in caplog.records if "on the CPU: Det" in r.getMessage()]
            assert bool(messages) is expected
            assert all(m.startswith("mine: on the CPU") for m in messages)


def test_run_options_of_the_wrong_kind(open_session: Open) -> None:
    session: Any = open_session(ADD_RELU)
    with pytest.raises(TypeError, match=r"run_options is of <class 'dict'>, expected RunOptions of vkep"):
        session.run(None, FEEDS, {"terminate": True})
    options: Any = RunOptions()
    for name, value, error in (
        ("terminat", True, AttributeError),
        ("terminate", 1, TypeError),
        ("log_severity_level", 5, ValueError),
    ):
        with pytest.raises(error, match=name):
            setattr(options, name, value)
    options.tag = "t"
    assert options.logid == "t" and "'t'" in repr(options)


def test_the_severity_of_all_that_is_logged() -> None:
    loggers = [logging.getLogger(name) for name in ("vkep", "gpu_shared")]
    before = [logger.level for logger in loggers]
    try:
        vkep.set_default_logger_severity(3)
        assert [logger.level for logger in loggers] == [logging.ERROR] * 2
        with pytest.raises(ValueError, match="severity is 5, expected 0 to 4"):
            vkep.set_default_logger_severity(5)
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


def test_run_async(open_session: Open, caplog: pytest.LogCaptureFixture) -> None:
    session = open_session(ADD_RELU)
    got: list[Any] = []
    for k in range(20):
        session.run_async(["y"], {**FEEDS, "b": np.full(3, k, np.float32)}, lambda *a: got.append(a), k)
    assert comes_true(lambda: len(got) == 20)
    assert sorted((data, float(results[0][0, 0]), error) for results, data, error in got) == [
        (k, k + 1.0, "") for k in range(20)
    ]
    with pytest.raises(InvalidInputError, match="unknown"):
        session.run_async(None, {**FEEDS, "z": FEEDS["b"]}, print)
    with pytest.raises(TypeError, match="callback is None"):
        session.run_async(None, FEEDS, None)  # type: ignore[arg-type]
    session.run_async(None, FEEDS, lambda *a: got.append(a), "failed", RunOptions(terminate=True))
    session.run_async(None, FEEDS, lambda results, data, error: 1 / 0)
    session.close()
    assert got[-1][0] == [] and got[-1][1] == "failed" and got[-1][2].startswith("RunTerminatedError")
    assert "the callback of run_async raised" in caplog.text
    with pytest.raises(vkep.ClosedError):
        session.run_async(None, FEEDS, print)


def test_a_callback_may_close_the_session(vulkan: object) -> None:
    session, done = InferenceSession(ADD_RELU, token="closing"), threading.Event()

    def close(*result: object) -> None:
        session.close()
        done.set()

    session.run_async(None, FEEDS, close)
    assert done.wait(LONG_S)


def test_the_description_of_a_session(open_session: Open) -> None:
    session = open_session(CPU_MIDDLE)
    assert repr(session) == f"<vkep.InferenceSession of the model, 3 nodes, on {session.report().device}>"
    session.close()
    assert repr(session).endswith("3 nodes, closed>")


def test_the_package_shows_its_own_names() -> None:
    public = {n for n in vars(vkep) if not n.startswith("_")}
    modules = {n for n in public if isinstance(getattr(vkep, n), type(sys))}
    assert all(getattr(vkep, n).__name__ == f"vkep.{n}" for n in modules)
    assert public - modules <= {*vkep.__all__, "capi"}  # of onnxruntime's package, for programs that read it there
    assert set(dir(vkep)) == {*vkep.__all__, "__version__"}
    assert all(getattr(vkep, name) is not None for name in vkep.__all__)


# ---- binding


def calls(work: Callable[[], object]) -> int:
    """How many functions ``work`` calls, C's included, when it runs again: the first time may import and fill caches."""
    work()
    count = 0

    def watch(frame: FrameType, event: str, arg: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    gc.disable()  # calls finalizers
    sys.setprofile(watch)
    try:
        work()
    finally:
        sys.setprofile(None)
        gc.enable()
    return count


def test_to_bind_costs_the_same_however_many_are_bound(open_session: Open) -> None:
    made: dict[int, list[int]] = {}
    array = np.ones(4, np.float32)
    for count in (2, 65):
        inputs = ", ".join(f"float[4] x{k}" for k in range(count))
        outputs = ", ".join(f"float[4] y{k}" for k in range(count))
        nodes = " ".join(f"y{k} = Neg(x{k})" for k in range(count))
        session = open_session(model(f"g ({inputs}) => ({outputs}) {{ {nodes} }}"))
        binding = session.io_binding()
        tensors = [(session.device_tensor(array), session.empty_device_tensor((4,))) for _ in range(count)]
        for k, (x, y) in enumerate(tensors[:-1]):
            binding.bind_input(f"x{k}", x)
            binding.bind_output(f"y{k}", y)
        last, (x, y), value = count - 1, tensors[-1], OrtValue.ortvalue_from_numpy(array)
        made[count] = [
            calls(partial(binding.bind_input, f"x{last}", x)),
            calls(partial(binding.bind_cpu_input, f"x{last}", array)),
            calls(partial(binding.bind_ortvalue_input, f"x{last}", value)),
            calls(partial(binding.bind_output, f"y{last}", y)),
            calls(partial(binding.bind_output, f"y{last}", device="cpu")),
            calls(partial(binding.bind_output, f"y{last}", "cuda", 0)),
        ]
        session.run_with_iobinding(binding)
        assert len(binding.get_outputs()) == count and binding.get_outputs()[-1].numpy()[0] == -1
    assert made[2] == made[65] and max(made[2]) < 20


def test_arguments_that_a_binding_refuses(open_session: Open) -> None:
    session = open_session(ADD_RELU)
    binding: Any = session.io_binding()
    x = OrtValue.ortvalue_from_numpy(FEEDS["x"], "gpu")
    pointer = x.data_ptr()
    with pytest.raises(InvalidInputError, match=r"no data_ptr\(\) of a vkep\.OrtValue for the GPU"):
        binding.bind_input("x", "cuda", 0, np.float32, [2, 3], 0x7F00_0000_0000)
    with pytest.raises(InvalidInputError, match="float16 at the address of an OrtValue of float32"):
        binding.bind_input("x", "cuda", 0, np.float16, [2, 3], pointer)
    with pytest.raises(ValueError, match="element_type, shape and buffer_ptr belong together"):
        binding.bind_input("x", "cpu", 0, np.float32)
    with pytest.raises(ValueError, match="device_type is 'npu', expected 'cpu' or one of"):
        binding.bind_output("y", "npu")
    with pytest.raises(InvalidInputError, match="is an OrtValue for device 7; the session runs on device"):
        binding.bind_ortvalue_input("x", OrtValue.ortvalue_from_numpy(FEEDS["x"], "gpu", 7))
    with pytest.raises(InvalidInputError, match="nothing was written"):
        OrtValue.ortvalue_from_shape_and_type([2, 3], 1, "gpu").numpy()
    with pytest.raises(ValueError, match="got an array of float64"):
        x.update_inplace(np.ones((2, 3)))
    out = np.empty((2, 2), np.float32)
    binding.bind_cpu_input("x", FEEDS["x"])
    binding.bind_cpu_input("b", FEEDS["b"])
    binding.bind_output("y", "cpu", 0, np.float32, out.shape, out.ctypes.data)
    with pytest.raises(InvalidInputError, match="output 'y' is float32"):
        session.run_with_iobinding(binding)
    del x
    with pytest.raises(InvalidInputError, match="no data_ptr"):
        binding.bind_input("x", "cuda", 0, np.float32, [2, 3], pointer)
