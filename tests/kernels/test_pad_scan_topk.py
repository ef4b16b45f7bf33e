"""Pad, running sums, the positions of elements and TopK against numpy."""

from __future__ import annotations

import itertools
from typing import Any, Literal

import numpy as np
import pytest

from gpu_shared.capabilities import DeviceCapabilities
from tests.kernels.harness import Harness, NumpyWorkspace, Tensor, devices_in_turns
from vkep.dtypes import DTYPES
from vkep.errors import Decline, InvalidNode
from vkep.kernels.indexing.pad import PadProblem
from vkep.kernels.launch import is_cpu
from vkep.kernels.reductions.cumsum import PositionsProblem, ScanProblem
from vkep.kernels.reductions.topk import TopKProblem
from vkep.kernels.select import choose, emit

PADS = [
    ((5,), (2,), (3,)),
    ((3, 4), (0, 1), (0, 2)),
    ((2, 3, 4, 5), (0, 0, 1, 2), (0, 0, 3, 1)),
    ((4, 6), (1, -2), (-1, 1)),
    ((3, 5, 2), (-1, 0, 0), (0, -3, 0)),
    ((2, 1, 3, 1, 2, 2, 1, 3), (1, 0, 0, 2, 0, 1, 0, 1), (0, 0, 1, 0, 0, 1, 1, 0)),
    ((2, 3), (5, 7), (9, 11)),  # further than one reflection
]


@pytest.mark.parametrize("case", PADS)
@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
def test_pad(
    gpu: Harness,
    caps: DeviceCapabilities,
    rng: np.random.Generator,
    mode: Literal["constant", "edge", "reflect", "wrap"],
    case: tuple[Any, ...],
) -> None:
    shape, begins, ends = case
    x = rng.normal(size=shape).astype(np.float32)
    crop = tuple(slice(max(-b, 0), n - max(-e, 0)) for n, b, e in zip(shape, begins, ends, strict=True))
    widths = [(max(b, 0), max(e, 0)) for b, e in zip(begins, ends, strict=True)]
    cropped = x[crop]
    want = np.pad(cropped, widths, mode, constant_values=2.5) if mode == "constant" else np.pad(cropped, widths, mode)
    y = Tensor.empty(want.shape, np.float32)
    gpu.compute(PadProblem(shape, begins, ends, "float32", mode, 2.5), caps, [Tensor(x)], [y])
    np.testing.assert_array_equal(y.array, want)


@pytest.mark.parametrize(
    ("dtype", "value"), [("int64", -(2**40)), ("float16", -np.inf), ("int8", -3), ("bool", True), ("float64", 1e300)]
)
def test_pad_values_of_other_types(gpu: Harness, caps: DeviceCapabilities, dtype: str, value: float) -> None:
    x = np.ones((2, 3), dtype)
    y = Tensor.empty((2, 5), dtype)
    gpu.compute(PadProblem((2, 3), (0, 1), (0, 1), dtype, value=value), caps, [Tensor(x)], [y])
    np.testing.assert_array_equal(y.array, np.pad(x, ((0, 0), (1, 1)), constant_values=value))


def test_pad_of_an_empty_tensor(gpu: Harness, caps: DeviceCapabilities) -> None:
    y = Tensor.empty((2, 3), np.float32)
    empty = Tensor(np.zeros((0, 3), np.float32))
    gpu.compute(PadProblem((0, 3), (2, 0), (0, 0), "float32", value=7), caps, [empty], [y])
    np.testing.assert_array_equal(y.array, np.full((2, 3), 7))


def test_pads_that_do_not_fit(caps: DeviceCapabilities) -> None:
    with pytest.raises(InvalidNode, match="no elements to repeat"):
        PadProblem((0, 3), (2, 0), (0, 0), "float32", "edge")
    assert PadProblem((4, 3), (-2, 0), (-2, 0), "float32", "edge").out_shape == (0, 3)
    with pytest.raises(InvalidNode, match="crop more than"):
        PadProblem((4, 3), (-3, 0), (-2, 0), "float32", "edge")
    with pytest.raises(InvalidNode, match="mode is 'mirror'"):
        PadProblem((4,), (1,), (1,), "float32", "mirror")
    with pytest.raises(InvalidNode, match="two for each axis"):
        PadProblem((4, 3), (1,), (1,), "float32")
    with pytest.raises(Decline, match="the kernel crops first"):
        choose(PadProblem((1, 3), (3, 0), (-2, 0), "float32"), caps)
    many = PadProblem((2, 3) * 5, (1, 0) * 5, (0, 1) * 5, "float32")
    with pytest.raises(Decline, match="10 dimensions; the kernel takes up to 8"):
        choose(many, caps)
    assert choose(PadProblem((2,) * 9, (1, *(0,) * 8), (0,) * 9, "float32"), caps)


