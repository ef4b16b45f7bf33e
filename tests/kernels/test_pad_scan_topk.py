"""Pad, cumulative sums and TopK against numpy."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest

from gpu_shared.capabilities import DeviceCapabilities
from tests.kernels.harness import Harness, Tensor
from vkep.errors import Decline, InvalidNode
from vkep.kernels.indexing.pad import PadProblem
from vkep.kernels.reductions.cumsum import ScanProblem
from vkep.kernels.reductions.topk import TopKProblem
from vkep.kernels.select import choose

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


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 50, 1), (2, 7, 9), (1, 3000, 1), (300, 4, 2)])
@pytest.mark.parametrize("dtype", ["float32", "int64", "int32", "float16"])
def test_cumsum(
    gpu: Harness, caps: DeviceCapabilities, rng: np.random.Generator, dtype: str, shape: tuple[int, int, int]
) -> None:
    x = rng.integers(-3, 4, shape).astype(dtype)
    for exclusive in (False, True):
        for reverse in (False, True):
            y = Tensor.empty(shape, dtype)
            gpu.compute(ScanProblem(*shape, dtype, exclusive, reverse), caps, [Tensor(x)], [y])
            turned = x[:, ::-1] if reverse else x
            want = np.cumsum(turned, 1, dtype=np.float64)
            want = want - turned if exclusive else want
            np.testing.assert_array_equal(y.array, (want[:, ::-1] if reverse else want).astype(dtype))


def expected_topk(x: np.ndarray, k: int, largest: bool) -> tuple[np.ndarray, np.ndarray]:
    if largest:  # a stable sort of the reversed axis, reversed, keeps lower indices first
        order = x.shape[1] - 1 - np.argsort(x[:, ::-1], axis=1, kind="stable")[:, ::-1]
    else:
        order = np.argsort(x, axis=1, kind="stable")
    order = order[:, :k]
    return np.take_along_axis(x, order, 1), order


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "int32", "uint8"])
def test_topk(gpu: Harness, caps: DeviceCapabilities, rng: np.random.Generator, dtype: str, largest: bool) -> None:
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
