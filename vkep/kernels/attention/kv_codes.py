"""The encoding of caches of keys and values whose elements are not floats of the kernels: ``shaders/kv_codes.glsl``."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from vkep.kernels.reference import unpacked

#: the type of a cache's elements: how many numbers one holds, and its type in GLSL
CODES = {
    "bfloat16": (1, "uint16_t"),
    "int8": (1, "uint8_t"),
    "float8_e4m3fn": (1, "uint8_t"),
    "uint8": (2, "uint8_t"),  # numbers of 4 bits plus 8, the first in the low ones
}
#: as shaders count them; 0: the floats that a kernel computes with
NUMBERS = {"": 0} | {name: number for number, name in enumerate(CODES, 1)}


def scales_of(code: int, channels: int, count: int) -> int:
    """Scales of keys or values: none for floats, else one, or ``count`` with ``channels``."""
    return 0 if code < NUMBERS["int8"] else count if channels else 1


def decoded(codes: np.ndarray, coding: str, size: int, scale: np.ndarray | None) -> np.ndarray:
    """The numbers of a cache [batch, heads, rows, width] of elements ``coding``; rows have ``size`` of them. ``scale`` has one
    element, or one for each head and feature."""
    if coding in ("", "bfloat16"):
        return codes
    if coding == "uint8":
        codes = unpacked(codes, 4, size) - 8
    elif coding == "float8_e4m3fn":
        codes = codes.view(ml_dtypes.float8_e4m3fn)
    return codes.astype(np.float64) * _spread(scale, codes.shape)


def encoded(x: np.ndarray, coding: str, scale: np.ndarray | None) -> np.ndarray:
    """The inverse of `decoded`: numbers divided by their scale, rounded to nearest, ties to even, and clamped."""
    if coding in ("", "bfloat16"):
        return x
    y = x / _spread(scale, x.shape)
    if coding == "float8_e4m3fn":
        return np.clip(y, -448.0, 448.0).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    if coding == "int8":
        return np.clip(np.rint(y), -128, 127).astype(np.int8)
    codes = (np.clip(np.rint(y), -8, 7) + 8).astype(np.uint8)
    codes = np.pad(codes, [*[(0, 0)] * 3, (0, codes.shape[3] % 2)], constant_values=8)
    return codes[..., ::2] | codes[..., 1::2] << 4


def is_number(codes: np.ndarray, coding: str) -> np.ndarray:
    """Whether the elements of a cache are finite."""
    if coding == "float8_e4m3fn":
        return (codes & 127) != 127
    return np.isfinite(codes) if codes.dtype.kind == "f" else np.ones(codes.shape, bool)


def _spread(scale: np.ndarray | None, shape: tuple[int, ...]) -> np.ndarray:
    assert scale is not None
    return scale if scale.size == 1 else scale.reshape(shape[1], 1, shape[3])
