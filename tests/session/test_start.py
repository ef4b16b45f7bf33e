"""The start of a process: what is imported when, and the context that opens while a session reads its model."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vkep
from gpu_shared import SharedGpuCompileSpec, SharedGpuContext, SharedGpuContextRegistry
from tests.session.models import ADD_RELU
from vkep import InferenceSession
from vkep.graph import load_model
from vkep.session import contexts, session_state

FEEDS = {"x": np.ones((2, 3), np.float32), "b": np.ones(3, np.float32)}
WAIT_S = 120


@pytest.fixture
def makers(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the threads that made contexts."""
    names: list[str] = []
    real = vars(SharedGpuContext)["create"].__func__

    def create(cls: type[SharedGpuContext], *args: Any, **options: Any) -> SharedGpuContext:
        names.append(threading.current_thread().name)
        made: SharedGpuContext = real(cls, *args, **options)
        return made

    monkeypatch.setattr(SharedGpuContext, "create", classmethod(create))
    return names


def _helpers() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("vkep-context")]


def _in_a_new_process(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_naming_the_session_opens_and_imports_little() -> None:
    """A process may name it and fork, and what it imports while the driver opens costs no time of its own."""
    code = (
        "import sys, threading, vkep\n"
        "from vkep import InferenceSession, SessionOptions\n"
        "from gpu_shared import vk\n"
        "heavy = {'numpy', 'onnx', 'ml_dtypes', 'vulkan', '_cffi_backend', 'vkep.session.session_state'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "assert vk._loaded is None and threading.active_count() == 1\n"
    )
    _in_a_new_process(code)


def test_a_session_imports_nothing_that_most_do_without() -> None:
    """Operators, data graphs, Kompute, reflection of shaders: tens of milliseconds of a start that does not use them."""
    code = (
        "import sys, vkep.session.session_state\n"
        "left = {'vkep.ops.elementwise', 'vkep.device.datagraph.delegate', 'vkep.vgf', 'vkep.placement.kompute',\n"
        "        'vkep.placement.partition', 'vkep.shaders.reflect',\n"
        "        'vkep.session.reports.report', 'onnxruntime', 'kp', 'vulkan'} & set(sys.modules)\n"
        "assert not left, left\n"
    )
    _in_a_new_process(code)


def test_the_context_opens_while_the_model_is_read(
    makers: list[str], no_leak: Callable[[], dict[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    opening, reading = threading.Event(), threading.Event()
    resolve, load = contexts.resolve_context, load_model

    def slow_resolve(options: Any) -> SharedGpuContext:
        opening.set()
        assert reading.wait(WAIT_S), "the model is not read before the context is there"
        return resolve(options)

    def slow_load(*args: Any, **options: Any) -> Any:
        assert opening.wait(WAIT_S), "the context is not opened before the model is read"
        reading.set()
        return load(*args, **options)

    monkeypatch.setattr(contexts, "resolve_context", slow_resolve)
    monkeypatch.setattr(session_state, "load_model", slow_load)
    with InferenceSession(ADD_RELU, token="ahead") as session:
        assert _helpers() == []
        assert len(makers) == 1 and makers != [threading.current_thread().name]
        np.testing.assert_array_equal(session.run(None, FEEDS)[0], np.full((2, 3), 2, np.float32))
        assert no_leak() != {}


def test_a_model_that_cannot_be_read_leaves_no_context(
    makers: list[str], no_leak: Callable[[], dict[str, int]]
) -> None:
    with pytest.raises(vkep.InvalidModelError, match="is not an ONNX model"):
        InferenceSession(b"nothing", token="no model")
    assert len(makers) == 1, "it was being opened"
    assert _helpers() == []
    assert ("no model", 0) not in SharedGpuContextRegistry.get().keys()  # noqa: SIM118  # no mapping
    assert no_leak() == {}


def test_a_missing_file_opens_no_driver(makers: list[str], vulkan: object, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no model file"):
        InferenceSession(tmp_path / "none.onnx", token="no file")
    assert makers == []


def test_the_models_error_comes_before_the_drivers(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*args: Any, **options: Any) -> None:
        raise vkep.DriverNotFoundError("loading Vulkan", hint="install a driver")

    monkeypatch.setattr(SharedGpuContext, "create", none)
    with pytest.raises(vkep.InvalidModelError, match="is not an ONNX model"):
        InferenceSession(b"nothing", token="neither")
    with pytest.raises(vkep.DriverNotFoundError, match="install a driver"):
        InferenceSession(ADD_RELU, token="neither")
    assert _helpers() == []


def test_a_context_that_is_there_is_found_without_a_thread(
    makers: list[str], no_leak: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    with InferenceSession(ADD_RELU, token="found") as first:
        monkeypatch.setattr(contexts, "Started", None)  # would be a TypeError
        with InferenceSession(ADD_RELU, token="found") as second:
            assert second.context is first.context
        with InferenceSession(ADD_RELU, context=first.context) as third:
            assert third.context is first.context
        with pytest.raises(vkep.ContextNotFoundError):
            InferenceSession(ADD_RELU, token="not there", context_mode="lookup_only")
    assert len(makers) == 1


def test_a_session_on_the_context_that_is_being_made_is_an_error() -> None:
    """Not a thread that waits for its own maker."""
    spec = SharedGpuCompileSpec(token="made by a session on it")

    def make() -> SharedGpuContext:
        InferenceSession(ADD_RELU, token=spec.token).close()
        raise AssertionError("it has no context yet")

    with pytest.raises(RuntimeError, match="made by a session on it"):
        SharedGpuContextRegistry.get().resolve(spec, make)
    assert _helpers() == []
