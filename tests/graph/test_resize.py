"""Sizes and scales of a Resize, beside those that onnx infers."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from tools.ort_cpu import cpu_session
from vkep.errors import Decline
from vkep.graph.resize import resolve_resize, resolve_roi


def resize(shape: tuple[int, ...], scales: Any, sizes: Any, **attributes: Any) -> onnx.ModelProto:
    given = {"scales": (scales, np.float32), "sizes": (sizes, np.int64)}
    constants = {name: np.array(v, kind) for name, (v, kind) in given.items() if v is not None}
    inputs = ["x", "", *(name if name in constants else "" for name in given)]
    graph = helper.make_graph(
        [helper.make_node("Resize", inputs, ["y"], **attributes)],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * len(shape))],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=8)


def inferred(*resized: Any, **attributes: Any) -> tuple[int, ...]:
    (y,) = onnx.shape_inference.infer_shapes(resize(*resized, **attributes), strict_mode=True).graph.output
    return tuple(d.dim_value for d in y.type.tensor_type.shape.dim)


@settings(deadline=None)
@given(st.data())
def test_the_shape_is_the_one_that_onnx_infers(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=4)))
    count = data.draw(st.integers(1, len(shape)))
    axes = data.draw(st.permutations(range(len(shape))))[:count]
    axes = [a - len(shape) if data.draw(st.booleans()) else a for a in axes]
    if data.draw(st.booleans()):
        sixteenths = data.draw(st.lists(st.integers(1, 128), min_size=count, max_size=count))
        scales, sizes = [s / 16 for s in sixteenths], None  # exact in float32, and so are the products
    else:
        scales, sizes = None, data.draw(st.lists(st.integers(1, 60), min_size=count, max_size=count))
    assert resolve_resize(shape, scales, sizes, axes).shape == inferred(shape, scales, sizes, axes=axes)


@pytest.mark.parametrize(
    ("policy", "shape", "scales"),
    [
        ("stretch", (1, 3, 5, 12), ((1, 1), (1, 1), (5, 10), (12, 6))),
        ("not_larger", (1, 3, 5, 3), ((1, 1), (1, 1), (5, 10), (5, 10))),
        ("not_smaller", (1, 3, 20, 12), ((1, 1), (1, 1), (12, 6), (12, 6))),
    ],
)
def test_sizes_under_each_policy(policy: str, shape: tuple[int, ...], scales: tuple[Any, ...]) -> None:
    found = resolve_resize((1, 3, 10, 6), None, (5, 12), (2, 3), policy)
    assert (found.shape, found.scales) == (shape, scales)
    assert found.shape == inferred((1, 3, 10, 6), None, (5, 12), axes=(2, 3), keep_aspect_ratio_policy=policy)


def test_a_kept_ratio_rounds_halves_up() -> None:
    assert resolve_resize((2, 3, 5), None, (1, 3, 5), policy="not_larger").shape == (1, 2, 3)


def test_sizes_are_exact_scales() -> None:
    found = resolve_resize((4,), None, (3,))
    assert (found.shape, found.scales) == ((3,), ((3, 4),))


def test_a_scaled_length_is_rounded_to_float32_before_its_floor_as_in_onnxruntime() -> None:
    scale = float(np.float32(0.7))
    assert 10 * scale < 7
    found = resolve_resize((10, 4), (scale,), None, (0,))
    assert (found.shape, found.scales) == ((7, 4), (scale.as_integer_ratio(), (1, 1)))
    peer = cpu_session(resize((10, 4), (scale,), None, axes=(0,)))
    assert peer.run(None, {"x": np.zeros((10, 4), np.float32)})[0].shape == found.shape


def test_a_roi_of_some_axes() -> None:
    assert resolve_roi(3, (0.25, 0.5, 0.75, 1.5), (2, -3)) == (0.5, 0.0, 0.25, 1.5, 1.0, 0.75)
    assert resolve_roi(2, (0.1, 0.2, 0.3, 0.4)) == (0.1, 0.2, 0.3, 0.4)


@pytest.mark.parametrize(
    ("shape", "scales", "sizes", "axes", "policy", "why"),
    [
        ((2, 3), None, None, None, "stretch", "neither scales nor sizes"),
        ((4,), (2.0,), (3,), None, "stretch", "both sizes .3. and scales .2.0. are given"),
        ((2, 3), (1.0, 2.0), None, (1, -1), "stretch", r"axes \[1, -1\] of a tensor of rank 2"),
        ((2, 3), (1.0, 0.0), None, None, "stretch", "a scale of 0.0 for an axis of 3"),
        ((2, 3), (1.0,), None, None, "stretch", "1 scales for 2 axes"),
        ((2, 3), None, (1, 2, 3), None, "stretch", "3 sizes for 2 axes"),
        ((2, 3), None, (4,), (2,), "stretch", r"axes \[2\] of a tensor of rank 2"),
        ((2, 3), None, (4,), (-3,), "stretch", r"axes \[-3\] of a tensor of rank 2"),
        ((2, 0), None, (2, 4), None, "stretch", "only an axis of 0 stays 0"),
        ((2, 3), None, (2, 4), None, "odd", "keep_aspect_ratio_policy 'odd'"),
        ((2, 3), (1.0, float("nan")), None, None, "stretch", "a scale of nan for an axis of 3"),
        ((2, 3), (float("inf"), 1.0), None, None, "stretch", "a scale of inf for an axis of 2"),
    ],
)
def test_what_does_not_fit_is_declined(
    shape: tuple[int, ...], scales: Any, sizes: Any, axes: Any, policy: str, why: str
) -> None:
    with pytest.raises(Decline, match=why):
        resolve_resize(shape, scales, sizes, axes, policy)


def test_a_roi_of_another_length_is_declined() -> None:
    with pytest.raises(Decline, match="3 numbers for 1 axes"):
        resolve_roi(2, (0.0, 0.5, 1.0), (1,))
