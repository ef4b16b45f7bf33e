"""Products of the RMS norm of a row, as a GPU selects them, and the pass that folds norms into them."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from gpu_shared.capabilities import DeviceCapabilities
from tests.kernels.harness import Harness, Tensor
from tests.kernels.test_products import packed
from vkep.errors import Decline
from vkep.kernels.matmul_nbits_problem import MatMulNBitsProblem
from vkep.kernels.matmul_problem import MatMulProblem
from vkep.kernels.normed_product import NormedProductProblem
from vkep.kernels.select import choose

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(7)
EPSILON = 1e-3


@pytest.fixture(scope="module")
def discrete(gpu: Harness) -> DeviceCapabilities:
    """The device, with the kernels of a discrete GPU."""
    return dataclasses.replace(gpu.caps, device_type="discrete")


def normed(a: Array, gain: Array) -> Array:
    wide = a.astype(np.float64)
    return wide / np.sqrt((wide**2).mean() + EPSILON) * gain.astype(np.float64)


def compare(gpu: Harness, caps: DeviceCapabilities, problem: Any, weights: list[Array], matrix: Array) -> None:
    """Run a problem with a row and a gain that are random; ``matrix`` float64 [k, n] are its weights."""
    dtype = problem.product.dtype
    a, gain = RNG.normal(2, 3, len(matrix)).astype(dtype), RNG.uniform(-2, 2, len(matrix)).astype(dtype)
    y = Tensor.empty((1, 1, 1, matrix.shape[1]), dtype)
    gpu.compute(problem, caps, [Tensor(a), Tensor(gain), *map(Tensor, weights)], [y])
    expected = normed(a, gain) @ matrix
    rtol = 2e-3 if dtype == "float16" else 1e-4
    np.testing.assert_allclose(y.array.reshape(-1), expected, rtol=rtol, atol=np.abs(expected).max() * rtol / 2)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("n", "k", "bits", "block"), [(70, 2048, 4, 32), (33, 1000, 8, 128)])
def test_packed_weights(
    gpu: Harness, discrete: DeviceCapabilities, n: int, k: int, bits: int, block: int, dtype: str
) -> None:
    if not discrete.has("integer_dot_product"):
        pytest.skip("the device has no dot products of packed bytes")
    blocks = -(-k // block)
    codes, scales = RNG.integers(0, 1 << bits, (n, blocks * block)), RNG.uniform(0.1, 1, (n, blocks)).astype(dtype)
    points = RNG.integers(0, 1 << bits, (n, blocks))
    product = MatMulNBitsProblem(1, n, k, bits, block, dtype, "packed", at_a=16, at_b=16, at_y=16)
    wide = (codes - np.repeat(points, block, 1)) * np.repeat(scales.astype(np.float64), block, 1)
    weights = [packed(codes, bits), scales, packed(points, bits)]
    compare(gpu, discrete, NormedProductProblem(product, EPSILON), weights, wide[:, :k].T)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("n", "k"), [(257, 640), (4096, 64)])
def test_dense_weights(gpu: Harness, discrete: DeviceCapabilities, n: int, k: int, dtype: str) -> None:
    b = RNG.normal(size=(k, n)).astype(dtype)
    product = MatMulProblem(1, n, k, (0, k, 1), (0, n, 1), dtype=dtype, b_constant=True, alignment=16)
    compare(gpu, discrete, NormedProductProblem(product, EPSILON), [b], b.astype(np.float64))


def test_other_products_are_refused(discrete: DeviceCapabilities, gpu: Harness) -> None:
    rows = MatMulProblem(2, 8, 8, (0, 8, 1), (0, 8, 1))
    with pytest.raises(ValueError, match="2 rows, expected 1"):
        NormedProductProblem(rows, EPSILON)
    along_k = MatMulProblem(1, 64, 64, (0, 64, 1), (0, 1, 64), alignment=16)
    with pytest.raises(Decline, match="along k"):
        choose(NormedProductProblem(along_k, EPSILON), discrete)
