"""Operators that a user declared, in models that ONNX Runtime runs: it learns of them from the provider."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from tests.ort.conftest import OpenSession
from vkep.ir.builder import Builder
from vkep.ir.tensor import Tensor
from vkep.ops import operator, registry

F, I64 = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64


def halfway(b: Builder, x: Tensor, y: Tensor | None = None, *, weight: float = 0.5) -> Tensor:
    """x, or what lies between it and y."""
    return x if y is None else b.pointwise("mix({0}, {1}, {2})", x, y, weight)


def above(b: Builder, x: Tensor, *limits: Tensor) -> tuple[Tensor, ...]:
    """For each limit whether x is above it, as int64 numbers."""
    int64 = b.constant(np.zeros(1, np.int64)).dtype
    return tuple(b.cast(b.pointwise("({0} > {1} ? 1.0 : 0.0)", x, limit), int64) for limit in limits)


@pytest.fixture(autouse=True)
def _declared() -> Iterator[None]:
    operator("Halfway", domain="com.example", types={"x y": ("float32",)})(halfway)
    operator("Above", domain="org.example.other", since=2, types={"x": ("float32",)})(above)
    yield
    del registry._OPERATORS["com.example", "Halfway"], registry._OPERATORS["org.example.other", "Above"]


def _model(elem_type: int = F) -> bytes:
    nodes = [
        helper.make_node("Halfway", ["x", "z"], ["h"], domain="com.example", weight=0.25),
        helper.make_node("Halfway", ["h"], ["same"], domain="com.example"),
        helper.make_node("Neg", ["same"], ["n"]),
        helper.make_node("Above", ["n", "x", "z"], ["a", "c"], domain="org.example.other"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, elem_type, ["n"]) for name in "xz"],
        [
            helper.make_tensor_value_info("n", elem_type, ["n"]),
            *(helper.make_tensor_value_info(n, I64, ["n"]) for n in "ac"),
        ],
    )
    opsets = [("", 20), ("com.example", 1), ("org.example.other", 2)]
    return helper.make_model(graph, opset_imports=[helper.make_opsetid(*o) for o in opsets]).SerializeToString()


def test_a_model_with_them_runs_on_vulkan(session: OpenSession) -> None:
    x, z = np.array([1, -2, 3], np.float32), np.array([5, 6, -7], np.float32)
    n, a, c = session(_model()).run(None, {"x": x, "z": z})
    np.testing.assert_allclose(n, -(0.75 * x + 0.25 * z))
    np.testing.assert_array_equal(a, n > x)
    np.testing.assert_array_equal(c, n > z)


def test_nodes_that_vulkan_declines_are_an_error(session: OpenSession, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(onnxruntime.capi.onnxruntime_pybind11_state.Fail, match=r"Halfway.* type inference failed"):
        session(_model(onnx.TensorProto.DOUBLE), all_on_vulkan=False)
    assert "com.example.Halfway" in caplog.text and "input 0 is float64; the kernels take float32" in caplog.text


def test_options_that_name_devices_know_them(registered: Any) -> None:
    options = onnxruntime.SessionOptions()
    device = next(d for d in onnxruntime.get_ep_devices() if d.ep_name == registered.get_ep_name())
    options.add_provider_for_devices([device], {})
    x = np.array([1, -2], np.float32)
    n, _, _ = onnxruntime.InferenceSession(_model(), options).run(None, {"x": x, "z": x})
    np.testing.assert_allclose(n, -x)


def test_options_serve_several_sessions(registered: Any) -> None:
    options = onnxruntime.SessionOptions()
    for _ in range(2):
        onnxruntime.InferenceSession(_model(), options, providers=[registered.get_ep_name()])


@pytest.mark.parametrize(("version", "added"), [(1, 1.0), (2, 100.0), (3, 100.0)])
def test_the_models_import_selects_the_version(session: OpenSession, version: int, added: float) -> None:
    operator("Shifted", domain="com.example", until=1, types={"x": ("float32",)})(
        lambda b, x: b.pointwise("add", x, 1.0)
    )
    operator("Shifted", domain="com.example", since=2, types={"x": ("float32",)})(
        lambda b, x: b.pointwise("add", x, 100.0)
    )
    try:
        infos = [helper.make_tensor_value_info(name, F, [2]) for name in "xy"]
        graph = helper.make_graph(
            [helper.make_node("Shifted", ["x"], ["y"], domain="com.example")], "g", infos[:1], infos[1:]
        )
        opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.example", version)]
        proto = helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()
        assert session(proto).run(None, {"x": np.zeros(2, np.float32)})[0].tolist() == [added] * 2
    finally:
        del registry._OPERATORS["com.example", "Shifted"]
