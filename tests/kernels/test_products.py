"""Generic and few-bit products, windows added up, and deformable windows, as each kind of device selects them."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from gpu_shared.capabilities import DeviceCapabilities
from tests.kernels.harness import Harness, Tensor, as_discrete
from tests.nightly import alternately
from tools.plan_devices import DEVICES
from vkep.errors import Decline
from vkep.kernels.conv.deform import DeformColumnsProblem
from vkep.kernels.matmul.along_k import Weights, share
from vkep.kernels.matmul.cooperative_tiles import float16_shape, no_cooperative_tile
from vkep.kernels.matmul.generic import GenericProductProblem
from vkep.kernels.matmul.nbits_problem import MatMulNBitsProblem
from vkep.kernels.select import choose

RNG = np.random.default_rng(21)


@pytest.mark.parametrize("bits", [2, 4, 8, 16, 32])
@pytest.mark.parametrize("device", DEVICES)
def test_a_unit_of_weights_along_k_has_four_of_them(device: str, bits: int) -> None:
    """The kernel takes them four at a time, also on a CPU driver that does without `is_cpu_driver`'s tiles."""
    chosen = share(2, 9, 32, Weights(bits), DEVICES[device], lambda candidates, *problem: None)
    assert chosen.words * 32 >= 4 * bits


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


def packed(values: np.ndarray[Any, Any], bits: int) -> np.ndarray[Any, Any]:
    """Rows of codes as rows of whole bytes, the first code in the lowest bits."""
    each = 8 // bits
    padded = np.pad(values, ((0, 0), (0, -values.shape[1] % each))).reshape(len(values), -1, each)
    made: np.ndarray[Any, Any] = (padded << (np.arange(each) * bits)).sum(-1).astype(np.uint8)
    return made


