"""What the specification does not allow of operators that index: shapes are refused while planning, values while running."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.ops.cases import Array, model_of
from vkep import InferenceSession
from vkep.errors import InvalidInputError, InvalidModelError

MICROSOFT = "com.microsoft"


def f(*shape: int) -> Array:
    return np.zeros(shape, np.float32)


def g(*values: Any) -> Array:
    return np.array(values, np.float32)


def i(*values: Any) -> Array:
    return np.array(values, np.int64)


def session(op: str, inputs: tuple[Array | None, ...], opset: int = 23, **attributes: Any) -> InferenceSession:
    """One node whose inputs have no shape of their own."""
    named = {f"i{k}": value for k, value in enumerate(inputs)}
    outputs = ["y", "present_key", "present_value"] if op == "GroupQueryAttention" else ["y"]
    model = model_of(op, named, outputs=outputs, opset=opset, **attributes)
    for value in model.graph.input:
        rank = len(value.type.tensor_type.shape.dim)
        kind = value.type.tensor_type.elem_type
        value.CopyFrom(helper.make_tensor_value_info(value.name, kind, [f"{value.name}_{d}" for d in range(rank)]))
    return InferenceSession(onnx.ModelProto.FromString(model.SerializeToString()), fallback="error")


def feeds(inputs: tuple[Array | None, ...]) -> dict[str, Array]:
    return {f"i{k}": value for k, value in enumerate(inputs) if value is not None}


DISAGREE: list[tuple[str, tuple[Array | None, ...], dict[str, Any], str]] = [
    ("ScatterElements", (f(9), i(0, 1, 2), f(1)), {}, r"updates has shape \[1\], expected \[3\]"),
    ("ScatterND", (f(9), i([0], [1]), f(1)), {}, r"updates has shape \[1\], expected \[2\]"),
    ("ScatterND", (f(9, 4), i([0], [1]), f(2, 3)), {}, r"updates has shape \[2, 3\], expected \[2, 4\]"),
    ("GatherElements", (f(3, 2), i([0, 0, 0])), {}, "reach beyond the data"),
    ("GatherElements", (f(3, 2), i(0)), {}, "expected equal ranks"),
    ("GatherND", (f(3, 2), i([0, 0, 0])), {}, "3 coordinates for 2 axes"),
    ("GatherND", (f(3, 2), i([0], [0])), {"batch_dims": 1}, "equal batch axes"),
    ("NonMaxSuppression", (f(1, 2, 4), f(1, 1, 3), i(2)), {"opset": 11}, r"boxes has shape \[1, 2, 4\]"),
    ("NonMaxSuppression", (f(1, 3, 4), f(2, 1, 3), i(2)), {"opset": 11}, r"boxes has shape \[1, 3, 4\]"),
    ("NonMaxSuppression", (f(1, 3, 4), f(1, 1, 3), i(2), g(2)), {"opset": 11}, "iou_threshold is 2"),
    ("RoiAlign", (f(1, 1, 4, 4), f(3, 4), i(0)), {}, r"indices has shape \[1\], expected \[3\]"),
    ("RoiAlign", (f(1, 1, 4, 4), f(3, 2), i(0, 0, 0)), {}, r"rois has shape \[3, 2\], expected \[3, 4\]"),
    ("RoiAlign", (f(1, 1, 0, 4), f(1, 4), i(0)), {}, "without elements"),
    ("MaxRoiPool", (f(1, 1, 4, 4), f(3, 4)), {"pooled_shape": [2, 2]}, r"rois has shape \[3, 4\]"),
    ("GridSample", (f(1, 1, 4, 4), f(1, 2, 2, 1)), {}, r"grid has shape \[1, 2, 2, 1\], expected \[1, 2, 2, 2\]"),
    ("GridSample", (f(2, 1, 4, 4), f(1, 2, 2, 2)), {}, r"grid has shape \[1, 2, 2, 2\], expected \[2, 2, 2, 2\]"),
    ("GridSample", (f(1, 1, 4, 4), f(1, 2, 2)), {}, "1 axes of points"),
    ("DeformConv", (f(1, 4, 6, 6), f(1, 1, 3, 3), f(1, 18, 4, 4)), {}, "1 groups do not fit together"),
    ("DeformConv", (f(1, 1, 6, 6), f(1, 1, 3, 3), f(1, 16, 4, 4)), {}, r"offset has shape \[1, 16, 4, 4\]"),
    ("DeformConv", (f(2, 1, 6, 6), f(1, 1, 3, 3), f(1, 18, 4, 4)), {}, r"offset has shape \[1, 18, 4, 4\]"),
    ("DeformConv", (f(1, 1, 6, 6), f(1, 1, 3, 3), f(1, 18, 4, 4), None, f(1, 8, 4, 4)), {}, "mask has shape"),
    ("DeformConv", (f(1, 1, 6, 6), f(1, 1, 3, 3), f(1, 18, 4, 4)), {"offset_group": 2}, "2 offset groups"),
    ("DeformConv", (f(1, 1, 6, 6), f(1, 1, 3, 3), f(1, 18, 4, 4)), {"kernel_shape": [4, 4]}, "kernel_shape"),
    ("DeformConv", (f(1, 1, 6, 6), f(1, 1, 3, 3), f(1, 18, 4, 4), f(2)), {}, r"bias has shape \[2\]"),
    ("OneHot", (i(0, 1), i(3), f(1)), {}, r"values has shape \[1\], expected \[2\]"),
    ("OneHot", (i(0, 1), i(3), f(0)), {}, r"values has shape \[0\], expected \[2\]"),
    ("OneHot", (i(0, 1), i(-3), f(2)), {}, "depth is -3"),
    ("Col2Im", (f(1, 5, 4), i(5, 5), i(1, 5)), {}, r"columns have shape \(1, 5, 4\)"),
    ("Col2Im", (f(1, 0, 4), i(3, 3), i(2, 2)), {}, r"columns have shape \(1, 0, 4\)"),
    ("Pad", (f(2, 3), i(0, 3, 0, 0)), {"mode": "reflect"}, "too few elements to reflect"),
    ("Pad", (f(2, 3), i(0, 1, 0)), {}, "expected two for each"),
    ("Pad", (f(2, 3), i(0, 1, 0, 0), f(2)), {}, r"constant_value has shape \[2\]"),
    ("Resize", (f(2, 3), None, g(1, 2)), {"axes": [1, 1]}, r"axes \[1, 1\]"),
    ("MaxUnpool", (f(1, 1, 2, 2), np.zeros((1, 1, 2, 1), np.int64)), {"kernel_shape": [2, 2]}, "indices has shape"),
    ("MaxUnpool", (f(1, 1, 2, 2), np.zeros((1, 1, 2, 2), np.int64)), {"kernel_shape": [2]}, "do not fit an input"),
    ("AffineGrid", (f(1, 2, 3), i(2, 1, 2, 2)), {}, r"matrices \[1, 2, 3\] for images of size"),
    ("AffineGrid", (f(1, 2, 3), i(1, 1, 0, 2)), {}, r"matrices \[1, 2, 3\] for images of size"),
    ("ReverseSequence", (f(2, 3), i(1, 1)), {}, r"sequence_lens has shape \[2\], expected \[3\]"),
    ("TensorScatter", (f(2, 4, 2), f(1, 1, 2), i(0)), {"opset": 24}, "a cache of shape"),
    ("TensorScatter", (f(2, 4, 2), f(2, 1, 2), i(0)), {"opset": 24}, r"write_indices has shape \[1\], expected \[2\]"),
    ("TensorScatter", (f(2, 4, 2), f(2, 5, 2)), {"opset": 24, "mode": "circular"}, "a cache of shape"),
    ("RotaryEmbedding", (f(1, 2, 3, 4), f(5, 2), f(4, 2), i([0, 0, 0])), {}, r"sin_cache has shape \[4, 2\]"),
    ("RotaryEmbedding", (f(1, 2, 3, 6), f(5, 2), f(5, 2), i([0, 0, 0])), {}, r"cos_cache has shape \[5, 2\]"),
    ("RotaryEmbedding", (f(2, 2, 3, 4), f(5, 2), f(5, 2), i([0, 0, 0])), {}, r"position_ids has shape \[1, 3\]"),
    ("Det", (f(2, 3),), {}, "square matrices"),
]  # fmt: skip


@pytest.mark.parametrize(("op", "inputs", "attributes", "told"), DISAGREE)
def test_operands_that_disagree_are_refused(
    op: str, inputs: tuple[Array | None, ...], attributes: dict[str, Any], told: str
) -> None:
    with session(op, inputs, **attributes) as model, pytest.raises(InvalidInputError, match=told):
        model.run(None, feeds(inputs))


ROTARY = (f(1, 2, 1, 4), f(5, 2), f(5, 2))
IDS = np.zeros((1, 2), np.int32)
#: operator, inputs that are right, the input that may be wrong, wrong values of it, attributes, the message
FAULTS: list[tuple[str, tuple[Array | None, ...], int, list[Array], dict[str, Any], str]] = [
    ("Gather", (f(5, 2), i(0, -5, 4)), 1, [i(0, 5, 0), i(-6, 0, 0)], {}, r"outside \[-5, 4\] of axis 0"),
    ("GatherElements", (f(5, 2), i([0, -5])), 1, [i([0, 5]), i([-6, 0])], {}, r"outside \[-5, 4\] of axis 0"),
    ("GatherND", (f(5, 2), i([-5, 1])), 1, [i([5, 0]), i([0, -3])], {}, r"outside of its axis of \[5, 2\]"),
    ("ScatterElements", (f(5), i(-5, 4), f(2)), 1, [i(5, 0), i(0, -6)], {}, r"outside \[-5, 4\] of axis 0"),
    ("ScatterND", (f(5, 2), i([-5, 1]), f(1)), 1, [i([5, 0]), i([0, -3])], {}, r"outside of its axis of \[5, 2\]"),
    ("RoiAlign", (f(2, 1, 4, 4), f(2, 4), i(0, 1)), 2, [i(2, 0), i(0, -1)], {}, r"outside \[0, 1\]"),
    ("RoiAlign", (f(1, 1, 4, 4), g([-4e4, 0, 2e4, 4]), i(0)), 1,
     [g([0, 0, 1, y]) for y in (3e5, 1e30, np.inf, np.nan)], {"output_height": 2}, "more than 65536"),
    ("MaxRoiPool", (f(2, 1, 4, 4), f(1, 5)), 1, [f(1, 5) + 2, f(1, 5) - 1], {"pooled_shape": [1, 1]}, r"outside \[0, 1\]"),
    ("ReverseSequence", (f(2, 3), i(0, 1, 2)), 1, [i(0, 3, 2), i(-1, 2, 2)], {}, r"a length is outside \[0, 2\]"),
    ("MaxUnpool", (f(1, 1, 2), i([[0, 3]])), 1, [i([[0, 4]]), i([[-1, 3]])], {"kernel_shape": [2], "strides": [2]},
     r"outside \[0, 3\]"),
    ("TensorScatter", (f(1, 4, 2), f(1, 2, 2), i(2)), 2, [i(3), i(-1)], {"opset": 24}, r"a place to write is outside \[0, 3\]"),
    ("TensorScatter", (f(1, 4, 2), f(1, 2, 2), i(9)), 2, [i(-1)], {"opset": 24, "mode": "circular"}, "a place to write"),
    ("RotaryEmbedding", (*ROTARY, i([4])), 3, [i([5]), i([-1])], {}, r"a position is outside \[0, 4\]"),
    ("EmbedLayerNormalization", (IDS, IDS, f(4, 8), f(2, 8), f(2, 8), f(8), f(8)), 0, [IDS + 4, IDS - 1],
     {"domain": MICROSOFT}, r"an input id is outside \[0, 3\]"),
    ("EmbedLayerNormalization", (IDS, IDS, f(4, 8), f(2, 8), f(2, 8), f(8), f(8)), 1, [IDS + 2],
     {"domain": MICROSOFT}, r"a segment id is outside \[0, 1\]"),
]  # fmt: skip


@pytest.mark.parametrize(("op", "inputs", "which", "wrong", "attributes", "told"), FAULTS)
def test_values_out_of_range_are_reported(
    op: str, inputs: tuple[Array | None, ...], which: int, wrong: list[Array], attributes: dict[str, Any], told: str
) -> None:
    with session(op, inputs, **attributes) as model:
        model.run(None, feeds(inputs))
        for values in wrong:
            with pytest.raises(InvalidInputError, match=told):
                model.run(None, feeds(inputs) | {f"i{which}": values})
        model.run(None, feeds(inputs))


@pytest.mark.parametrize(("op", "inputs", "which", "wrong", "attributes", "told"), FAULTS[:5])
def test_constants_out_of_range_are_no_model(
    op: str, inputs: tuple[Array | None, ...], which: int, wrong: list[Array], attributes: dict[str, Any], told: str
) -> None:
    for values in wrong:
        given = {f"i{k}": values if k == which else value for k, value in enumerate(inputs)}
        model = model_of(op, given, constants=[f"i{which}"], **attributes)
        with pytest.raises(InvalidModelError, match=told):
            InferenceSession(model, fallback="error")


def test_a_one_hot_index_out_of_range_is_nowhere() -> None:
    inputs = (i(0, 3, -4, -1), i(3), g(0, 1))
    with session("OneHot", inputs) as model:
        (y,) = model.run(None, feeds(inputs))
    np.testing.assert_array_equal(y, [[1, 0, 0], [0, 0, 0], [0, 0, 0], [0, 0, 1]])
