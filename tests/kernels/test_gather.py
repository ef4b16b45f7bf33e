"""Gather, GatherElements, GatherND, the scatters and the copy against numpy."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from gpu_shared.capabilities import DeviceCapabilities
from tests.kernels.harness import Harness, NumpyWorkspace, Tensor
from vkep.dtypes import DTYPES
from vkep.errors import Decline, InvalidNode
from vkep.ir import tensor as ir
from vkep.ir.builder import Builder
from vkep.kernels.indexing.gather import COPY, GatherElementsProblem, GatherNDProblem, GatherProblem, copy
from vkep.kernels.indexing.scatter import ScatterElementsProblem, ScatterNDProblem
from vkep.kernels.problem import Problem, check
from vkep.kernels.select import choose, emit

TYPES = ["float32", "float16", "int64", "uint8", "bool"]
INDEX_TYPES = ["int32", "int64"]


def noted(target: NumpyWorkspace) -> str:
    """What the kernels found out of range."""
    assert target.flag is not None
    code = int(target.flag.array[0])
    return target.faults[code - 1] if code else ""


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
    problem = GatherProblem(1, 5, 1, len(wild), "float32", index_dtype, fault="beyond")
    target = gpu.compute(problem, caps, [Tensor(x), Tensor(indices)], [y])
    np.testing.assert_array_equal(y.array, want)
    assert noted(target) == "beyond"


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
        problem = GatherElementsProblem(shape, indices_shape, axis, dtype, index_dtype, fault="beyond")
        target = gpu.compute(problem, caps, [Tensor(x), Tensor(indices)], [y])
        assert noted(target) == ""
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
        for alignment in (1, 8):
            y = Tensor.empty(out_shape, dtype)
            problem = GatherNDProblem(shape, indices_shape, batch, dtype, index_dtype, alignment, "beyond")
            target = gpu.compute(problem, caps, [Tensor(x), Tensor(indices)], [y])
            np.testing.assert_array_equal(y.array, want)
            assert noted(target) == ""


@pytest.mark.parametrize("nbytes", [1, 7, 16, 36, 4096, 100_000])
def test_copy(gpu: Harness, caps: DeviceCapabilities, rng: np.random.Generator, nbytes: int) -> None:
    x = rng.integers(0, 256, nbytes).astype(np.uint8)
    for alignment in (1, 4, 16):
        y = Tensor.empty((nbytes,), np.uint8)
        gpu.run(copy(nbytes, caps, Tensor(x), y, alignment=alignment))
        np.testing.assert_array_equal(y.array, x)


APPLY: dict[str, Callable[[Any, Any], Any]] = {
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
        inputs = [Tensor(data), Tensor(indices.astype(np.int64)), Tensor(updates)]
        problem = ScatterElementsProblem(shape, indices_shape, dtype, "int64", reduction, "beyond", axis=axis)
        target = gpu.compute(problem, caps, inputs, [y])
        np.testing.assert_array_equal(y.array, want)
        assert noted(target) == ""


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
        inputs = [Tensor(data), Tensor((indices - np.array(extents)).astype(np.int32)), Tensor(updates)]
        target = gpu.compute(
            ScatterNDProblem(shape, indices.shape, dtype, "int32", reduction, "beyond"), caps, inputs, [y]
        )
        np.testing.assert_array_equal(y.array, want)
        assert noted(target) == ""


def _places(rng: np.random.Generator, extent: int, shape: tuple[int, ...]) -> np.ndarray:
    """Indices with few duplicates or many, at all places, at one, or at equal distances."""
    step = int(rng.choice([1, 1, 64]))
    most = int(rng.choice([1, 3, extent, extent]))
    return rng.integers(0, min(most, extent), shape) * step % extent


@pytest.mark.parametrize("reduction", ["add", "mul", "max", "min"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "uint8"])
def test_many_updates_are_applied_in_order(
    gpu: Harness, caps: DeviceCapabilities, rng: np.random.Generator, dtype: str, reduction: str
) -> None:
    """The results equal those of updates one after another, bit by bit."""
    ufunc = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}[reduction]
    for count in (63, 64, 257, 3001):
        extent, outer, inner = int(rng.integers(1, 3000)), int(rng.integers(1, 3)), int(rng.choice([1, 2, 3, 40]))
        index_dtype = str(rng.choice(["int32", "int64"]))
        values = rng.normal(size=(outer, max(extent, count), inner)) if dtype.startswith("f") else rng.integers(
            0, 100, (outer, max(extent, count), inner)
        )  # fmt: skip
        data, updates = values[:, :extent].astype(dtype), values[:, -count:].astype(dtype)
        indices, wide = _places(rng, extent, (outer, count, inner)), np.float32 if dtype == "float16" else dtype
        at: list[Any] = list(np.indices(indices.shape, sparse=True))
        want = data.copy()
        for n in range(count):  # float16 rounds after each update
            to = (at[0][:, 0], indices[:, n], at[2][:, 0])
            want[to] = ufunc(want[to].astype(wide), updates[:, n].astype(wide)).astype(dtype)
        y = Tensor.empty(data.shape, dtype)
        problem = ScatterElementsProblem(data.shape, indices.shape, dtype, index_dtype, reduction, "beyond", axis=1)
        inputs = [Tensor(data), Tensor(indices.astype(index_dtype)), Tensor(updates)]
        assert noted(gpu.compute(problem, caps, inputs, [y], compare=False)) == ""
        np.testing.assert_array_equal(y.array, want, f"{data.shape} {indices.shape}")

        rows = indices[0, :, :1]
        want = data[0].copy()
        for n in range(count):
            row = int(rows[n, 0])
            want[row] = ufunc(want[row].astype(wide), updates[0, n].astype(wide)).astype(dtype)
        y = Tensor.empty(want.shape, dtype)
        nd = ScatterNDProblem(want.shape, rows.shape, dtype, index_dtype, reduction, "beyond")
        inputs = [Tensor(data[0]), Tensor(rows.astype(index_dtype)), Tensor(updates[0])]
        assert noted(gpu.compute(nd, caps, inputs, [y], indirect=True, compare=False)) == ""
        np.testing.assert_array_equal(y.array, want, f"{data.shape} {indices.shape}")


@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8", "float64", "bool"])
def test_rows_move_in_units(gpu: Harness, caps: DeviceCapabilities, rng: np.random.Generator, dtype: str) -> None:
    for inner in (1, 2, 3, 4, 8, 12, 16, 48, 64, 129):
        data, updates = (rng.integers(0, 2, (n, inner)).astype(dtype) for n in (50, 31))
        rows = rng.permutation(50)[:31, None]
        want = data.copy()
        want[rows[:, 0]] = updates
        y = Tensor.empty(want.shape, dtype)
        for alignment in (1, 4, 16):
            problem = ScatterNDProblem(data.shape, rows.shape, dtype, "int64", alignment=alignment)
            gpu.compute(problem, caps, [Tensor(data), Tensor(rows), Tensor(updates)], [y])
            np.testing.assert_array_equal(y.array, want)


def test_scatter_keeps_what_has_no_update(gpu: Harness, caps: DeviceCapabilities) -> None:
    y = Tensor.empty((6,), np.float32)
    data, indices = Tensor(np.arange(6, dtype=np.float32)), Tensor(np.array([[1], [4]], np.int64))
    updates = Tensor(np.array([10, 40], np.float32))
    gpu.compute(ScatterNDProblem((6,), (2, 1), "float32", "int64"), caps, [data, indices, updates], [y])
    np.testing.assert_array_equal(y.array, [0, 10, 2, 3, 40, 5])


def test_scatter_clamps_indices_out_of_range(gpu: Harness, caps: DeviceCapabilities) -> None:
    y = Tensor.empty((3,), np.float32)
    inputs = [
        Tensor(np.zeros(3, np.float32)),
        Tensor(np.array([7, -9], np.int64)),
        Tensor(np.array([1, 2], np.float32)),
    ]
    target = gpu.compute(
        ScatterElementsProblem((3,), (2,), "float32", "int64", "none", "beyond", axis=0), caps, inputs, [y]
    )
    np.testing.assert_array_equal(y.array, [2, 0, 1])
    assert noted(target) == "beyond"


Indexed = GatherProblem | GatherElementsProblem | GatherNDProblem | ScatterElementsProblem | ScatterNDProblem
#: a problem, and the shapes of data, indices and updates
INDEXED: dict[str, tuple[Indexed, tuple[int, ...], tuple[int, ...], tuple[int, ...] | None]] = {
    "gather": (GatherProblem(1, 5, 1, 2, "float32", "int64"), (5,), (2,), None),
    "gather elements": (GatherElementsProblem((5, 2), (1, 2), 0, "float32", "int64"), (5, 2), (1, 2), None),
    "gather nd": (GatherNDProblem((5, 5), (1, 2), 0, "float32", "int64"), (5, 5), (1, 2), None),
    "scatter elements": (ScatterElementsProblem((5, 2), (1, 2), "float32", "int64", axis=0), (5, 2), (1, 2), (1, 2)),
    "scatter elements, added": (
        ScatterElementsProblem((5, 2), (1, 2), "float32", "int64", "add", axis=0), (5, 2), (1, 2), (1, 2),
    ),
    "scatter nd": (ScatterNDProblem((5, 5), (1, 2), "float32", "int64"), (5, 5), (1, 2), (1,)),
    "scatter nd, added": (ScatterNDProblem((5, 5), (1, 2), "float32", "int64", "add"), (5, 5), (1, 2), (1,)),
}  # fmt: skip


@pytest.mark.parametrize("name", INDEXED)
@pytest.mark.parametrize("worst", [-6, 5, 2**31, 2**32, -(2**31), -(2**33), 2**63 - 1, -(2**63)])
def test_every_index_out_of_range_is_noted(gpu: Harness, caps: DeviceCapabilities, name: str, worst: int) -> None:
    problem, shape, indices_shape, updates_shape = INDEXED[name]
    for good in (False, True):
        indices = np.full(indices_shape, -5, np.int64)
        if not good:
            indices.flat[-1] = worst
        inputs = [Tensor(np.zeros(shape, np.float32)), Tensor(indices)]
        inputs += [] if updates_shape is None else [Tensor(np.ones(updates_shape, np.float32))]
        y = Tensor.empty(problem.makes()[0].shape, np.float32)
        target = gpu.compute(dataclasses.replace(problem, fault="beyond"), caps, inputs, [y])
        assert noted(target) == ("" if good else "beyond")
        assert np.isfinite(y.array).all()


@pytest.mark.parametrize(
    "problem",
    [
        GatherProblem(1, 5, 1, 2, "float32", "int64", fault="beyond", from_end=False),
        ScatterElementsProblem((5,), (2,), "float32", "int64", "none", "beyond", axis=0, from_end=False),
    ],
)
def test_negative_indices_may_be_out_of_range(gpu: Harness, caps: DeviceCapabilities, problem: Problem) -> None:
    for indices, told in (([0, 4], ""), ([0, -1], "beyond")):
        inputs = [Tensor(np.zeros(5, np.float32)), Tensor(np.array(indices, np.int64)), Tensor(np.ones(2, np.float32))]
        inputs = inputs[: len(problem.needs())]
        y = Tensor.empty(problem.makes()[0].shape, np.float32)
        assert noted(gpu.compute(problem, caps, inputs, [y])) == told


def test_without_a_reason_nothing_is_noted(gpu: Harness, caps: DeviceCapabilities) -> None:
    x, indices, y = Tensor(np.zeros(5, np.float32)), Tensor(np.array([9, 9], np.int64)), Tensor.empty((2,), np.float32)
    target = gpu.compute(GatherProblem(1, 5, 1, 2, "float32", "int64"), caps, [x, indices], [y])
    assert target.flag is None


def views(problem: Problem, **shapes: tuple[int, ...]) -> list[ir.Tensor]:
    """Operands as a problem needs them, but for the shapes that are given."""
    return [ir.Tensor.contiguous(DTYPES[n.dtype], shapes.get(n.name, n.shape)) for n in problem.needs()]


def test_operands_that_disagree_are_refused() -> None:
    for problem, name, shape in [
        (ScatterElementsProblem((9,), (4,), "float32", "int64", axis=0), "updates", (1,)),
        (ScatterNDProblem((9, 3), (4, 1), "float32", "int64"), "updates", (4,)),
        (ScatterNDProblem((9, 3), (4, 1), "float32", "int64"), "updates", (3, 3)),
        (GatherElementsProblem((9, 2), (4, 2), 0, "float32", "int64"), "x", (8, 2)),
    ]:
        outputs = [ir.Tensor.contiguous(DTYPES[n.dtype], n.shape) for n in problem.makes()]
        check(problem, views(problem), outputs)
        with pytest.raises(InvalidNode, match=re.escape(f"{name} has shape {list(shape)}")):
            check(problem, views(problem, **{name: shape}), outputs)


def test_empty_and_wrong_arguments(caps: DeviceCapabilities) -> None:
    for empty in (
        GatherElementsProblem((3, 2), (0, 2), 0, "float32", "int64"),
        GatherProblem(1, 0, 2, 0, "float32", "int64"),
    ):
        b = Builder(caps)
        b.compute(empty, views(empty), [ir.Tensor.contiguous(DTYPES[n.dtype], n.shape) for n in empty.makes()])
        assert b.ops == []
    none, y = np.zeros((0, 1), np.int64), np.zeros(3, np.float32)
    problem = ScatterNDProblem((3,), (0, 1), "float32", "int64")
    calls = emit(problem, NumpyWorkspace(caps), [Tensor(y), Tensor(none), Tensor(none)], [Tensor(y)])
    assert [call.kernel for call in calls] == [COPY]
    wrongs: dict[str, Callable[[], Problem]] = {
        "into an empty axis": lambda: GatherProblem(1, 0, 2, 3, "float32", "int64"),
        "reach beyond the data": lambda: GatherElementsProblem((3, 2), (3, 4), 0, "float32", "int64"),
        "equal ranks": lambda: GatherElementsProblem((3, 2), (3,), 0, "float32", "int64"),
        "along axis 1: indices into an empty axis": lambda: ScatterElementsProblem(
            (2, 0), (1, 1), "bool", "int64", axis=1
        ),
        "equal batch axes": lambda: GatherNDProblem((3, 2), (4, 1), 1, "float32", "int64"),
        "less than both ranks": lambda: GatherNDProblem((3, 2), (1,), 1, "float32", "int64"),
        "3 coordinates for 2 axes": lambda: GatherNDProblem((3, 2), (4, 3), 0, "float32", "int64"),
        "expected 1 to 1 coordinates": lambda: ScatterNDProblem((3,), (4, 2), "float32", "int64"),
        "reduction is 'sub'": lambda: ScatterNDProblem((3,), (1, 1), "float32", "int64", "sub"),
    }
    for wrong, build in wrongs.items():
        with pytest.raises(InvalidNode, match=wrong):
            build()
    nine = (1,) * 9
    for large, why in [
        (GatherElementsProblem(nine, nine, 0, "float32", "int64"), "9 dimensions"),
        (ScatterElementsProblem(nine, nine, "float32", "int64", axis=0), "9 dimensions"),
        (GatherNDProblem(nine, nine, 0, "float32", "int64"), ""),
        (GatherNDProblem(nine, (1, 9), 0, "float32", "int64"), "9 coordinates"),
        (ScatterNDProblem(nine, (1, 9), "float32", "int64"), "9 coordinates"),
        (GatherProblem(1, 2**31, 1, 1, "uint8", "int64"), "x has 2147483648 elements"),
    ]:
        if why:
            with pytest.raises(Decline, match=why) as caught:
                choose(large, caps)
            assert not isinstance(caught.value, InvalidNode)
        else:
            choose(large, caps)
