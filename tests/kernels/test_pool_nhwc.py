"""Pooling with channels last: against a plain numpy model, and to the last bit against pooling with channels first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from gpu_shared.capabilities import DeviceCapabilities
from tests.devices import GPU
from tests.kernels.harness import Harness, NumpyWorkspace, Tensor
from tests.kernels.test_pool import expected, out_sizes
from vkep.graph.windows import Window
from vkep.kernels.images.pool import PoolProblem, takes_channels_last
from vkep.kernels.select import emit


@dataclass(frozen=True)
class Case:
    shape: tuple[int, int, int, int]  #: n, c, h, w
    kernel: tuple[int, int]
    strides: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilations: tuple[int, int] = (1, 1)
    ceil: bool = False

    @property
    def out(self) -> list[int]:
        return out_sizes(self.shape[2:], self.kernel, self.strides, self.dilations, self.pads, self.ceil)

    def problem(self, op: str, last: bool, dtype: str = "float16", **options: Any) -> PoolProblem:
        window = Window(self.kernel, self.strides, self.dilations, self.pads, tuple(self.out))
        n, c, *spatial = self.shape
        return PoolProblem(op, n, c, tuple(spatial), window, dtype, channels_last=last, **options)


CASES = {
    "halving": Case((2, 24, 15, 13), (3, 3), (2, 2), (1, 1, 1, 1)),
    "one_unit": Case((1, 8, 6, 7), (2, 2), (2, 2)),
    "same_size": Case((3, 16, 5, 9), (3, 5), pads=(1, 2, 1, 2)),
    "ceil": Case((2, 16, 7, 9), (2, 3), (2, 2), ceil=True),
    "ceil_and_pads": Case((1, 40, 11, 11), (3, 3), (3, 2), (2, 0, 1, 2), (2, 1), ceil=True),
    "uneven": Case((1, 16, 9, 12), (3, 2), (1, 3), (0, 1, 2, 0)),
    "dilated": Case((1, 16, 12, 10), (3, 2), (1, 2), (2, 0, 1, 1), (3, 4)),
    "large": Case((1, 16, 14, 14), (7, 7), (2, 2), (3, 3, 3, 3)),
    "many_taps": Case((1, 8, 20, 24), (17, 19), (2, 1), (8, 9, 8, 9)),
    "many_taps_dilated": Case((1, 8, 20, 24), (17, 2), (1, 1), (9, 0, 9, 1), (2, 3)),
    "whole_image": Case((2, 64, 14, 14), (14, 14)),
    "many_groups": Case((2, 64, 28, 28), (3, 3), (1, 1), (1, 1, 1, 1)),
}


def pooled(
    gpu: Harness, op: str, case: Case, x: np.ndarray, *, include: bool = False, offset: int = 0, **how: Any
) -> np.ndarray:
    """[n, c, oh, ow] of x [n, c, h, w], through [n, h, w, c]; tensors lie ``offset`` bytes beyond an aligned address."""
    lain = Tensor(x.transpose(0, 2, 3, 1), offset)
    y = Tensor(Tensor.empty((case.shape[0], *case.out, case.shape[1]), x.dtype.type).array, offset)
    problem = case.problem(op, True, str(x.dtype), count_include_pad=include, alignment=offset or 16)
    gpu.compute(problem, gpu.caps, [lain], [y], **how)
    return y.array.transpose(0, 3, 1, 2)


def pooled_first(gpu: Harness, op: str, case: Case, x: np.ndarray, *, include: bool = False) -> np.ndarray:
    y = Tensor.empty((*case.shape[:2], *case.out), np.float16)
    gpu.compute(case.problem(op, False, count_include_pad=include), gpu.caps, [Tensor(x)], [y])
    return y.array


def bits(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x).view(np.uint16)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_max(gpu: Harness, rng: np.random.Generator, case: Case) -> None:
    x = rng.standard_normal(case.shape).astype(np.float16)
    found = pooled(gpu, "max", case, x)
    want, _ = expected("max", x, case.out, case.kernel, case.strides, case.pads, case.dilations, False, 2, False)
    np.testing.assert_array_equal(found, want.astype(np.float16))
    np.testing.assert_array_equal(bits(found), bits(pooled_first(gpu, "max", case, x)))


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("case", [case for case in CASES.values() if case.shape[1] % 16 == 0], ids=str)
def test_max_of_bytes(gpu: Harness, rng: np.random.Generator, case: Case, offset: int, dtype: str) -> None:
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    x = rng.integers(low, high + 1, case.shape).astype(dtype)
    found = pooled(gpu, "max", case, x, offset=offset)
    want, _ = expected("max", x, case.out, case.kernel, case.strides, case.pads, case.dilations, False, 2, False)
    np.testing.assert_array_equal(found, want)


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_average(gpu: Harness, rng: np.random.Generator, case: Case, include: bool) -> None:
    x = rng.standard_normal(case.shape).astype(np.float16)
    found = pooled(gpu, "average", case, x, include=include)
    want, _ = expected("average", x, case.out, case.kernel, case.strides, case.pads, case.dilations, include, 2, False)
    np.testing.assert_allclose(found, want, rtol=1e-3, atol=1e-6)
    np.testing.assert_array_equal(bits(found), bits(pooled_first(gpu, "average", case, x, include=include)))


def test_sums_are_wider_than_the_elements(gpu: Harness, rng: np.random.Generator) -> None:
    case = CASES["whole_image"]
    x = rng.uniform(500, 1000, size=case.shape).astype(np.float16)
    found = pooled(gpu, "average", case, x)
    np.testing.assert_allclose(found[..., 0, 0], x.astype(np.float64).mean((2, 3)), rtol=1e-3)


@pytest.mark.parametrize("op", ["max", "average"])
def test_special_values(gpu: Harness, rng: np.random.Generator, op: str) -> None:
    """NaN (of any sign), infinities, zeros of both signs and subnormals, channel by channel as with channels first."""
    case = CASES["halving"]
    values = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 6e-8, -6e-8, 65504.0, -1.0], np.float16)
    x = rng.choice(values, case.shape, p=[0.04, *[0.12] * 8])
    found = pooled(gpu, op, case, x)
    first = pooled_first(gpu, op, case, x)
    nan = np.isnan(first)
    assert nan.any() and not nan.all()
    np.testing.assert_array_equal(np.isnan(found), nan)
    np.testing.assert_array_equal(bits(found)[~nan], bits(first)[~nan])


def test_a_nan_is_the_maximum_of_its_channel_only(gpu: Harness) -> None:
    x = np.full((1, 8, 2, 4), -np.inf, np.float16)
    x[0, 5, 1, 2] = np.nan
    found = pooled(gpu, "max", Case(x.shape, (2, 2), (2, 2)), x)
    want = np.full((1, 8, 1, 2), -np.inf)
    want[0, 5, 0, 1] = np.nan
    np.testing.assert_array_equal(found, want)


@pytest.mark.parametrize("include", [False, True])
def test_windows_in_the_padding(gpu: Harness, rng: np.random.Generator, include: bool) -> None:
    case = Case((1, 8, 3, 3), (2, 2), pads=(3, 3, 3, 3))
    x = rng.standard_normal(case.shape).astype(np.float16)
    highest = pooled(gpu, "max", case, x)
    assert (highest[..., 0, 0] == -np.inf).all() and np.isfinite(highest[..., 3:5, 3:5]).all()
    average = pooled(gpu, "average", case, x, include=include)
    corner = average[..., 0, 0]
    assert (corner == 0).all()
    np.testing.assert_array_equal(average, pooled_first(gpu, "average", case, x, include=include))


@pytest.mark.parametrize("op", ["max", "average"])
@pytest.mark.parametrize("offset", [2, 8])
def test_unaligned_tensors(gpu: Harness, rng: np.random.Generator, op: str, offset: int) -> None:
    case = CASES["halving"]
    x = rng.standard_normal(case.shape).astype(np.float16)
    np.testing.assert_array_equal(pooled(gpu, op, case, x, offset=offset), pooled(gpu, op, case, x))


def test_through_slots(gpu: Harness, rng: np.random.Generator) -> None:
    case = CASES["one_unit"]
    x = rng.standard_normal(case.shape).astype(np.float16)
    want = pooled(gpu, "max", case, x)
    np.testing.assert_array_equal(pooled(gpu, "max", case, x, indirect=True, in_memory=True), want)


@pytest.mark.parametrize("op", ["max", "average"])
def test_on_every_kind_of_device(gpu: Harness, caps: DeviceCapabilities, rng: np.random.Generator, op: str) -> None:
    """Whatever the lanes of a workgroup."""
    case = CASES["uneven"]
    x = rng.standard_normal(case.shape).astype(np.float16)
    y = Tensor.empty((case.shape[0], *case.out, case.shape[1]), np.float16)
    lain = Tensor(x.transpose(0, 2, 3, 1))
    gpu.compute(case.problem(op, True, alignment=16), caps, [lain], [y])
    np.testing.assert_array_equal(y.array.transpose(0, 3, 1, 2), pooled_first(gpu, op, case, x))


class TestSelection:
    @pytest.mark.parametrize(
        ("op", "shape", "dtype"),
        [
            ("lp", (1, 8, 4, 4), "float16"),
            ("max", (1, 8, 4, 4), "float32"),
            ("max", (1, 12, 4, 4), "float16"),
            ("max", (1, 24, 4, 4), "int8"),
            ("average", (1, 32, 4, 4), "uint8"),
            ("max", (1, 8, 4), "float16"),
            ("max", (1, 8, 4, 4, 4), "float16"),
            ("max", (1, 8, 0, 4), "float16"),
        ],
    )
    def test_other_pools_are_not_taken(self, op: str, shape: tuple[int, ...], dtype: str) -> None:
        def why_not(op: str, shape: tuple[int, ...], dtype: str, last: bool = True) -> str:
            n, c, *spatial = shape
            ones = (1,) * len(spatial)
            window = Window(ones, ones, ones, (0, 0) * len(spatial), ones)
            problem = PoolProblem(op, n, c, tuple(spatial), window, dtype, channels_last=last)
            return takes_channels_last(problem, GPU)

        assert why_not("max", (1, 8, 4, 4), "float16") == ""
        assert why_not("max", (1, 8, 4, 4), "float16", last=False) == "the channels lie second"
        assert "with channels last there are only" in why_not(op, shape, dtype)

    def test_a_lane_takes_eight_channels(self) -> None:
        problem = Case((4, 64, 56, 56), (2, 2), (2, 2)).problem("max", True, alignment=16)
        [call] = emit(problem, NumpyWorkspace(GPU), [None], [None])
        lanes = call.grid[0] * call.grid[1] * call.spec["LOCAL_X"]
        assert 0 <= lanes - 4 * 64 * 28 * 28 // 8 < call.spec["LOCAL_X"]
        assert call.spec["ALIGNED"] == 1
        assert call.flops == 4 * 64 * 28 * 28 * 4
        assert call.argument_bytes <= 128, "push constants"
