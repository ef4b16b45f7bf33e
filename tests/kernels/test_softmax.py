"""Softmax and log-softmax against numpy at float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpu_shared.capabilities import DeviceCapabilities
from tests.kernels.harness import Harness, NumpyWorkspace, Tensor
from vkep.dtypes import DTYPES
from vkep.errors import Decline
from vkep.kernels.epilogue import Epilogue
from vkep.kernels.reductions.norm import SoftmaxProblem
from vkep.kernels.select import choose, emit

SHAPES = [(1, 1, 1), (3, 10, 1), (2, 1000, 1), (600, 12, 1), (1, 5000, 1), (2, 21, 5), (1, 7, 300), (1, 9000, 2)]


def expected(x: np.ndarray, log: bool, alpha: float = 1.0) -> np.ndarray:
    wide = x.astype(np.float64) * alpha
    wide = wide - wide.max(1, keepdims=True)
    total = np.exp(wide).sum(1, keepdims=True)
    return wide - np.log(total) if log else np.exp(wide) / total


def run(gpu: Harness, caps: DeviceCapabilities, x: np.ndarray, dtype: str, **kwargs: Any) -> np.ndarray:
    y = Tensor.empty(x.shape, x.dtype)
    outer, axis, inner = x.shape
    gpu.compute(SoftmaxProblem(outer, axis, inner, dtype, **kwargs), caps, [Tensor(x)], [y])
    return y.array


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_float32(
    gpu: Harness, caps: DeviceCapabilities, rng: np.random.Generator, shape: tuple[int, int, int], log: bool
) -> None:
    x = (rng.normal(size=shape) * 5).astype(np.float32)
    np.testing.assert_allclose(
        run(gpu, caps, x, "float32", log=log), expected(x, log), rtol=1e-5, atol=1e-6 if log else 1e-7
    )


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize("shape", SHAPES)
def test_columns_of_minus_infinity(
    gpu: Harness, caps: DeviceCapabilities, rng: np.random.Generator, shape: tuple[int, int, int]
) -> None:
    x = rng.normal(size=shape).astype(np.float32)
    x[:, 1:] = np.where(rng.random(x[:, 1:].shape) < 0.5, -np.inf, x[:, 1:])
    x[0, :, -1] = -np.inf
    with np.errstate(invalid="ignore"):
        right = expected(x, False)
    right[0, :, -1] = np.nan
    np.testing.assert_allclose(run(gpu, caps, x, "float32"), right, rtol=1e-5, atol=1e-7)
    right[0, :, -1] = 0
    np.testing.assert_allclose(run(gpu, caps, x, "float32", zeros=True), right, rtol=1e-5, atol=1e-7)


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_types(gpu: Harness, caps: DeviceCapabilities, rng: np.random.Generator, dtype: str) -> None:
    rtol = {"float16": 2e-3, "bfloat16": 2**-7}[dtype]
    for shape in [(3, 77, 1), (2, 2100, 1), (1, 13, 9)]:
        x = rng.normal(size=shape).astype(DTYPES[dtype].numpy)
        got = run(gpu, caps, x, dtype).astype(np.float64)
        np.testing.assert_allclose(got, expected(x, False), rtol=rtol, atol=1e-6)


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("log", [False, True])
def test_four_at_a_time(
    gpu: Harness, caps: DeviceCapabilities, rng: np.random.Generator, dtype: str, log: bool
) -> None:
    for shape in [(1, 4, 1), (3, 100, 1), (130, 128, 1), (2, 5000, 1), (1, 18000, 1)]:
        x = rng.normal(size=shape).astype(dtype)
        calls = emit(SoftmaxProblem(*shape, dtype, alignment=16), NumpyWorkspace(caps), [None], [None])
        assert "VECTOR_IN_T" in dict(calls[0].variant.defines)
        rtol, atol = (1e-5, 1e-6) if dtype == "float32" else (2e-3, 1e-5)
        np.testing.assert_allclose(
            run(gpu, caps, x, dtype, log=log, alignment=16), expected(x, log), rtol=rtol, atol=atol
        )


#: what makes codes of a result, by places: a step of 2**-7
TO_CODES = Epilogue("v = clamp(roundEven(v * 128.0) + float(row % 3u + col % 5u) - float(o % 7u), -128.0, 127.0);")


def codes_of(y: np.ndarray) -> np.ndarray:
    """Results [rows, columns] after ``TO_CODES``, but not rounded."""
    row, col = np.indices(y.shape)
    return np.clip(y * 128 + row % 3 + col % 5 - (row * y.shape[1] + col) % 7, -128, 127)


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize("to", ["int8", "float16"])
@pytest.mark.parametrize("alignment", [1, 16])
def test_epilogues_store_codes(
    gpu: Harness, caps: DeviceCapabilities, rng: np.random.Generator, to: str, alignment: int
) -> None:
    for shape in [(3, 10), (130, 128), (2, 5000), (5, 301)]:
        x, y = (rng.normal(size=shape) * 3).astype(np.float32), Tensor.empty(shape, np.dtype(to).type)
        problem = SoftmaxProblem(*shape, 1, "float32", to=to, alignment=alignment)
        gpu.compute(problem, caps, [Tensor(x)], [y], epilogue=TO_CODES)
        want = codes_of(expected(x[:, :, None], False)[:, :, 0])
        assert np.max(np.abs(y.array.astype(np.float64) - want)) <= 0.5001, problem


def test_scale(gpu: Harness, caps: DeviceCapabilities, rng: np.random.Generator) -> None:
    x = rng.normal(size=(4, 50, 1)).astype(np.float32)
    np.testing.assert_allclose(run(gpu, caps, x, "float32", alpha=0.125), expected(x, False, 0.125), rtol=1e-5)


def test_large_values_do_not_overflow_and_masked_ones_vanish(gpu: Harness, caps: DeviceCapabilities) -> None:
    x = np.array([[1e30, 1e30, -1e30], [-np.inf, 0, 0], [88.8, 800, 8000]], np.float32)[:, :, None]
    np.testing.assert_allclose(
        run(gpu, caps, x, "float32")[:, :, 0], [[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.0, 0.0, 1.0]]
    )


def test_nan_fills_its_own_row_only(gpu: Harness, caps: DeviceCapabilities, rng: np.random.Generator) -> None:
    x = rng.normal(size=(3, 40, 1)).astype(np.float32)
    x[1, 7] = np.nan
    got = run(gpu, caps, x, "float32")
    assert np.isnan(got[1]).all()
    assert np.isfinite(got[[0, 2]]).all()


@pytest.mark.usefixtures("kept")
def test_in_place(gpu: Harness, caps: DeviceCapabilities, rng: np.random.Generator) -> None:
    x = rng.normal(size=(5, 300, 1)).astype(np.float32)
    both = Tensor(x)
    gpu.compute(SoftmaxProblem(5, 300, 1, "float32"), caps, [both], [both])
    np.testing.assert_allclose(both.array, expected(x, False), rtol=1e-5)


def test_wrong_types(caps: DeviceCapabilities) -> None:
    with pytest.raises(Decline, match="element type is 'int32'"):
        choose(SoftmaxProblem(1, 2, 1, "int32"), caps)
