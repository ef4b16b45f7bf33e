"""Views: strides and offsets do what numpy does to an array."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_shared.capabilities import DeviceCapabilities
from vkep.dtypes import DTYPES
from vkep.graph.weights import ArrayWeight
from vkep.ir.builder import Builder
from vkep.ir.tensor import Storage, Tensor, collapse, contiguous_strides, reshaped_strides

FLOAT = DTYPES["float32"]
SHAPES = st.lists(st.integers(1, 5), max_size=4).map(tuple)


def _constant(array: np.ndarray) -> Tensor:
    return Tensor.contiguous(FLOAT, array.shape, Storage(array.nbytes, weight=ArrayWeight("w", array)))


def _numbered(shape: tuple[int, ...]) -> tuple[Tensor, np.ndarray]:
    array = np.arange(math.prod(shape), dtype=np.float32).reshape(shape)
    return _constant(array), array


@st.composite
def views(draw: Any) -> tuple[Tensor, np.ndarray]:
    """A tensor and the array it should be, after some movements."""
    tensor, array = _numbered(draw(SHAPES))
    for _ in range(draw(st.integers(0, 4))):
        kind = draw(st.sampled_from(["transpose", "slice", "expand", "reshape"]))
        if kind == "transpose":
            perm = draw(st.permutations(range(array.ndim)))
            tensor, array = tensor.transpose(perm), array.transpose(perm)
        elif kind == "slice" and array.ndim:
            axis = draw(st.integers(0, array.ndim - 1))
            start, stop = draw(st.integers(-6, 6)), draw(st.integers(-6, 6))
            step = draw(st.sampled_from([1, 2, 3, -1, -2]))
            span = range(*slice(start, stop, step).indices(array.shape[axis]))
            if len(span):
                tensor = tensor.slice(axis, span.start, len(span), step)
                array = array[(slice(None),) * axis + (slice(start, stop, step),)]
        elif kind == "expand":
            shape = tuple(draw(st.integers(1, 3)) if d == 1 else d for d in array.shape)
            shape = (*([2] * draw(st.integers(0, 1))), *shape)
            if math.prod(shape) < 2000:
                tensor, array = tensor.expand(shape), np.broadcast_to(array, shape)
        elif kind == "reshape":
            shape = draw(_factorings(array.size))
            view = tensor.reshape(shape)
            if view is not None:
                tensor, array = view, array.reshape(shape)
    return tensor, array


@st.composite
def _factorings(draw: Any, size: int) -> tuple[int, ...]:
    dims = []
    while size > 1 and draw(st.booleans()):
        dim = draw(st.sampled_from([d for d in range(1, size + 1) if size % d == 0]))
        dims.append(dim)
        size //= dim
    return (*dims, size, *([1] * draw(st.integers(0, 1))))


@given(views())
def test_a_view_is_what_numpy_makes(pair: tuple[Tensor, np.ndarray]) -> None:
    tensor, array = pair
    assert tensor.shape == array.shape and tensor.size == array.size and tensor.rank == array.ndim
    values = tensor.array
    assert values is not None
    np.testing.assert_array_equal(values, array)


@given(views())
def test_the_extent_of_a_view(pair: tuple[Tensor, np.ndarray]) -> None:
    tensor, array = pair
    low, high = tensor.byte_range
    touched = array.astype(np.int64) * 4  # each element is its own index
    assert low == touched.min() and high == touched.max() + 4
    assert low >= 0 and high <= tensor.storage.nbytes


@given(views())
def test_contiguous_means_dense_and_in_order(pair: tuple[Tensor, np.ndarray]) -> None:
    tensor, array = pair
    dense = bool(np.array_equal(np.diff(array.reshape(-1)), np.ones(array.size - 1)))
    assert tensor.is_contiguous == dense
    assert tensor.is_whole == (dense and array.nbytes == tensor.storage.nbytes)


@given(views(), st.data())
def test_a_reshape_is_found_where_there_is_one(pair: tuple[Tensor, np.ndarray], data: Any) -> None:
    """Against all strides: an array is a view under a new shape when the steps along each new axis are constant."""
    tensor, array = pair
    shape = data.draw(_factorings(array.size))
    view = tensor.reshape(shape)
    flat = array.reshape(shape)
    regular = all(
        len(np.unique(np.diff(flat, axis=axis))) <= 1
        and np.all(np.diff(flat, axis=axis) == np.diff(flat, axis=axis).flat[0])
        for axis in range(flat.ndim)
        if flat.shape[axis] > 1
    )
    assert (view is not None) == regular
    if view is not None:
        np.testing.assert_array_equal(view.array, flat)


@given(views(), views())
def test_collapsing_keeps_what_is_walked(one: tuple[Tensor, np.ndarray], two: tuple[Tensor, np.ndarray]) -> None:
    a, b = one[0], two[0]
    try:
        shape = np.broadcast_shapes(a.shape, b.shape)
    except ValueError:
        return
    a, b = a.expand(shape), b.expand(shape)
    dims, sets = collapse(shape, [a.strides, b.strides])
    assert math.prod(dims) == math.prod(shape) and len(dims) <= max(1, len(shape))
    assert 1 not in dims or dims == (1,)
    for tensor, strides in zip((a, b), sets, strict=True):
        assert tensor.array is not None
        walked = tensor.view(dims, strides).array
        np.testing.assert_array_equal(np.asarray(walked).reshape(-1), tensor.array.reshape(-1))


@given(SHAPES)
def test_row_major_strides(shape: tuple[int, ...]) -> None:
    expected = tuple(s // 4 for s in np.empty(shape, np.float32).strides)
    assert contiguous_strides(shape) == expected
    assert reshaped_strides(shape, contiguous_strides(shape), (math.prod(shape),)) in ((1,), (0,))


@pytest.mark.parametrize(("shape", "new"), [((0, 3), (3, 0)), ((2, 0), (0,)), ((0,), (0, 5, 2))])
def test_empty_tensors_reshape_freely(shape: tuple[int, ...], new: tuple[int, ...]) -> None:
    view = Tensor.contiguous(FLOAT, shape).reshape(new)
    assert view is not None and view.shape == new and view.byte_range == (0, 0)


def test_programs_that_cannot_be_expressed() -> None:
    tensor = Tensor.contiguous(FLOAT, (2, 3))
    with pytest.raises(ValueError, match=r"cannot view 6 elements of shape \(2, 3\) as \(4,\)"):
        tensor.reshape((4,))
    with pytest.raises(ValueError, match=r"cannot broadcast shape \(2, 3\) to \(3, 3\)"):
        tensor.expand((3, 3))
    with pytest.raises(ValueError, match="cannot broadcast"):
        tensor.expand((3,))
    for perm in [(0,), (0, 0), (0, 2), (1, 0, 2)]:
        with pytest.raises(ValueError, match="no permutation of the axes"):
            tensor.transpose(perm)


@given(views())
def test_a_dense_copy_of_a_constant_is_folded(pair: tuple[Tensor, np.ndarray]) -> None:
    tensor, array = pair
    builder = Builder(DeviceCapabilities.for_tests())
    dense = builder.contiguous(tensor)
    assert dense.is_contiguous and not builder.ops
    np.testing.assert_array_equal(dense.array, array)
