"""A user's own operator, as docs/adding-an-operator.md tells it: own domain, own GLSL file, one Python function."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from vkep import InferenceSession, UnsupportedModelError
from vkep.ir.builder import Builder
from vkep.ir.tensor import Tensor
from vkep.kernels.kernel import Kernel
from vkep.ops import operator, registry

pytestmark = pytest.mark.usefixtures("vulkan")

HYSTERESIS = Kernel(str(Path(__file__).parent / "data" / "hysteresis.comp"))


def hysteresis(b: Builder, x: Tensor, *, low: float = -1.0, high: float = 1.0) -> Tensor:
    if x.rank < 1:
        b.decline("a scalar has no steps")
    steps = x.shape[-1]
    rows = math.prod(x.shape[:-1])
    y = b.empty(x.dtype, x.shape)
    b.kernel(
        [b.contiguous(x)],
        [y],
        lambda target, inputs, outputs, _: [
            HYSTERESIS.call(
                grid=(-(-rows // 64),),
                operands={"x": inputs[0], "y": outputs[0]},
                params={"rows": rows, "steps": steps, "low": low, "high": high},
            )
        ],
    )
    return y


@pytest.fixture
def _declared() -> Iterator[None]:
    operator("Hysteresis", domain="com.example", types={"x": ("float32",)})(hysteresis)
    yield
    del registry._OPERATORS["com.example", "Hysteresis"]


def _model(elem_type: int = onnx.TensorProto.FLOAT, shape: tuple[int | str, ...] = ("rows", 40)) -> onnx.ModelProto:
    nodes = [
        helper.make_node("Mul", ["x", "two"], ["wide"]),
        helper.make_node("Hysteresis", ["wide"], ["state"], domain="com.example", low=-0.5),
        helper.make_node("Not", ["set"], ["y"]),
    ]
    nodes.insert(2, helper.make_node("Cast", ["state"], ["set"], to=onnx.TensorProto.BOOL))
    graph = helper.make_graph(
        nodes,
        "custom",
        [helper.make_tensor_value_info("x", elem_type, shape)],
        [helper.make_tensor_value_info("y", onnx.TensorProto.BOOL, None)],
        [helper.make_tensor("two", elem_type, [], [2])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20), helper.make_opsetid("com.example", 1)])


def _expected(x: np.ndarray) -> np.ndarray:
    state, rows = np.zeros(x.shape[0], bool), []
    for column in (2 * x).T:
        state = np.where(column > 1, True, np.where(column < -0.5, False, state))
        rows.append(~state)
    return np.array(rows).T


@pytest.mark.usefixtures("_declared")
def test_a_custom_operator_runs_among_others() -> None:
    rng = np.random.default_rng(4)
    with InferenceSession(_model(), fallback="error") as session:
        for rows in (3, 200):
            x = rng.normal(size=(rows, 40)).astype(np.float32)
            np.testing.assert_array_equal(session.run(None, {"x": x})[0], _expected(x))
        assert [n.where for n in session.report().nodes] == ["vulkan"] * 4


@pytest.mark.usefixtures("_declared")
def test_arguments_that_it_refuses_are_reported() -> None:
    with pytest.raises(UnsupportedModelError, match=r"Hysteresis.*float16.*float32"):
        InferenceSession(_model(onnx.TensorProto.FLOAT16, (2, 40)), fallback="error")


def test_without_the_declaration_the_model_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match=r"com\.example\.Hysteresis"):
        InferenceSession(_model(shape=(2, 40)))
