"""Gather, GatherElements, GatherND, the scatters and the copy against numpy."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest

from gpu_shared.capabilities import DeviceCapabilities
from tests.kernels.harness import Harness, Tensor
from vkep.errors import Decline
from vkep.kernels.gather import GatherProblem, copy, gather_elements, gather_nd
from vkep.kernels.scatter import scatter_elements, scatter_nd
from vkep.kernels.select import choose

TYPES = ["float32", "float16", "int64", "uint8", "bool"]
INDEX_TYPES = ["int32", "int64"]


def random(rng: np.random.Generator, shape: Sequence[int], dtype: str) -> np.ndarray:
    return rng.integers(0, 2 if dtype == "bool" else 200, shape).astype(dtype)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("index_dtype", INDEX_TYPES)
def test_gather(gpu: Harness, caps: DeviceCapabilities, rng: np.random.Generator, dtype: str, index_dtype: str) -> None:
    for outer, axis, inner, count in [(1, 5, 1, 3), (3, 7, 16, 4), (2, 9, 5, 1), (1, 100, 768, 13), (4, 3, 1, 50)]:
        x = random(rng, (outer, axis, inner), dtype)
        indices = rng.integers(-axis, axis, count).astype(index_dtype)
        for alignment in (1, 16):
            y = Tensor.empty((outer, count, inner), dtype)
            problem = GatherProblem(outer, axis, inner, count, dtype, index_dtype, alignment)
            gpu.compute(problem, caps, [Tensor(x), Tensor(indices)], [y])
            np.testing.assert_array_equal(y.array, x[:, indices])


def test_gather_from_a_misaligned_view(gpu: Harness, caps: DeviceCapabilities, rng: np.random.Generator) -> None:
    x = random(rng, (2, 3, 8), "float16")
    y = Tensor(np.zeros((2, 2, 8), np.float16), offset=2)
    indices = Tensor(np.array([2, 0], np.int32))
    gpu.compute(GatherProblem(2, 3, 8, 2, "float16", "int32"), caps, [Tensor(x, offset=6), indices], [y])
    np.testing.assert_array_equal(y.array, x[:, [2, 0]])


@pytest.mark.parametrize("index_dtype", INDEX_TYPES)
def test_gather_clamps_indices_out_of_range(gpu: Harness, caps: DeviceCapabilities, index_dtype: str) -> None:
    x = np.arange(5, dtype=np.float32)
    wild = [5, 100, -6, 2**31 - 1, -(2**31)] + ([2**32, -(2**32) - 1, 2**62] if index_dtype == "int64" else [])
    want = [4, 4, 0, 4, 0] + ([4, 0, 4] if index_dtype == "int64" else [])
    indices, y = np.array(wild, index_dtype), Tensor.empty((len(wild),), np.float32)
    gpu.compute(GatherProblem(1, 5, 1, len(wild), "float32", index_dtype), caps, [Tensor(x), Tensor(indices)], [y])
    np.testing.assert_array_equal(y.array, want)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("index_dtype", INDEX_TYPES)
def test_gather_elements(
    gpu: Harness, caps: DeviceCapabilities, rng: np.random.Generator, dtype: str, index_dtype: str
) -> None:
    cases = [
        ((6,), (9,), 0),
        ((3, 4, 5), (3, 7, 5), 1),
        ((3, 4, 5), (2, 3, 9), 2),
        ((2, 1, 3, 1, 2, 2, 1, 3), (2, 1, 3, 1, 2, 2, 1, 1), 2),
    ]
    for shape, indices_shape, axis in cases:
        x = random(rng, shape, dtype)
        indices = rng.integers(-shape[axis], shape[axis], indices_shape).astype(index_dtype)
        y = Tensor.empty(indices_shape, dtype)
        gpu.run(
            gather_elements(shape, indices_shape, axis, x.itemsize, index_dtype, caps, Tensor(x), Tensor(indices), y)
        )
        cut = tuple(slice(None) if d == axis else slice(n) for d, n in enumerate(indices_shape))
        np.testing.assert_array_equal(y.array, np.take_along_axis(x[cut], indices % shape[axis], axis))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("index_dtype", INDEX_TYPES)
def test_gather_nd(
    gpu: Harness, caps: DeviceCapabilities, rng: np.random.Generator, dtype: str, index_dtype: str
) -> None:
    cases = [((4, 5), (3, 2), 0), ((4, 5, 6), (2, 3, 1), 0), ((2, 3, 4, 5), (2, 3, 6, 1), 2), ((2, 5, 8), (2, 4, 1), 1)]
    for shape, indices_shape, batch in cases:
        x = random(rng, shape, dtype)
        keys = indices_shape[-1]
        extents = shape[batch : batch + keys]
        indices = np.stack([rng.integers(-n, n, indices_shape[:-1]) for n in extents], -1).astype(index_dtype)
        out_shape = indices_shape[:-1] + shape[batch + keys :]
        want = np.empty(out_shape, dtype)
        for place in itertools.product(*map(range, indices_shape[:-1])):
            want[place] = x[place[:batch] + tuple(indices[place])]
        for alignment in (None, 8):
            y = Tensor.empty(out_shape, dtype)
            operands = (Tensor(x), Tensor(indices), y)
            gpu.run(
                gather_nd(shape, indices_shape, batch, x.itemsize, index_dtype, caps, *operands, alignment=alignment)
            )
            np.testing.assert_array_equal(y.array, want)


@pytest.mark.parametrize("nbytes", [1, 7, 16, 36, 4096, 100_000])
def test_copy(gpu: Harness, caps: DeviceCapabilities, rng: np.random.Generator, nbytes: int) -> None:
    x = rng.integers(0, 256, nbytes).astype(np.uint8)
    for alignment in (1, 4, 16):
        y = Tensor.empty((nbytes,), np.uint8)
        gpu.run(copy(nbytes, caps, Tensor(x), y, alignment=alignment))
        np.testing.assert_array_equal(y.array, x)


APPLY = {
    "none": lambda a, b: b,
    "add": lambda a, b: a + b,
    "mul": lambda a, b: a * b,
    "max": max,
    "min": min,
}


@pytest.mark.parametrize("reduction", sorted(APPLY))
@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "int32", "uint8"])
def test_scatter_elements(
    gpu: Harness, caps: DeviceCapabilities, rng: np.random.Generator, dtype: str, reduction: str
) -> None:
    cases = [((9,), (5,), 0), ((4, 6, 5), (4, 3, 5), 1), ((4, 6, 5), (2, 6, 4), 2), ((3, 5), (8, 5), 0)]
    for shape, indices_shape, axis in cases:
        if reduction == "none":  # indices must be unique: a permutation along the axis, as far as it reaches
            indices_shape = tuple(min(n, m) for n, m in zip(indices_shape, shape, strict=True))
            order = rng.permuted(np.broadcast_to(np.arange(shape[axis]), (*indices_shape, shape[axis])), axis=-1)
            first = np.moveaxis(order, axis, 0)[0]  # one permutation for each column
            indices = np.moveaxis(first[..., : indices_shape[axis]], -1, axis)
        else:
            indices = rng.integers(-shape[axis], shape[axis], indices_shape)
        data, updates = rng.integers(0, 4, shape).astype(dtype), rng.integers(0, 3, indices_shape).astype(dtype)
        want = data.copy()
        for place in itertools.product(*map(range, indices_shape)):
            to = (*place[:axis], int(indices[place]) % shape[axis], *place[axis + 1 :])
            want[to] = APPLY[reduction](want[to], updates[place])
        y = Tensor.empty(shape, dtype)
        operands = (Tensor(data), Tensor(indices.astype(np.int64)), Tensor(updates), y)
        gpu.run(scatter_elements(shape, indices_shape, axis, dtype, "int64", caps, *operands, reduction))
        np.testing.assert_array_equal(y.array, want)


@pytest.mark.parametrize("reduction", sorted(APPLY))
@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "int32", "uint8"])
def test_scatter_nd(
    gpu: Harness, caps: DeviceCapabilities, rng: np.random.Generator, dtype: str, reduction: str
) -> None:
    for shape, rows, keys in [((9,), (5,), 1), ((4, 6, 5), (3, 2), 2), ((6, 7), (4,), 1), ((3, 4), (40,), 2)]:
        extents = shape[:keys]
        count = int(np.prod(rows))
        if reduction == "none":
            count = min(count, int(np.prod(extents)))
            rows = (count,)
            flat = rng.permutation(int(np.prod(extents)))[:count]
        else:
            flat = rng.integers(0, np.prod(extents), count)
        indices = np.stack(np.unravel_index(flat, extents), -1).reshape(*rows, keys)
        updates = rng.integers(0, 3, (*rows, *shape[keys:])).astype(dtype)
        data = rng.integers(0, 4, shape).astype(dtype)
        want = data.copy()
        function = np.maximum if reduction == "max" else np.minimum if reduction == "min" else APPLY[reduction]
        for place in itertools.product(*map(range, rows)):
            to = tuple(indices[place])
            want[to] = function(want[to], updates[place])
        y = Tensor.empty(shape, dtype)
        operands = (Tensor(data), Tensor((indices - np.array(extents)).astype(np.int32)), Tensor(updates), y)
        gpu.run(scatter_nd(shape, indices.shape, dtype, "int32", caps, *operands, reduction))
        np.testing.assert_array_equal(y.array, want)


def test_scatter_without_data_updates_in_place(gpu: Harness, caps: DeviceCapabilities) -> None:
    y = Tensor(np.arange(6, dtype=np.float32))
    indices, updates = Tensor(np.array([[1], [4]], np.int64)), Tensor(np.array([10, 40], np.float32))
    gpu.run(scatter_nd((6,), (2, 1), "float32", "int64", caps, None, indices, updates, y))
    np.testing.assert_array_equal(y.array, [0, 10, 2, 3, 40, 5])


def test_scatter_clamps_indices_out_of_range(gpu: Harness, caps: DeviceCapabilities) -> None:
    y = Tensor(np.zeros(3, np.float32))
    indices, updates = Tensor(np.array([7, -9], np.int64)), Tensor(np.array([1, 2], np.float32))
    gpu.run(scatter_elements((3,), (2,), 0, "float32", "int64", caps, None, indices, updates, y))
    np.testing.assert_array_equal(y.array, [2, 0, 1])


def test_empty_and_wrong_arguments(caps: DeviceCapabilities) -> None:
    assert gather_elements((3, 2), (0, 2), 0, 4, "int64", caps, None, None, None) == []
    assert scatter_nd((3,), (0, 1), "float32", "int64", caps, None, None, None, None) == []
    with pytest.raises(Decline, match="into an empty axis"):
        choose(GatherProblem(1, 0, 2, 3, "float32", "int64"), caps)
    with pytest.raises(ValueError, match="reach beyond data"):
        gather_elements((3, 2), (3, 4), 0, 4, "int64", caps, None, None, None)
    with pytest.raises(ValueError, match="equal batch axes"):
        gather_nd((3, 2), (4, 1), 1, 4, "int64", caps, None, None, None)
    with pytest.raises(ValueError, match="reduction is 'sub'"):
        scatter_nd((3,), (1, 1), "float32", "int64", caps, None, None, None, None, "sub")
