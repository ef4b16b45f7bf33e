"""Generic and few-bit products, windows added up, and deformable windows, as each kind of device selects them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpu_shared.capabilities import DeviceCapabilities
from tests.kernels.harness import Harness, Tensor
from vkep.errors import Decline
from vkep.kernels.deform import DeformColumnsProblem
from vkep.kernels.matmul_generic import GenericProductProblem
from vkep.kernels.matmul_nbits import MatMulNBitsProblem
from vkep.kernels.select import choose

RNG = np.random.default_rng(21)


@pytest.mark.parametrize(
    "types",
    [
        ("int8", "int8", "int32"),
        ("uint8", "int8", "int32"),
        ("int16", "int16", "int32"),
        ("int64", "int64", "int64"),
        ("uint32", "uint32", "uint32"),
        ("float64", "float64", "float64"),
    ],
)
@pytest.mark.parametrize("sizes", [(1, 1, 1), (5, 7, 9), (4, 8, 33), (1, 20, 3)])
def test_generic_product(
    gpu: Harness, caps: DeviceCapabilities, types: tuple[str, str, str], sizes: tuple[int, int, int]
) -> None:
    (m, n, k), batch = sizes, (2, 3)
    low = 0 if types[0].startswith("u") else -9
    a = RNG.integers(low, 9, (*batch, m, k)).astype(types[0])
    b = RNG.integers(low if types[1] != "int8" else -9, 9, (batch[1], n, k)).astype(types[1])  # read transposed
    y = Tensor.empty((*batch, m, n), types[2])
    a_strides, b_strides = (batch[1] * m * k, m * k, k, 1), (0, n * k, 1, k)
    gpu.compute(GenericProductProblem(batch, m, n, k, a_strides, b_strides, types), caps, [Tensor(a), Tensor(b)], [y])
    wide = np.float64 if types[2] == "float64" else np.int64
    np.testing.assert_array_equal(y.array, (a.astype(wide) @ b.astype(wide).swapaxes(1, 2)).astype(types[2]))


def test_generic_product_refuses_what_it_cannot_store(gpu: Harness) -> None:
    with pytest.raises(Decline, match="bfloat16"):
        choose(GenericProductProblem((1, 1), 1, 1, 1, (0, 0, 1, 1), (0, 0, 1, 1), ("bfloat16",) * 3), gpu.caps)
    with pytest.raises(ValueError, match="below 0"):
        GenericProductProblem((1, 1), 2, 1, 1, (0, 0, -1, 1), (0, 0, 1, 1), ("int32",) * 3)


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("sizes", [(1, 3, 16), (3, 5, 70), (8, 17, 300)])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_few_bits(
    gpu: Harness, caps: DeviceCapabilities, bits: int, zeros: bool, sizes: tuple[int, int, int], dtype: str
) -> None:
    (m, n, k), block = sizes, 16
    blocks = -(-k // block)
    codes = RNG.integers(0, 1 << bits, (n, blocks * block))
    points = RNG.integers(0, 1 << bits, (n, blocks)) if zeros else np.full((n, blocks), 1 << (bits - 1))
    scales = RNG.uniform(0.1, 1, (n, blocks)).astype(dtype)
    a = RNG.normal(size=(m, k)).astype(dtype)

    def packed(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        each = 8 // bits
        padded = np.pad(values, ((0, 0), (0, -values.shape[1] % each))).reshape(n, -1, each)
        return (padded << (np.arange(each) * bits)).sum(-1).astype(np.uint8)

    y = Tensor.empty((m, n), dtype)
    operands = [a, packed(codes), scales, *([packed(points)] if zeros else [])]
    problem = MatMulNBitsProblem(m, n, k, bits, block, dtype, zeros)
    gpu.compute(problem, caps, [Tensor(operand) for operand in operands], [y])
    weights = (codes - np.repeat(points, block, 1)) * np.repeat(scales.astype(np.float64), block, 1)
    expected = a.astype(np.float64) @ weights[:, :k].T
    np.testing.assert_allclose(
        y.array, expected, rtol=2e-3 if dtype == "float16" else 1e-4, atol=np.abs(expected).max() * 1e-3
    )


@pytest.mark.parametrize("masked", [False, True])
def test_deformable_windows_without_offsets_are_windows(gpu: Harness, caps: DeviceCapabilities, masked: bool) -> None:
    x = RNG.normal(size=(2, 4, 6, 7)).astype(np.float32)
    kernel, out = (3, 2), (6, 6)  # padded by (1, 0) in front
    offsets = np.zeros((2, 2 * 6 * 2, *out), np.float32)
    mask = RNG.random((2, 2 * 6, *out)).astype(np.float32) if masked else None
    y = Tensor.empty((2, 4, *kernel, *out), np.float32)
    given = [Tensor(t) for t in (x, offsets, mask) if t is not None]
    problem = DeformColumnsProblem(x.shape, kernel, out, (1, 1), (1, 1), (1, 0), 2, masked, "float32")
    gpu.compute(problem, caps, given, [y])
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, kernel, (2, 3)).transpose(0, 1, 4, 5, 2, 3)
    factors = 1 if mask is None else np.repeat(mask.reshape(2, 2, *kernel, *out), 2, 1)
    np.testing.assert_allclose(y.array, windows * factors, atol=1e-6)