#: lengths of scanned axes: none, one, primes, powers of two and their neighbours
LENGTHS = (0, 1, 2, 7, 31, 32, 33, 127, 256, 257, 1009, 4096, 7919, 20_011)
SCANNED = ("float32", "float16", "bfloat16", "float64", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64",
           "uint64")  # fmt: skip


def running(x: np.ndarray, exclusive: bool, reverse: bool, product: bool) -> np.ndarray:
    """Running sums or products along the middle; of floats in float64."""
    kind = x.dtype if x.dtype.kind in "iu" else np.dtype(np.float64)
    turned = (x[:, ::-1] if reverse else x).astype(kind)
    y = (np.cumprod if product else np.cumsum)(turned, 1, dtype=kind)
    if exclusive:
        y = np.concatenate([np.full_like(y[:, :1], int(product)), y[:, :-1]], 1)[:, : x.shape[1]]
    return (y[:, ::-1] if reverse else y).astype(x.dtype)


def steps(rng: np.random.Generator, shape: tuple[int, int, int], dtype: str, product: bool) -> np.ndarray:
    """Elements whose sums, or products, float32 holds exactly."""
    low = 0 if dtype.startswith("uint") else -1
    if not product:
        return rng.integers(low, 3, shape).astype(DTYPES[dtype].numpy)
    x = np.where(rng.random(shape) < 0.2, low | 1, 1)
    if shape[1]:
        x[:, rng.integers(0, shape[1], 3)] = 2
    return x.astype(DTYPES[dtype].numpy)


@devices_in_turns("of", itertools.product(SCANNED, [False, True]))
def test_running_sums_and_products(
    gpu: Harness, caps: DeviceCapabilities, rng: np.random.Generator, of: tuple[str, bool]
) -> None:
    dtype, product = of
    for number, axis in enumerate(rng.choice(LENGTHS, 4, replace=False)):
        shape = (int(rng.integers(1, 4)), int(axis), int(rng.integers(2, 9)) if number % 2 else 1)
        exclusive, reverse = bool(rng.integers(2)), bool(rng.integers(2))
        x, y = steps(rng, shape, dtype, product), Tensor.empty(shape, DTYPES[dtype].numpy)
        problem = ScanProblem(*shape, dtype, exclusive, reverse, product)
        gpu.compute(problem, caps, [Tensor(x)], [y], indirect=True)
        np.testing.assert_array_equal(
            y.array, running(x, exclusive, reverse, product), f"{shape} {exclusive} {reverse}"
        )


@devices_in_turns(
    "shape", [(1, 1_500_007, 1), (1, 1 << 20, 1), (3, 100_003, 1), (1, 4099, 255), (2000, 130, 1), (2, 70_001, 2)]
)
def test_running_sums_of_long_axes(
    gpu: Harness, caps: DeviceCapabilities, rng: np.random.Generator, shape: tuple[int, int, int]
) -> None:
    for dtype, exclusive, reverse in (("float32", False, False), ("int32", True, True)):
        x, y = steps(rng, shape, dtype, False), Tensor.empty(shape, dtype)
        gpu.compute(ScanProblem(*shape, dtype, exclusive, reverse), caps, [Tensor(x)], [y])
        np.testing.assert_array_equal(y.array, running(x, exclusive, reverse, False))


@pytest.mark.parametrize("dtype", ["float32", "int32", "uint32"])
@pytest.mark.parametrize("offset", [0, 1])
def test_pairs_of_columns_on_a_cpu_driver(
    gpu: Harness, caps: DeviceCapabilities, rng: np.random.Generator, dtype: str, offset: int
) -> None:
    """Two neighbouring columns are one word of 64 bits, where the addresses allow it."""
    for number, shape in enumerate([(2, 33, 2), (1, 4099, 6), (3, 1, 8), (1, 100, 256), (2, 0, 4)]):
        exclusive, reverse, product = bool(number % 2), number > 2, number == 2
        x, y = steps(rng, shape, dtype, product), Tensor.empty(shape, dtype)
        problem = ScanProblem(*shape, dtype, exclusive, reverse, product, alignment=4 if offset else 8)
        calls = emit(problem, NumpyWorkspace(caps), [Tensor(x, offset=4 * offset)], [y])
        gpu.run(calls)
        pairs = is_cpu(caps) and not offset
        assert all(("PAIRS" in dict(call.variant.defines)) == pairs for call in calls)
        np.testing.assert_array_equal(y.array, running(x, exclusive, reverse, product), f"{shape}")


