"""Products with block-quantised weights of 2, 4 or 8 bits (com.microsoft MatMulNBits), for few rows.

Such a product reads each weight once, so memory is its limit: weights stay packed up to the registers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from gpu_shared.capabilities import DeviceCapabilities
from vkep.kernels.fastdiv import LIMIT
from vkep.kernels.kernel import Kernel, KernelCall, Operand
from vkep.kernels.launch import ceil_div, element_type, grid, is_cpu
from vkep.kernels.problem import Need, Problem
from vkep.kernels.select import Candidate, Emission, implement


def _reach(call: KernelCall) -> Mapping[str, int]:
    m, n, size = call["m"], call["n"], call.size_of("T")
    return {
        "a": m * call["k"] * size,
        "b": n * call["blocks"] * call["block_words"] * 4,
        "scales": n * call["blocks"] * size,
        "zeros": n * call["zero_bytes"] if call["HAS_ZEROS"] else 0,
        "y": m * n * size,
    }


MATMUL_NBITS = Kernel(
    "matmul_nbits.comp",
    operands=(Operand("a"), Operand("b"), Operand("scales"), Operand("zeros"), Operand("y", writes=True)),
    params=tuple((name, "uint") for name in ("m", "n", "k", "blocks", "block_words", "zero_bytes")),
    spec={"BITS": 4, "ROWS": 4, "BLOCK": 32, "HAS_ZEROS": 0},
    variants=({"T": "float"}, {"T": "float16_t"}),
    reach=_reach,
)
#: rows beyond which unpacking the weights once and a tiled product are the faster way
FEW_ROWS = 8


@dataclass(frozen=True)
class MatMulNBitsProblem(Problem):
    """``y`` [m, n] = ``a`` [m, k] @ W, column j of W being ``(b[j] - zeros[j]) * scales[j]`` block by block.

    ``b`` is [n, blocks, block * bits / 8] bytes at a multiple of 4, ``scales`` [n, blocks] of ``dtype`` (float32 or float16),
    ``zeros`` packed bytes, rows of whole bytes, or absent for ``2**(bits - 1)``. The first element lies in the lowest bits.
    """

    aligned: ClassVar[bool] = True

    m: int
    n: int
    k: int
    bits: int
    block: int
    dtype: str
    has_zeros: bool

    @property
    def blocks(self) -> int:
        """Of a column."""
        return ceil_div(self.k, self.block)

    @property
    def zero_bytes(self) -> int:
        """Of a column."""
        return ceil_div(self.blocks * self.bits, 8)

    def needs(self) -> tuple[Need, ...]:
        operands = (
            Need("a", self.dtype, (self.m, self.k), flat=True),
            Need("b", "uint8", (self.n, self.blocks, self.block * self.bits // 8), flat=True),
            Need("scales", self.dtype, (self.n, self.blocks), flat=True),
        )
        zeros = Need("zeros", "uint8", (self.n, self.zero_bytes), flat=True)
        return (*operands, zeros) if self.has_zeros else operands

    def makes(self) -> tuple[Need, ...]:
        return (Need("y", self.dtype, (self.m, self.n), flat=True),)

    @property
    def flops(self) -> int:
        return 2 * self.m * self.n * self.k


def _no_bits(problem: MatMulNBitsProblem, caps: DeviceCapabilities) -> str:
    if problem.bits not in (2, 4, 8) or problem.block < 16 or problem.block & (problem.block - 1):
        return f"{problem.bits} bits in blocks of {problem.block}; expected 2, 4 or 8 and a power of two from 16"
    if problem.dtype not in ("float32", "float16"):
        return f"element type is {problem.dtype}, expected float32 or float16"
    weights = problem.n * problem.blocks * problem.block
    return f"{weights} weights, expected fewer than {LIMIT}" if weights >= LIMIT else ""


def _nbits(problem: MatMulNBitsProblem, e: Emission) -> KernelCall:
    bits, block, blocks = problem.bits, problem.block, problem.blocks
    rows = min(4, 1 << (problem.m - 1).bit_length())
    local = e.caps.subgroup_size if is_cpu(e.caps) else 64
    local = min(local, 1 << (blocks * block * bits // 32 - 1).bit_length())
    return MATMUL_NBITS.call(
        grid=grid(problem.n, ceil_div(problem.m, rows)),
        operands={"zeros": None, **e.operands},
        params={
            "m": problem.m,
            "n": problem.n,
            "k": problem.k,
            "blocks": blocks,
            "block_words": block * bits // 32,
            "zero_bytes": problem.zero_bytes,
        },
        spec={"BITS": bits, "ROWS": rows, "BLOCK": block, "HAS_ZEROS": int(problem.has_zeros)},
        defines={"T": element_type(problem.dtype).glsl},
        local_size=(local,),
    )


implement(MatMulNBitsProblem, Candidate("nbits", _nbits, when=_no_bits))
