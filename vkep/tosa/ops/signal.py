"""Fourier transforms, as products with their matrices.

TOSA has FFT2D and RFFT2D, but the emulation layer (0.11) crashes where a transform's result is read in the same graph,
and both support only powers of two.
"""

from __future__ import annotations

import math

import numpy as np

from vkep.tosa.graph import TosaBuilder, TosaTensor
from vkep.tosa.ops.movement import part_of
from vkep.tosa.ops.products import matmul_3d
from vkep.tosa.registry import axis_of, constant_of, tosa_operator

_LONGEST = 1024  #: points: the matrix has 4 times its square in elements


@tosa_operator("DFT", types=("float32",), since=17, until=19)
def dft_17(
    b: TosaBuilder,
    x: TosaTensor,
    dft_length: TosaTensor | None = None,
    *,
    axis: int = 1,
    inverse: int = 0,
    onesided: int = 0,
) -> TosaTensor:
    return _dft(b, x, dft_length, axis, bool(inverse), bool(onesided))


@tosa_operator("DFT", types=("float32",), since=20)
def dft_20(
    b: TosaBuilder,
    x: TosaTensor,
    dft_length: TosaTensor | None = None,
    axis: TosaTensor | None = None,
    *,
    inverse: int = 0,
    onesided: int = 0,
) -> TosaTensor:
    along = int(constant_of(axis, "the axis").reshape(-1)[0]) if axis is not None else -2
    return _dft(b, x, dft_length, along, bool(inverse), bool(onesided))


def _dft(
    b: TosaBuilder, x: TosaTensor, length: TosaTensor | None, axis: int, inverse: bool, onesided: bool
) -> TosaTensor:
    """[..., n, ..., 1 or 2] (the last axis: real, imaginary) to [..., m, ..., 2]."""
    axis = axis_of(axis, x.rank)
    if axis == x.rank - 1 or (inverse and onesided):
        b.decline("a transform of the axis of real and imaginary parts, or a one-sided inverse")
    n = int(constant_of(length, "dft_length").reshape(-1)[0]) if length is not None else x.shape[axis]
    if not 0 < n <= _LONGEST:
        b.decline(f"a transform of {n} points; its matrix would be too large above {_LONGEST}")
    kept = min(n, x.shape[axis])  # further points are zeros
    x = part_of(b, x, axis, 0, kept)
    order = (*(i for i in range(x.rank - 1) if i != axis), axis, x.rank - 1)
    lines = [x.shape[i] for i in order[:-2]]
    parts = x.shape[-1]
    matrix = _matrix(n, kept, n // 2 + 1 if onesided else n, parts, inverse)
    rows = b.reshape(b.permute(x, order), (1, math.prod(lines), kept * parts))
    value = matmul_3d(b, b.ordered(rows), b.ordered(b.constant(matrix[None], "float32")), "float32")
    made = b.reshape(b.tensor(value), (*lines, matrix.shape[1] // 2, 2))
    return b.permute(made, [order.index(i) for i in range(x.rank)])


def _matrix(n: int, rows: int, columns: int, parts: int, inverse: bool) -> np.ndarray:
    """[rows * parts, columns * 2]: the contribution of each point's real (and imaginary) part to the two parts of each
    coefficient."""
    angle = 2 * np.pi / n * (np.outer(np.arange(rows), np.arange(columns)) % n) * (1 if inverse else -1)
    cosine, sine = np.cos(angle), np.sin(angle)
    made = np.stack([np.stack([cosine, sine], -1), np.stack([-sine, cosine], -1)], 1)[:, :parts]
    return made.reshape(rows * parts, columns * 2) / (n if inverse else 1)