def test_running_sums_of_floats_repeat(gpu: Harness, caps: DeviceCapabilities, rng: np.random.Generator) -> None:
    x, made = rng.normal(size=(1, 100_003, 1)).astype(np.float32), []
    for _ in range(3):
        made.append(Tensor.empty(x.shape, np.float32))
        gpu.compute(ScanProblem(1, 100_003, 1, "float32"), caps, [Tensor(x)], [made[-1]])
    assert made[0].array.tobytes() == made[1].array.tobytes() == made[2].array.tobytes()
    np.testing.assert_allclose(made[0].array, running(x, False, False, False), rtol=1e-5, atol=1e-3)


@devices_in_turns("dtype", [*SCANNED, "bool"])
def test_positions(gpu: Harness, caps: DeviceCapabilities, rng: np.random.Generator, dtype: str) -> None:
    totals = [
        *(int(n) for n in rng.choice(LENGTHS[1:], 3, replace=False)),
        1_000_003 if dtype in ("bool", "float32") else 5,
    ]
    for total, share in zip(totals, (0.0, 0.1, 1.0, 0.5), strict=True):
        chosen = rng.random(total) < share
        x = np.where(chosen, rng.integers(1, 100, total), 0).astype(DTYPES[dtype].numpy)
        positions, count = Tensor.empty((total,), np.int64), Tensor.empty((1,), np.int64)
        gpu.compute(PositionsProblem(total, dtype), caps, [Tensor(x)], [positions, count])
        assert count.array[0] == chosen.sum()
        np.testing.assert_array_equal(positions.array[: chosen.sum()], np.flatnonzero(chosen))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_positions_of_special_floats(gpu: Harness, caps: DeviceCapabilities, dtype: str) -> None:
    x = np.array([0.0, -0.0, np.nan, np.inf, -np.inf, 1.0, -0.0], dtype)
    positions, count = Tensor.empty((7,), np.int64), Tensor.empty((1,), np.int64)
    gpu.compute(PositionsProblem(7, dtype), caps, [Tensor(x)], [positions, count])
    assert positions.array[: count.array[0]].tolist() == [2, 3, 4, 5]


def expected_topk(x: np.ndarray, k: int, largest: bool) -> tuple[np.ndarray, np.ndarray]:
    if largest:  # a stable sort of the reversed axis, reversed, keeps lower indices first
        order = x.shape[1] - 1 - np.argsort(x[:, ::-1], axis=1, kind="stable")[:, ::-1]
    else:
        order = np.argsort(x, axis=1, kind="stable")
    order = order[:, :k]
    return np.take_along_axis(x, order, 1), order


@devices_in_turns("of", itertools.product(["float32", "float16", "int64", "int32", "uint8"], [True, False]))
def test_topk(gpu: Harness, caps: DeviceCapabilities, rng: np.random.Generator, of: tuple[str, bool]) -> None:
    dtype, largest = of
    for shape in [(1, 1, 1), (3, 40, 1), (2, 100, 5), (1, 1000, 1), (70, 9, 1)]:
        x = rng.integers(0 if dtype == "uint8" else -20, 20, shape).astype(dtype)
        for k in {1, min(4, shape[1]), shape[1]}:
            values, indices = (
                Tensor.empty((shape[0], k, shape[2]), dtype),
                Tensor.empty((shape[0], k, shape[2]), np.int64),
            )
            gpu.compute(TopKProblem(*shape, dtype, k, largest), caps, [Tensor(x)], [values, indices])
            want_values, want_indices = expected_topk(x, k, largest)
            np.testing.assert_array_equal(indices.array, want_indices, err_msg=f"{shape} {k}")
            np.testing.assert_array_equal(values.array, want_values)


@pytest.mark.parametrize("k", [1, 6])
def test_topk_of_special_floats(gpu: Harness, caps: DeviceCapabilities, k: int) -> None:
    x = np.array([-0.0, np.nan, 0.0, -np.inf, np.inf, np.nan], np.float32)
    x = np.concatenate([x, np.full(50 if k == 1 else 0, -5, np.float32)])
    for largest, order in ((True, [1, 5, 4, 0, 2, 3]), (False, [3, 0, 2, 4, 1, 5])):
        values, indices = Tensor.empty((k,), np.float32), Tensor.empty((k,), np.int64)
        gpu.compute(TopKProblem(1, len(x), 1, "float32", k, largest), caps, [Tensor(x)], [values, indices])
        np.testing.assert_array_equal(indices.array, order[:k])


def test_topk_of_more_than_there_is() -> None:
    with pytest.raises(InvalidNode, match="k is 6, expected 0 to 5"):
        TopKProblem(3, 5, 1, "float32", 6)
