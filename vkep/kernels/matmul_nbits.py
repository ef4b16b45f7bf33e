"""Products with block-quantised weights of 2, 4 or 8 bits (com.microsoft MatMulNBits), for few rows.

Such a product reads each weight once, so memory is its limit: weights stay packed up to the registers.
"""

from __future__ import annotations

from typing import Any

from gpu_shared.capabilities import DeviceCapabilities
from vkep.kernels.kernel import Kernel, KernelCall, Operand
from vkep.kernels.launch import ceil_div, element_count, element_type, grid, is_cpu

MATMUL_NBITS = Kernel(
    "matmul_nbits.comp",
    operands=(Operand("a"), Operand("b"), Operand("scales"), Operand("zeros"), Operand("y", writes=True)),
    params=tuple((name, "uint") for name in ("m", "n", "k", "blocks", "block_words", "zero_bytes")),
    spec={"BITS": 4, "ROWS": 4, "BLOCK": 32, "HAS_ZEROS": 0},
    variants=({"T": "float"}, {"T": "float16_t"}),
)
#: rows beyond which unpacking the weights once and a tiled product are the faster way
FEW_ROWS = 8


def matmul_nbits(
    m: int,
    n: int,
    k: int,
    bits: int,
    block: int,
    dtype: str,
    caps: DeviceCapabilities,
    a: Any,
    b: Any,
    scales: Any,
    zeros: Any,
    y: Any,
) -> list[KernelCall]:
    """``y`` [m, n] = ``a`` [m, k] @ W, column j of W being ``(b[j] - zeros[j]) * scales[j]`` block by block.

    ``b`` is [n, blocks, block * bits / 8] bytes, ``scales`` [n, blocks] of ``dtype`` (float32 or float16), ``zeros``
    packed bytes, rows of whole bytes, or None for ``2**(bits - 1)``. The first element lies in the lowest bits. Raises
    `ValueError` for other bits or types.
    """
    if bits not in (2, 4, 8) or block < 16 or block & (block - 1):
        raise ValueError(
            f"matmul_nbits: {bits} bits in blocks of {block}; expected 2, 4 or 8 and a power of two from 16"
        )
    if dtype not in ("float32", "float16"):
        raise ValueError(f"matmul_nbits: element type is {dtype}, expected float32 or float16")
    blocks = ceil_div(k, block)
    element_count("matmul_nbits weights", n, blocks, block)
    if not element_count("matmul_nbits", m, n):
        return []
    rows = min(4, 1 << (m - 1).bit_length())
    local = caps.subgroup_size if is_cpu(caps) else 64
    local = min(local, 1 << (blocks * block * bits // 32 - 1).bit_length())
    return [
        MATMUL_NBITS.call(
            grid=grid(n, ceil_div(m, rows)),
            operands={"a": a, "b": b, "scales": scales, "zeros": zeros, "y": y},
            params={
                "m": m,
                "n": n,
                "k": k,
                "blocks": blocks,
                "block_words": block * bits // 32,
                "zero_bytes": ceil_div(blocks * bits, 8),
            },
            spec={"BITS": bits, "ROWS": rows, "BLOCK": block, "HAS_ZEROS": int(zeros is not None)},
            defines={"T": element_type(dtype).glsl},
            local_size=(local,),
            flops=2 * m * n * k,
        )
    ]
