"""Random shapes, axes, element types and values for moving, indexing, comparing and padding."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tests.ops.cases import by_reference, model_of, on_vulkan

pytestmark = pytest.mark.usefixtures("vulkan")
Array = np.ndarray[Any, Any]

#: a new expression is a new shader, so examples are few; shapes and values select none
FEW = settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
ANY = st.sampled_from([np.float32, np.float16, np.int8, np.uint8, np.int32, np.int64, np.bool_])
NUMBERS = st.sampled_from([np.float32, np.float16, np.int8, np.uint8, np.int32, np.int64])


def _run(
    op_type: str, inputs: dict[str, Array], constants: tuple[str, ...] = (), opset: int = 22, **rest: Any
) -> Array:
    return on_vulkan(model_of(op_type, inputs, outputs=("out",), constants=constants, opset=opset, **rest), inputs)[0]


def _array(data: st.DataObject, dtype: Any, shape: tuple[int, ...]) -> Array:
    """Small whole numbers, so that every type holds sums and maxima exactly and values repeat."""
    elements = st.booleans() if dtype is np.bool_ else st.integers(0 if np.dtype(dtype).kind == "u" else -9, 9)
    return data.draw(hnp.arrays(dtype, shape, elements=elements, fill=st.nothing()))


def _shape(data: st.DataObject, low: int = 1, high: int = 4, side: int = 0) -> tuple[int, ...]:
    return data.draw(hnp.array_shapes(min_dims=low, max_dims=high, min_side=side, max_side=5))


def _ints(*values: Any) -> Array:
    return np.array(values, np.int64)


@FEW
@given(data=st.data())
def test_movement(data: st.DataObject) -> None:
    dtype, shape = data.draw(ANY), _shape(data)
    x, rank = _array(data, dtype, shape), len(shape)
    perm = data.draw(st.permutations(range(rank)))
    np.testing.assert_array_equal(_run("Transpose", {"x": x}, perm=list(perm)), x.transpose(perm), strict=True)
    repeats = data.draw(st.lists(st.integers(0, 3), min_size=rank, max_size=rank))
    np.testing.assert_array_equal(
        _run("Tile", {"x": x, "r": _ints(*repeats)}, ("r",)), np.tile(x, repeats), strict=True
    )
    axis = data.draw(st.integers(-rank, rank - 1))
    np.testing.assert_array_equal(
        _run("Concat", {"x": x, "z": x}, axis=axis), np.concatenate([x, x], axis), strict=True
    )
    line = [1 if data.draw(st.booleans()) else d for d in shape]
    small = x[tuple(slice(0, n) for n in line)]
    wide = np.broadcast_to(small, (2, *shape)) if 0 not in shape else small
    if 0 not in shape:
        got = _run("Expand", {"x": small, "s": _ints(2, *shape)}, ("s",))
        np.testing.assert_array_equal(got, wide, strict=True)


@FEW
@given(data=st.data())
def test_gathering(data: st.DataObject) -> None:
    dtype, shape = data.draw(ANY), _shape(data, side=1)
    x, rank = _array(data, dtype, shape), len(shape)
    axis = data.draw(st.integers(-rank, rank - 1))
    size = shape[axis]
    kind = data.draw(st.sampled_from([np.int32, np.int64]))
    index = data.draw(hnp.arrays(kind, _shape(data, 0, 2), elements=st.integers(-size, size - 1), fill=st.nothing()))
    np.testing.assert_array_equal(_run("Gather", {"x": x, "i": index}, axis=axis), x.take(index, axis), strict=True)
    along = data.draw(hnp.arrays(kind, shape, elements=st.integers(-size, size - 1), fill=st.nothing()))
    got = _run("GatherElements", {"x": x, "i": along}, axis=axis)
    np.testing.assert_array_equal(got, np.take_along_axis(x, along.astype(np.int64), axis), strict=True)
    count = data.draw(st.integers(1, 4))
    keys = np.stack([data.draw(hnp.arrays(np.int64, count, elements=st.integers(-d, d - 1))) for d in shape[:2]], -1)
    np.testing.assert_array_equal(_run("GatherND", {"x": x, "i": keys}), x[tuple(keys.T)], strict=True)


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
@FEW
@given(data=st.data())
def test_scattering(reduction: str, data: st.DataObject) -> None:
    dtype, shape = data.draw(NUMBERS), _shape(data, side=1)
    x, rank = _array(data, dtype, shape), len(shape)
    axis = data.draw(st.integers(0, rank - 1))
    size = shape[axis]
    count = data.draw(st.integers(1, size)) if reduction == "none" else data.draw(st.integers(1, 6))
    places = list(shape)
    places[axis] = count
    index = np.empty(places, np.int64)
    rows = np.moveaxis(index, axis, -1).reshape(-1, count)
    for row in range(rows.shape[0]):  # without a reduction no place may be named twice
        rows[row] = data.draw(st.permutations(range(size)))[:count] if reduction == "none" else data.draw(
            hnp.arrays(np.int64, count, elements=st.integers(0, size - 1), fill=st.nothing())
        )  # fmt: skip
    index = np.ascontiguousarray(np.moveaxis(rows.reshape([*places[:axis], *places[axis + 1 :], count]), -1, axis))
    updates = _array(data, dtype, tuple(places))
    expected = x.copy()
    with np.errstate(over="ignore"):
        for at in np.ndindex(*places):
            target = (*at[:axis], index[at], *at[axis + 1 :])
            old, new = expected[target], updates[at]
            expected[target] = {"none": new, "add": old + new, "mul": old * new, "max": max(old, new),
                                "min": min(old, new)}[reduction]  # fmt: skip
    got = _run("ScatterElements", {"x": x, "i": index, "u": updates}, axis=axis, reduction=reduction)
    np.testing.assert_allclose(got, expected, rtol=2e-2 if reduction == "mul" else 0)


@pytest.mark.parametrize(
    ("op_type", "compare"),
    [("Equal", np.equal), ("Greater", np.greater), ("Less", np.less), ("GreaterOrEqual", np.greater_equal),
     ("LessOrEqual", np.less_equal)],
)  # fmt: skip
@FEW
@given(data=st.data())
def test_comparisons_broadcast_and_are_false_for_nan(op_type: str, compare: Any, data: st.DataObject) -> None:
    dtype = data.draw(NUMBERS)
    shapes = data.draw(hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=3, max_side=4, min_side=0)).input_shapes
    x, y = (_array(data, dtype, shape) for shape in shapes)
    if np.dtype(dtype).kind == "f":
        x = np.where(x > 5, np.nan, x).astype(dtype)
    np.testing.assert_array_equal(_run(op_type, {"x": x, "y": y}), compare(x, y), strict=True)


@FEW
@given(data=st.data())
def test_choices_broadcast(data: st.DataObject) -> None:
    dtype = data.draw(ANY)
    shapes = data.draw(hnp.mutually_broadcastable_shapes(num_shapes=3, max_dims=3, max_side=4, min_side=0)).input_shapes
    condition, x, y = (_array(data, kind, s) for kind, s in zip((np.bool_, dtype, dtype), shapes, strict=True))
    got = _run("Where", {"c": condition, "x": x, "y": y})
    np.testing.assert_array_equal(got, np.where(condition, x, y), strict=True)


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
@FEW
@given(data=st.data())
def test_padding(mode: Literal["constant", "edge", "reflect", "wrap"], data: st.DataObject) -> None:
    dtype, shape = data.draw(NUMBERS), _shape(data, side=1)
    x, rank = _array(data, dtype, shape), len(shape)
    pads = [[data.draw(st.integers(0, d - 1 if mode == "reflect" else d)) for _ in range(2)] for d in shape]
    values = {"x": x, "p": _ints(*(p[0] for p in pads), *(p[1] for p in pads))}
    constants: tuple[str, ...] = ("p",)
    if mode == "constant":
        values["v"] = np.array(3, dtype)
        constants = ("p", "v")
    expected = np.pad(x, pads, mode, constant_values=3) if mode == "constant" else np.pad(x, pads, mode)
    np.testing.assert_array_equal(_run("Pad", values, constants, mode=mode), expected, strict=True)
    assert expected.ndim == rank


@FEW
@given(data=st.data())
def test_top_k_is_ordered_and_takes_the_first_of_equals(data: st.DataObject) -> None:
    dtype, shape = data.draw(NUMBERS), _shape(data, side=1)
    x, rank = _array(data, dtype, shape), len(shape)
    axis = data.draw(st.integers(-rank, rank - 1))
    count, largest = data.draw(st.integers(1, shape[axis])), data.draw(st.integers(0, 1))
    values = {"x": x, "k": _ints(count)}
    model = model_of("TopK", values, outputs=("v", "i"), constants=("k",), opset=22, axis=axis, largest=largest)
    got, places = on_vulkan(model, values)
    keys = -x.astype(np.int64) if largest else x.astype(np.int64)
    order = np.argsort(keys, axis=axis, kind="stable").take(range(count), axis)
    np.testing.assert_array_equal(places, order)
    np.testing.assert_array_equal(got, np.take_along_axis(x, order, axis), strict=True)


@pytest.mark.parametrize("op_type", ["ArgMax", "ArgMin"])
@FEW
@given(data=st.data())
def test_places_of_extremes(op_type: str, data: st.DataObject) -> None:
    x = _array(data, data.draw(NUMBERS), _shape(data, side=1))
    axis, last = data.draw(st.integers(-x.ndim, x.ndim - 1)), data.draw(st.integers(0, 1))
    model = model_of(op_type, {"x": x}, outputs=("out",), opset=13, axis=axis, select_last_index=last)
    np.testing.assert_array_equal(on_vulkan(model, {"x": x})[0], by_reference(model, {"x": x})[0], strict=True)


@FEW
@given(data=st.data())
def test_unique_slices(data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from([np.float32, np.int64, np.uint8, np.bool_]))
    x = data.draw(hnp.arrays(dtype, _shape(data, 1, 3, side=1), elements=st.integers(0, 1), fill=st.nothing()))
    axis = data.draw(st.integers(-x.ndim, x.ndim - 1))
    model = model_of("Unique", {"x": x}, outputs=("y", "first", "inverse", "counts"), opset=20, axis=axis)
    got = on_vulkan(model, {"x": x})
    expected = np.unique(x, return_index=True, return_inverse=True, return_counts=True, axis=axis)
    for ours, theirs in zip(got, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs.reshape(ours.shape))
    by_occurrence = on_vulkan(model_of("Unique", {"x": x}, outputs=("y",), opset=20, sorted=0, axis=axis), {"x": x})[0]
    np.testing.assert_array_equal(by_occurrence, x.take(np.sort(expected[1]), axis))


@FEW
@given(data=st.data())
def test_one_hot_and_triangles(data: st.DataObject) -> None:
    depth = data.draw(st.integers(1, 6))
    index = data.draw(
        hnp.arrays(np.int64, _shape(data, 1, 2), elements=st.integers(-depth, depth - 1), fill=st.nothing())
    )
    axis = data.draw(st.integers(-index.ndim - 1, index.ndim))
    values = {"i": index, "d": np.array(depth, np.int64), "v": np.array([2, 5], np.float32)}
    hot = np.where(np.arange(depth) == (index % depth)[..., None], 5, 2).astype(np.float32)
    at = axis if axis >= 0 else axis + index.ndim + 1
    np.testing.assert_array_equal(_run("OneHot", values, ("d",), axis=axis), np.moveaxis(hot, -1, at), strict=True)
    x = _array(data, data.draw(ANY), _shape(data, 2, 3))
    shift, upper = data.draw(st.integers(-7, 7)), data.draw(st.integers(0, 1))
    got = _run("Trilu", {"x": x, "k": np.array(shift, np.int64)}, ("k",), upper=upper)
    np.testing.assert_array_equal(got, (np.triu if upper else np.tril)(x, shift), strict=True)