@dataclasses.dataclass(frozen=True)
class FewBits:
    """Random operands of a product with packed weights."""

    m: int
    n: int
    k: int
    bits: int = 4
    block: int = 16
    dtype: str = "float32"
    zeros: str = ""  #: as `MatMulNBitsProblem.zeros`, "float" for ``dtype``
    wide: bool = True  #: operands lie at multiples of 16 bytes

    def run(self, gpu: Harness, caps: DeviceCapabilities, **how: Any) -> None:
        m, n, k, bits, block = self.m, self.n, self.k, self.bits, self.block
        blocks = -(-k // block)
        codes = RNG.integers(0, 1 << bits, (n, blocks * block))
        scales = RNG.uniform(0.1, 1, (n, blocks)).astype(self.dtype)
        a = RNG.normal(size=(m, k)).astype(self.dtype)
        points: np.ndarray[Any, Any] = np.full((n, blocks), 1 << (bits - 1))
        operands = [a, packed(codes, bits), scales]
        if self.zeros == "packed":
            points = RNG.integers(0, 1 << bits, (n, blocks))
            operands.append(packed(points, bits))
        elif self.zeros:
            points = RNG.uniform(0, 1 << bits, (n, blocks)).astype(self.dtype)
            operands.append(points)
        y = Tensor.empty((m, n), self.dtype)
        kind = self.dtype if self.zeros == "float" else self.zeros
        places = {"at_a": 16, "at_b": 16, "at_y": 16} if self.wide else {"at_a": 4, "at_b": 4}
        problem = MatMulNBitsProblem(m, n, k, bits, block, self.dtype, kind, **places)
        offset = 0 if self.wide else 4
        gpu.compute(problem, caps, [Tensor(operand, offset) for operand in operands], [y], **how)
        wide = (codes - np.repeat(points.astype(np.float64), block, 1)) * np.repeat(scales.astype(np.float64), block, 1)
        expected = a.astype(np.float64) @ wide[:, :k].T
        rtol = 2e-3 if self.dtype == "float16" else 1e-4
        np.testing.assert_allclose(y.array, expected, rtol=rtol, atol=np.abs(expected).max() * rtol / 2)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(
    "case",
    [
        FewBits(1, 3, 16),
        FewBits(1, 37, 2048, block=32, zeros="packed"),
        FewBits(1, 5, 4096, block=256, zeros="float", wide=False),
        FewBits(3, 5, 70, zeros="float"),
        FewBits(2, 9, 1024, bits=2, block=16, zeros="packed"),
        FewBits(7, 3, 300, bits=2, block=64),
        FewBits(1, 9, 513, bits=8, block=32, zeros="packed"),
        FewBits(8, 17, 512, bits=8, block=128, zeros="float"),
    ],
    ids=str,
)
def test_few_bits(gpu: Harness, caps: DeviceCapabilities, case: FewBits, dtype: str) -> None:
    dataclasses.replace(case, dtype=dtype).run(gpu, caps)


@pytest.mark.wide
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("words", [1, 2, 4])
def test_few_bits_in_every_share(gpu: Harness, bits: int, words: int) -> None:
    caps = as_discrete(gpu.caps)
    case = FewBits(3, 11, 1024, bits, 256)
    for choice in ((2, 8, 2, words, 64), (8, 64, 1, words, 64), (4, 32, 4, words, 32)):
        case.run(gpu, caps, candidate="along k", tuned={f"along_k 3 11 1024 {bits} 256": choice})


@pytest.mark.wide
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(
    ("case", "choice"),
    [
        (FewBits(1, 3, 32, block=32), (2, 8, 128)),
        (FewBits(3, 37, 1056, block=32, zeros="packed"), (4, 16, 128)),
        (FewBits(8, 5, 4096, block=256, zeros="float"), (4, 8, 256)),
        (FewBits(1, 9, 1000, bits=2, block=64, zeros="packed"), (8, 32, 256)),
        (FewBits(2, 9, 513, bits=8, block=32), (4, 32, 128)),
        (FewBits(5, 9, 513, bits=8, block=128, zeros="packed"), (2, 8, 128)),
    ],
    ids=str,
)
def test_few_bits_by_dot_products_of_bytes(gpu: Harness, case: FewBits, choice: tuple[int, ...], dtype: str) -> None:
    caps = as_discrete(gpu.caps)
    key = f"codes {case.m} {case.n} {case.k} {case.bits} {case.block}"
    dataclasses.replace(case, dtype=dtype).run(gpu, caps, candidate="codes", tuned={key: choice})


MANY_ROWS = [
    FewBits(40, 37, 70),
    FewBits(70, 130, 256, block=32, zeros="packed"),
    FewBits(33, 40, 1100, block=64, zeros="float", wide=False),
    FewBits(130, 24, 320, bits=2, block=16, zeros="packed"),
    FewBits(20, 64, 129, bits=8, block=128, zeros="packed"),
    FewBits(9, 300, 512, bits=8, block=32),
]


@pytest.mark.parametrize(("case", "dtype"), alternately(MANY_ROWS, ["float32", "float16"]))
def test_many_rows_by_few_bits_in_tiles(gpu: Harness, case: FewBits, dtype: str) -> None:
    caps = as_discrete(gpu.caps)
    dataclasses.replace(case, dtype=dtype).run(gpu, caps, candidate="tiled")


@pytest.mark.parametrize("case", MANY_ROWS, ids=str)
def test_many_rows_by_few_bits_on_cooperative_matrices(gpu: Harness, case: FewBits) -> None:
    caps = as_discrete(gpu.caps)
    if no_cooperative_tile(caps, True):
        pytest.skip(no_cooperative_tile(caps, True))
    dataclasses.replace(case, dtype="float16").run(gpu, caps, candidate="cooperative")


#: and (columns, n groups, k groups, stages of weights, stages of a)
BY_FRAGMENTS = [
    (FewBits(2, 37, 32, block=32), (1, 1, 4, 1, 1)),
    (FewBits(16, 130, 1056, block=32, zeros="packed"), (2, 2, 2, 2, 1)),
    (FewBits(8, 70, 640, block=64, zeros="float"), (2, 1, 4, 2, 2)),
    (FewBits(31, 33, 1000, bits=2, block=64, zeros="packed"), (1, 1, 4, 2, 2)),
    (FewBits(17, 64, 513, bits=8, block=128, zeros="packed"), (1, 1, 4, 1, 1)),
    (FewBits(5, 16, 4096, bits=8, block=32), (1, 2, 8, 2, 1)),
]


@pytest.mark.parametrize(("case", "choice"), BY_FRAGMENTS, ids=str)
def test_few_rows_by_few_bits_on_cooperative_matrices(gpu: Harness, case: FewBits, choice: tuple[int, ...]) -> None:
    caps = as_discrete(gpu.caps)
    if float16_shape(caps) is None:
        pytest.skip("the device has no cooperative matrices")
    key = f"fragments {case.m} {case.n} {case.k} {case.bits} {case.block}"
    dataclasses.replace(case, dtype="float16").run(gpu, caps, candidate="fragments", tuned={key: choice})


def test_which_kernel_takes_few_bits() -> None:
    gpu, cpu = DEVICES["gpu with cooperative matrices"], DEVICES["cpu"]

    def chosen(m: int, dtype: str, caps: DeviceCapabilities, block: int = 32, at_b: int = 16) -> str:
        return choose(MatMulNBitsProblem(m, 4096, 4096, 4, block, dtype, at_b=at_b), caps).candidate.name

    assert [chosen(m, "float16", gpu) for m in (1, 8, 9, 512)] == ["codes", "fragments", "fragments", "cooperative"]
    narrow = dataclasses.replace(gpu, subgroup_size=16, min_subgroup_size=16, max_subgroup_size=16)
    assert [chosen(m, "float16", narrow) for m in (8, 9)] == ["codes", "cooperative"]
    assert [chosen(m, "float32", gpu) for m in (1, 512)] == ["codes", "tiled"]
    assert chosen(1, "float16", gpu, block=16) == "along k"
    assert chosen(1, "float16", gpu, at_b=4) == "along k"
    assert chosen(1, "float16", cpu) == "along k"


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
