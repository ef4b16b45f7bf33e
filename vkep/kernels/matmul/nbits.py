"""Products with block-quantised weights of 2, 4 or 8 bits (com.microsoft MatMulNBits): the table of kernels for them.

A product of few rows reads each weight once, so memory bandwidth limits it: weights stay packed until they are in
registers.
"""

from __future__ import annotations

from gpu_shared.capabilities import DeviceCapabilities
from vkep.kernels.fastdiv import LIMIT
from vkep.kernels.kernel import KernelCall
from vkep.kernels.launch import element_type
from vkep.kernels.matmul.along_k import Weights, no_lanes, product_along_k
from vkep.kernels.matmul.codes import matmul_codes, no_codes
from vkep.kernels.matmul.codes_fragments import codes_by_fragments, no_fragments, unknown_order
from vkep.kernels.matmul.codes_tiles import cooperative_codes, no_cooperative_codes, no_tiled_codes, tiled_codes
from vkep.kernels.matmul.nbits_problem import MatMulNBitsProblem
from vkep.kernels.select import Candidate, Emission, When, implement

#: rows beyond which unpacking the weights once and a tiled product are faster
FEW_ROWS = 8


def _no_bits(problem: MatMulNBitsProblem, caps: DeviceCapabilities) -> str:
    if problem.bits not in (2, 4, 8) or problem.block < 16 or problem.block & (problem.block - 1):
        return f"{problem.bits} bits in blocks of {problem.block}; expected 2, 4 or 8 and a power of two from 16"
    if problem.dtype not in ("float32", "float16"):
        return f"element type is {problem.dtype}, expected float32 or float16"
    if problem.zeros not in ("", "packed", problem.dtype):
        return f"zero points are {problem.zeros}, expected packed codes or {problem.dtype}"
    weights = problem.n * problem.blocks * problem.block
    return f"{weights} weights, expected fewer than {LIMIT}" if weights >= LIMIT else no_lanes(caps)


def _few_rows(problem: MatMulNBitsProblem, e: Emission) -> list[KernelCall]:
    bits, block, columns = problem.bits, problem.block, problem.blocks * problem.block
    size = element_type(problem.dtype).itemsize
    # a unit of words must not cross a block, and must be aligned to its size in every column
    words = [
        w for w in (4, 2) if w * 32 // bits <= block and columns * bits // 8 % (4 * w) == problem.at_b % (4 * w) == 0
    ]
    weights = Weights(bits, block, problem.zeros_kind, max(words, default=1))
    params: dict[str, int | float] = {
        "blocks": problem.blocks,
        "zero_bytes": problem.zero_bytes,
        "batch1": 1,
        "a_row": problem.k,
        "a_col": 1,
        "b_col": columns,
        "y_row": problem.n,
        "y_col": 1,
        "alpha": 1.0,
        **dict.fromkeys([f"{name}_batch{axis}" for name in "aby" for axis in (0, 1)], 0),
    }
    sizes, wide = (problem.m, problem.n, problem.k), (problem.at_a | problem.k * size) % 16 == 0
    return product_along_k(sizes, weights, problem.dtype, params, wide, e, problem.flops)


def _both(when: When) -> When:
    """The conditions of a candidate in addition to those of all."""
    return lambda problem, caps: _no_bits(problem, caps) or when(problem, caps)


def _worth_tiles(problem: MatMulNBitsProblem, caps: DeviceCapabilities) -> str:
    return "few rows read each weight once" if problem.m <= FEW_ROWS else ""


implement(
    MatMulNBitsProblem,
    Candidate("fragments", codes_by_fragments, when=_both(no_fragments), worth=unknown_order),
    Candidate("codes", matmul_codes, when=_both(no_codes)),
    Candidate("cooperative", cooperative_codes, when=_both(no_cooperative_codes), worth=_worth_tiles),
    Candidate("tiled", tiled_codes, when=_both(no_tiled_codes), worth=_worth_tiles),
    Candidate("along k", _few_rows, when=_no_bits),
)
