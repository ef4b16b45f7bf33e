"""A product with block-quantised weights of 2, 4 or 8 bits (com.microsoft MatMulNBits)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from vkep.kernels.kernel import KernelCall
from vkep.kernels.launch import ceil_div
from vkep.kernels.problem import Need, Problem, alignment_of
from vkep.kernels.reference import unpacked

#: weights that a lane loads at once, in the kernels of few rows
UNIT = 32


def packed_reach(call: KernelCall, size: int) -> dict[str, int]:
    """The bytes that a kernel's call reads of packed weights, their scales and zero points; ``size``: of an element of a."""
    n, scales = call["n"], call["n"] * call["blocks"] * size
    return {
        "b": n * call["blocks"] * call["BLOCK"] * call["BITS"] // 8,
        "scales": scales,
        "zeros": {0: 0, 1: n * call["zero_bytes"], 2: scales}[call["ZEROS"]],
    }


@dataclass(frozen=True)
class MatMulNBitsProblem(Problem):
    """``y`` [m, n] = ``a`` [m, k] @ W, column j of W being ``(b[j] - zeros[j]) * scales[j]`` block by block.

    ``b`` is [n, blocks, block * bits / 8] bytes at a multiple of 4, ``scales`` [n, blocks] of ``dtype`` (float32 or float16),
    ``zeros`` "packed" (bytes, rows of whole bytes), of ``dtype`` ([n, blocks]) or absent ("") for ``2**(bits - 1)``. The first
    element lies in the lowest bits. ``at_a``, ``at_b`` and ``at_y`` (bytes) divide the addresses of a, b and y.
    """

    m: int
    n: int
    k: int
    bits: int
    block: int
    dtype: str
    zeros: str = ""
    at_a: int = 1
    at_b: int = 4
    at_y: int = 1

    @property
    def matrices(self) -> tuple[int, int, int]:
        return 1, self.m, self.n

    def can_load(self, name: str, alignment: int) -> bool:
        return name != "a" or alignment == 16

    @property
    def blocks(self) -> int:
        """Blocks of a column."""
        return ceil_div(self.k, self.block)

    @property
    def zero_bytes(self) -> int:
        """Bytes of a column's zero points."""
        return ceil_div(self.blocks * self.bits, 8)

    @property
    def params(self) -> dict[str, int]:
        """The arguments of the kernels that load `UNIT` weights at once."""
        units = ceil_div(self.k, UNIT)
        sizes = {"m": self.m, "n": self.n, "k": self.k}
        return {**sizes, "units": units, "blocks": self.blocks, "zero_bytes": self.zero_bytes}

    @property
    def not_in_units(self) -> str:
        """Why these kernels cannot load the weights; "" where they can."""
        if self.block < UNIT:
            return f"blocks of {self.block} weights, expected {UNIT} or more"
        wide = min(16, 4 * self.bits)  # bytes of a load
        return f"the weights lie at a multiple of {self.at_b} bytes, expected {wide}" if self.at_b % wide else ""

    def needs(self) -> tuple[Need, ...]:
        operands = (
            Need("a", self.dtype, (self.m, self.k), flat=True),
            Need("b", "uint8", (self.n, self.blocks, self.block * self.bits // 8), flat=True),
            Need("scales", self.dtype, (self.n, self.blocks), flat=True),
        )
        packed = self.zeros == "packed"
        shape = (self.n, self.zero_bytes if packed else self.blocks)
        zeros = Need("zeros", "uint8" if packed else self.zeros, shape, flat=True)
        return (*operands, zeros) if self.zeros else operands

    def makes(self) -> tuple[Need, ...]:
        return (Need("y", self.dtype, (self.m, self.n), flat=True),)

    def placed(self, operands: Mapping[str, Any]) -> MatMulNBitsProblem:
        return replace(
            self, at_a=alignment_of(operands["a"]), at_b=alignment_of(operands["b"]), at_y=alignment_of(operands["y"])
        )

    @property
    def flops(self) -> int:
        return 2 * self.m * self.n * self.k

    @property
    def zeros_kind(self) -> int:
        """The code of ``zeros`` in kernels: 0 absent, 1 packed, 2 values."""
        return ("", "packed", self.dtype).index(self.zeros)

    def reference(
        self, a: np.ndarray, b: np.ndarray, scales: np.ndarray, zeros: np.ndarray | None = None
    ) -> np.ndarray:
        codes = unpacked(b, self.bits, self.block)  # [n, blocks, block]
        if zeros is None:
            zero = np.full((self.n, self.blocks), 1 << (self.bits - 1))
        else:
            zero = unpacked(zeros, self.bits, self.blocks) if self.zeros == "packed" else zeros
        weights = (codes - zero[..., None]) * scales[..., None]
        return a @ weights.reshape(self.n, -1)[:, : self.k].T
