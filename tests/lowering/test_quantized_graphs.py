"""Models with QuantizeLinear and DequantizeLinear around their operators: their weights are constants, and each operator's
quantization is part of its kernel. Against ONNX Runtime without optimization."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tools.ort_cpu import cpu_session
from vkep import InferenceSession

Array = np.ndarray[Any, Any]
Open = Callable[..., InferenceSession]
CONV = {"op": "Conv", "x": (2, 6, 9, 7), "w": (8, 6, 3, 3), "attributes": {"pads": [1, 1, 1, 1], "strides": [2, 1]}}
GROUPED = {"op": "Conv", "x": (1, 6, 5, 5), "w": (6, 1, 3, 3), "attributes": {"group": 6}}
MATMUL = {"op": "MatMul", "x": (3, 5, 17), "w": (17, 11), "attributes": {}}
GEMM = {"op": "Gemm", "x": (5, 17), "w": (11, 17), "attributes": {"transB": 1}}
#: the axis of a weight's output channels
CHANNELS = {"Conv": 0, "MatMul": 1, "Gemm": 0}


class _Quantized:
    """A model that grows by nodes; ``plain`` leaves QuantizeLinear and DequantizeLinear out."""

    def __init__(self, opset: int, kind: Any, plain: bool) -> None:
        self.opset, self.kind, self.plain = opset, np.dtype(kind), plain
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.rng = np.random.default_rng(5)

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        name = f"{op}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], **attributes))
        return name

    def constant(self, values: Array) -> str:
        self.constants.append(numpy_helper.from_array(values, f"c{len(self.constants)}"))
        return self.constants[-1].name

    def quantized(self, x: str, scale: float) -> str:
        """``x`` to codes and back."""
        if self.plain:
            return x
        zero = 3 if self.kind == np.int8 else 131
        step = [self.constant(np.array(scale, np.float32)), self.constant(np.array(zero, self.kind))]
        return self.add("DequantizeLinear", self.add("QuantizeLinear", x, *step), *step)

    def weight(self, shape: tuple[int, ...], axis: int | None) -> str:
        codes = self.rng.integers(-128, 128, shape).astype(np.int8)
        if self.plain:
            return self.constant(codes.astype(np.float32) / 64)
        scale = self.rng.uniform(0.01, 0.03, () if axis is None else shape[axis]).astype(np.float32)
        given = [self.constant(a) for a in (codes, scale, np.zeros(scale.shape, np.int8))]
        return self.add("DequantizeLinear", *given, **({} if axis is None else {"axis": axis}))

    def model(self, shape: tuple[int, ...], y: str) -> onnx.ModelProto:
        x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)
        graph = helper.make_graph(self.nodes, "g", [x], [onnx.ValueInfoProto(name=y)], self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=9)


def _model(
    layer: dict[str, Any], opset: int, kind: Any, per_channel: bool, activation: str, plain: bool
) -> onnx.ModelProto:
    m = _Quantized(opset, kind, plain)
    axis = CHANNELS[layer["op"]]
    inputs = [m.quantized("x", 0.02), m.weight(layer["w"], axis if per_channel else None)]
    bias = m.constant(m.rng.uniform(-1, 1, layer["w"][axis]).astype(np.float32))
    y = m.add(layer["op"], *inputs, *([] if layer["op"] == "MatMul" else [bias]), **layer["attributes"])
    y = m.add("Add", y, bias) if layer["op"] == "MatMul" else y
    y = m.add(activation, y) if activation else y
    return m.model(layer["x"], m.quantized(y, 0.05))


@pytest.mark.parametrize(("kind", "activation"), [(np.int8, ""), (np.uint8, "Relu")])
@pytest.mark.parametrize(("opset", "per_channel"), [(10, False), (13, True), (21, False)])
@pytest.mark.parametrize("layer", [CONV, GROUPED, MATMUL, GEMM], ids=["conv", "depthwise", "matmul", "gemm"])
def test_quantization_is_part_of_the_kernel(
    open_session: Open, layer: dict[str, Any], opset: int, kind: Any, per_channel: bool, activation: str
) -> None:
    made, plain = (_model(layer, opset, kind, per_channel, activation, p) for p in (False, True))
    sessions = [open_session(m) for m in (made, plain)]
    dispatches = [sum(i.dispatches for i in s.report().islands) for s in sessions]
    assert dispatches[0] == dispatches[1] + 1, "one more: of the input"
    x = np.random.default_rng(6).normal(0, 1, layer["x"]).astype(np.float32)
    [got], [want] = sessions[0].run(None, {"x": x}), cpu_session(made, optimized=False).run(None, {"x": x})
    steps = np.abs(got - want) / 0.05
    assert np.max(steps) < 1.001, "one step of the last quantizer, where a sum is near the middle of two"
    assert (steps > 0.5).mean() < 0.01


MOVES: dict[str, list[tuple[str, Any]]] = {
    "transposed": [("Transpose", {"perm": [1, 0, 2]})],
    "reshaped, transposed": [("Reshape", [15, 4]), ("Transpose", {"perm": [1, 0]})],
    "square": [("Reshape", [2, 30]), ("Slice", [0, 2]), ("Transpose", {"perm": [1, 0]})],
    "changed between": [("Transpose", {"perm": [1, 0, 2]}), ("Relu", {}), ("Transpose", {"perm": [1, 0, 2]})],
}


def _moved(moves: list[tuple[str, Any]], between: float) -> onnx.ModelProto:
    """Codes in steps of 0.02 are moved; after each movement they are quantized ``between`` (0: they are not)."""
    m = _Quantized(13, np.int8, plain=False)
    y = m.quantized("x", 0.02)
    for op, how in moves:
        if op == "Slice":
            axis = m.constant(np.array([1], np.int64))
            y = m.add(op, y, *(m.constant(np.array([k], np.int64)) for k in how), axis)
        else:
            y = m.add(op, y, **how) if isinstance(how, dict) else m.add(op, y, m.constant(np.array(how, np.int64)))
        y = m.quantized(y, between) if between else y
    return m.model((3, 5, 4), m.add("Neg", y))


@pytest.mark.parametrize("moves", MOVES.values(), ids=list(MOVES))
def test_moved_codes_are_quantized_once(open_session: Open, moves: list[tuple[str, Any]]) -> None:
    """In the step that they have; in another one they are quantized again."""
    x = np.random.default_rng(7).normal(0, 1, (3, 5, 4)).astype(np.float32)
    x[0, 0] = [1e9, -1e9, 0.01, 0.03]
    work = []
    for between in (0.0, 0.02, 0.03):
        made = _moved(moves, between)
        session = open_session(made)
        [got], [want] = session.run(None, {"x": x}), cpu_session(made, optimized=False).run(None, {"x": x})
        np.testing.assert_allclose(got, want, rtol=1e-6)
        work.append(sum(i.flops for i in session.report().islands))
    assert work[2] > work[1]
    assert (work[1] == work[0]) == all(op != "Relu" for op, _ in moves)


@pytest.mark.parametrize("shape", [(), (1,), (0,)])
def test_codes_of_few_axes(open_session: Open, shape: tuple[int, ...]) -> None:
    m = _Quantized(19, np.uint8, plain=False)
    m.quantized("x", 0.05)
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        m.nodes, "g", [value("x", 1, shape)], [value(m.nodes[-1].output[0], 1, shape)], m.constants
    )
    data = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9).SerializeToString()
    session, x = open_session(data), np.full(shape, 1.23, np.float32)
    assert set(session.report().counts) <= {"folded", "vulkan", "inlined"}
    np.testing.assert_allclose(session.run(None, {"x": x})[0], cpu_session(data).run(None, {"x": x})[0], rtol=1e-6)
