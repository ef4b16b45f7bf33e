"""Operands of norms, reductions, pools and recurrent layers that do not agree: a run is refused, and says why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

from gpu_shared.capabilities import DeviceCapabilities
from tests.ops.cases import model_of, on_vulkan
from vkep import InferenceSession, InvalidInputError, InvalidModelError
from vkep.dtypes import DTYPES
from vkep.ir.builder import Builder
from vkep.ir.tensor import Storage, Tensor
from vkep.ops.normalization import row_norm, softmax_over
from vkep.ops.random import draw
from vkep.ops.reduction import arg_max, reduce_axes, top_k_of
from vkep.passes.emit import emit
from vkep.passes.pipeline import run_passes
from vkep.passes.rewrite import Goal
from vkep.plan.records import Port, Range, Space

FLOAT = DTYPES["float32"]
#: steps, batch, inputs, hidden units
S, B, I, H = 3, 2, 4, 5
NORMS: dict[str, tuple[str, dict[str, tuple[int, ...]], dict[str, Any], str]] = {
    "instance scale": (
        "InstanceNormalization",
        {"x": (2, 3, 4), "s": (2,), "b": (3,)},
        {},
        r"scale has shape \[2\], expected \[3\]",
    ),
    "instance bias": (
        "InstanceNormalization",
        {"x": (2, 3, 4), "s": (3,), "b": (1,)},
        {},
        r"B has shape \[1\], expected \[3\]",
    ),
    "group scale": (
        "GroupNormalization",
        {"x": (2, 4, 3), "s": (2,), "b": (4,)},
        {"num_groups": 2},
        r"scale has shape \[2\], expected \[4\]",
    ),
    "group bias": (
        "GroupNormalization",
        {"x": (2, 4, 3), "s": (4,), "b": (4, 1)},
        {"num_groups": 2},
        r"bias has shape \[4, 1\], expected \[4\]",
    ),
    "groups": (
        "GroupNormalization",
        {"x": (2, 4, 3), "s": (4,), "b": (4,)},
        {"num_groups": 3},
        "3 groups of the channels",
    ),
    "layer scale": (
        "LayerNormalization",
        {"x": (2, 4), "s": (3,)},
        {},
        r"scale has shape \[3\].*broadcast to \[2, 4\]",
    ),
    "layer bias": (
        "LayerNormalization",
        {"x": (2, 4), "s": (4,), "b": (3, 4)},
        {},
        r"bias has shape \[3, 4\].*broadcast to \[2, 4\]",
    ),
    "rms scale": ("RMSNormalization", {"x": (2, 4), "s": (8,)}, {}, r"scale has shape \[8\].*broadcast to \[2, 4\]"),
    "batch variance": (
        "BatchNormalization",
        {"x": (2, 3, 4), "s": (3,), "b": (3,), "m": (3,), "v": (2,)},
        {},
        r"input_var has shape \[2\], expected \[3\]",
    ),
    "batch scale": (
        "BatchNormalization",
        {"x": (2, 3, 4), "s": (1,), "b": (3,), "m": (3,), "v": (3,)},
        {},
        r"scale has shape \[1\], expected \[3\]",
    ),
    "lrn size": ("LRN", {"x": (1, 3, 4, 4)}, {"size": 0}, "size is 0, expected at least 1"),
    "lp order": ("LpNormalization", {"x": (3, 4)}, {"p": 3}, "p is 3, expected 1 or 2"),
    "pool kernel": ("MaxPool", {"x": (1, 1, 4, 4)}, {"kernel_shape": [2]}, "kernel_shape.*1 entries.*2 spatial axes"),
    "pool strides": (
        "AveragePool",
        {"x": (1, 1, 4, 4)},
        {"kernel_shape": [2, 2], "strides": [1, 0]},
        "strides.*at least 1",
    ),
    "pool pads": ("MaxPool", {"x": (1, 1, 4)}, {"kernel_shape": [2], "pads": [-1, 0]}, "are not negative"),
    "pads of one side": ("LpPool", {"x": (1, 1, 4)}, {"kernel_shape": [2], "pads": [1]}, "2 are expected"),
}


def refused(model: onnx.ModelProto, values: dict[str, np.ndarray], reason: str) -> None:
    for info in model.graph.input:  # a model whose shapes say nothing opens
        info.type.tensor_type.ClearField("shape")
    with (
        InferenceSession(model) as session,
        pytest.raises(InvalidInputError, match=f"(?s){model.graph.node[0].op_type}.*{reason}"),
    ):
        session.run(None, values)


@pytest.mark.parametrize(("op_type", "shapes", "attributes", "reason"), NORMS.values(), ids=NORMS)
def test_norms_and_pools(
    op_type: str, shapes: dict[str, tuple[int, ...]], attributes: dict[str, Any], reason: str
) -> None:
    values = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    refused(model_of(op_type, values, **attributes), values, reason)


def test_skip_layer_norm() -> None:
    shapes = {"x": (1, 2, 8), "skip": (1, 2, 8), "gamma": (4,)}
    values = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    model = model_of("SkipLayerNormalization", values, domain="com.microsoft")
    refused(model, values, r"gamma has shape \[4\], expected \[8\]")


@pytest.mark.parametrize("op_type", ["LayerNormalization", "RMSNormalization"])
def test_factors_that_broadcast_to_the_whole_input(op_type: str) -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(2, 3, 4)).astype(np.float32)
    for shape in ((), (1,), (1, 1, 4), (1, 1, 1), (4,), (2, 1, 4), (2, 3, 1)):
        factors = {"s": rng.normal(size=shape).astype(np.float32)}
        if op_type == "LayerNormalization":
            factors["b"] = rng.normal(size=(2, 3, 4)).astype(np.float32)
        wide = x.astype(np.float64)
        centred = wide - (wide.mean(-1, keepdims=True) if "b" in factors else 0)
        want = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * factors["s"] + factors.get("b", 0)
        [got] = on_vulkan(model_of(op_type, {"x": x, **factors}), {"x": x, **factors})
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("op_type", ["Softmax", "LogSoftmax", "Hardmax"])
@pytest.mark.parametrize("opset", [11, 13])
def test_axes_beyond_the_rank(op_type: str, opset: int) -> None:
    values = {"x": np.ones((2, 3), np.float32)}
    for axis in (2, -3):
        refused(model_of(op_type, values, opset=opset, axis=axis), values, f"axis {axis} is out of range for rank 2")


def test_top_k_beyond_the_axis() -> None:
    values: dict[str, np.ndarray[Any, Any]] = {"x": np.ones((3, 5), np.float32), "k": np.array([6], np.int64)}
    model = model_of("TopK", values, outputs=("v", "i"), constants=("k",))
    refused(model, {"x": values["x"]}, "k is 6, expected 0 to 5")


WRONG = {
    "w": ((1, H, I + 1), "W"),
    "r": ((2, H, H), "R"),
    "b": ((1, H), "B"),
    "sequence_lens": ((1,), "sequence_lens"),
    "h": ((1, 1, H), "initial_h"),
    "c": ((1, 1, H), "initial_c"),
    "p": ((1, H), "P"),
}


@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize(
    ("op_type", "wrong"),
    [(op, name) for op in ("RNN", "GRU", "LSTM") for name in WRONG if op == "LSTM" or name not in "cp"],
)
def test_recurrent_layers(op_type: str, wrong: str, layout: int) -> None:
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[op_type]
    state = (B, 1, H) if layout else (1, B, H)
    shapes: dict[str, tuple[int, ...]] = {
        "x": (B, S, I) if layout else (S, B, I),
        "w": (1, gates * H, I),
        "r": (1, gates * H, H),
        "b": (1, 2 * gates * H),
        "sequence_lens": (B,),
        "h": state,
    }
    if op_type == "LSTM":
        shapes |= {"c": state, "p": (1, 3 * H)}
    expected, (shapes[wrong], name) = shapes[wrong], WRONG[wrong]
    values = {n: np.ones(s, np.int32 if n == "sequence_lens" else np.float32) for n, s in shapes.items()}
    outputs = ("y", "y_h", "y_c") if op_type == "LSTM" else ("y", "y_h")
    model = model_of(op_type, values, outputs=outputs, hidden_size=H, layout=layout)
    got, want = (", ".join(map(str, shape)) for shape in (shapes[wrong], expected))
    refused(model, values, rf"{name} has shape \[{got}\], expected \[{want}\]")


@pytest.mark.parametrize(
    "compute",
    [
        lambda b, x: softmax_over(b, x, 2, 0, 3),
        lambda b, x: row_norm(b, x, b.full([3], 1, FLOAT), epsilon=0.0),
        lambda b, x: reduce_axes(b, "sum", x, [0], False),
        lambda b, x: arg_max(b, x, axis=0),
        lambda b, x: top_k_of(b, x, 2, 0, 1),
        lambda b, x: draw(b, x.shape, 1.0),
    ],
)
def test_tensors_without_elements_are_not_computed(compute: Callable[[Builder, Tensor], Any]) -> None:
    b = Builder(DeviceCapabilities.for_tests())
    compute(b, Tensor.contiguous(FLOAT, (2, 0, 3)))
    assert b.ops == []


def test_a_sum_over_an_empty_slice_reads_nothing() -> None:
    """The slice begins within the input, and has no bytes of it."""
    x = Tensor.contiguous(FLOAT, (4, 4), Storage(64, port=0))
    y = Tensor.contiguous(FLOAT, (3,), Storage(12, port=1))
    b = Builder(DeviceCapabilities.for_tests())
    b.copy(reduce_axes(b, "sum", x.slice(0, 1, 3).slice(1, 0, 0), [1], False), out=y)
    ports = [Port(t, "float32", shape, n, t == "x") for t, shape, n in (("x", (4, 4), 64), ("y", (3,), 12))]
    plan = emit(run_passes(b.ops, Goal([y], b.caps)), ports, b.caps).plan
    assert plan.dispatches[0].reads == (Range(Space.PORT, 0, 0, 0),)


@pytest.mark.parametrize("constants", [("w", "r"), ("w", "r", "len")])
@pytest.mark.parametrize("carried", [True, False])
@pytest.mark.parametrize("wrong", [-1, S + 1])
@pytest.mark.every_case
def test_sequence_lengths_beyond_the_steps(
    monkeypatch: pytest.MonkeyPatch, wrong: int, carried: bool, constants: tuple[str, ...]
) -> None:
    if not carried:
        monkeypatch.setattr("vkep.ops.recurrent_layer.carries", lambda *_: False)
    values: dict[str, Any] = {
        "x": np.ones((S, B, I), np.float32),
        "w": np.ones((1, 3 * H, I), np.float32),
        "r": np.ones((1, 3 * H, H), np.float32),
        "b": None,
        "len": np.array([S, wrong], np.int32),
    }
    model = model_of("GRU", values, outputs=("y", "y_h"), constants=constants, hidden_size=H)
    feeds = {name: values[name] for name in ("x", "len") if name not in constants}
    message = rf"GRU.*sequence_lens is outside \[0, {S}\]"
    if "len" in constants:
        with pytest.raises(InvalidModelError, match=message):
            InferenceSession(model)
        return
    with InferenceSession(model) as session:
        for _ in range(2):
            with pytest.raises(InvalidInputError, match=message):
                session.run(None, feeds)
            session.run(None, feeds | {"len": np.array([S, 0], np.int32)})
