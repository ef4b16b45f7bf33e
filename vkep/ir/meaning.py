"""Pointwise operations as numpy functions, where numpy's own differ from GLSL's or from the project's.

Arrays have the numpy type of their GLSL type (`NUMPY`). float is float32, or float64 where a caller evaluates in it. Where GLSL
leaves a result undefined (division of an integer by 0, NaN in a minimum), these choose one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from vkep.dtypes import DType

Array = NDArray[Any]

#: by GLSL type
NUMPY: dict[str, np.dtype[Any]] = {
    "float": np.dtype(np.float32),
    "double": np.dtype(np.float64),
    "int": np.dtype(np.int32),
    "uint": np.dtype(np.uint32),
    "int64_t": np.dtype(np.int64),
    "uint64_t": np.dtype(np.uint64),
    "bool": np.dtype(np.bool_),
}
_FORMATS: dict[str, tuple[np.dtype[Any], np.dtype[Any]]] = {
    "float16": (np.dtype(np.float16), np.dtype(np.uint16)),
    "bfloat16": (np.dtype(ml_dtypes.bfloat16), np.dtype(np.uint16)),
    "float32": (np.dtype(np.float32), np.dtype(np.uint32)),
    "float64": (np.dtype(np.float64), np.dtype(np.uint64)),
}


def same(x: Array) -> Array:
    """The array."""
    return x


def converted(x: Array, to: np.dtype[Any]) -> Array:
    """Elements of another type. Integers wrap. Floats are truncated towards 0; NaN is 0, and numbers beyond an integer type are
    its nearest end. Integers narrower than 32 bits wrap after that. Negative floats become unsigned as integers do."""
    if to.kind not in "iu" or x.dtype.kind in "iub":
        return x.astype(to, copy=False)
    bits = 64 if to.itemsize == 8 else 32
    signed, unsigned = np.dtype(f"int{bits}"), np.dtype(f"uint{bits}")
    wide = np.where(np.isnan(x), 0, x.astype(np.float64))

    def nearest(kind: np.dtype[Any], low: float, high: float) -> Array:
        inside = np.where((wide >= low) & (wide < high), wide, 0).astype(kind)
        return np.where(wide < low, np.iinfo(kind).min, np.where(wide >= high, np.iinfo(kind).max, inside)).astype(kind)

    whole = nearest(signed, -(2.0 ** (bits - 1)), 2.0 ** (bits - 1))
    if to.kind == "u":
        whole = np.where(wide < 0, whole.astype(unsigned), nearest(unsigned, 0.0, 2.0**bits))
    return whole.astype(to, copy=False)


def quotient(x: Array, y: Array) -> Array:
    """Of integers truncated towards 0, and 0 where ``y`` is."""
    if x.dtype.kind == "f":
        return np.asarray(np.divide(x, y))
    whole = np.floor_divide(x, y)
    return np.where(y == 0, 0, whole + ((np.remainder(x, y) != 0) & ((x < 0) != (y < 0))).astype(whole.dtype))


def remainder(x: Array, y: Array) -> Array:
    """Of integers, with the sign of ``y``, and 0 where ``y`` is."""
    return np.where(y == 0, 0, np.remainder(x, y))


def size_of_remainder(x: Array, y: Array) -> Array:
    """C's fmod of the absolute values."""
    return np.asarray(np.fmod(np.abs(x), np.abs(y)))


def minimum(x: Array, y: Array) -> Array:
    """GLSL's min: of a comparison with NaN the first argument."""
    return np.where(y < x, y, x)


def maximum(x: Array, y: Array) -> Array:
    """GLSL's max: of a comparison with NaN the first argument."""
    return np.where(x < y, y, x)


def clamp(x: Array, low: Array, high: Array) -> Array:
    """GLSL's clamp."""
    return minimum(maximum(x, low), high)


def limited(x: Array, low: Array, high: Array) -> Array:
    """A clamp that keeps NaN."""
    return np.where(np.isnan(x), x, clamp(x, low, high))


def sigmoid(x: Array) -> Array:
    """``1 / (1 + exp(-x))``, without loss for large negative numbers."""
    part = np.exp(-np.abs(x))
    return np.asarray(np.where(x < 0, part, 1) / (1 + part))


_erf = np.vectorize(math.erf, otypes=[np.float64])
_erfc = np.vectorize(math.erfc, otypes=[np.float64])


def erf(x: Array) -> Array:
    """The error function."""
    return np.asarray(_erf(x))


def gelu(x: Array) -> Array:
    """``x`` times the normal distribution function."""
    return np.asarray(0.5 * x * _erfc(-x.astype(np.float64) * math.sqrt(0.5)))


def gelu_tanh(x: Array) -> Array:
    """The approximation of `gelu` by a hyperbolic tangent (ONNX Gelu)."""
    wide = x.astype(np.float64)
    return np.asarray(wide * sigmoid(2 * math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)))


def shift_left(x: Array, y: Array) -> Array:
    """``x << y``."""
    return np.asarray(np.left_shift(x, y.astype(x.dtype)))


def shift_right(x: Array, y: Array) -> Array:
    """``x >> y``, of signed integers with copies of the sign."""
    return np.asarray(np.right_shift(x, y.astype(x.dtype)))


def bits_of(name: str) -> Callable[[Array], Array]:
    """A function from floats to the bits of their representation in an IEEE format or bfloat16."""
    number, bits = _FORMATS[name]
    return lambda x: x.astype(number).view(bits)


def from_bits(name: str) -> Callable[[Array], Array]:
    """The inverse of `bits_of`."""
    number, bits = _FORMATS[name]
    return lambda x: x.astype(bits).view(number)


def low_word(x: Array) -> Array:
    """The low 32 bits of a double."""
    return np.asarray(x.view(np.uint64) & 0xFFFFFFFF)


def high_word(x: Array) -> Array:
    """The high 32 bits of a double."""
    return np.asarray(x.view(np.uint64) >> 32)


def from_words(low: Array, high: Array) -> Array:
    """The double with these bits."""
    return np.asarray((high.astype(np.uint64) << 32) | low.astype(np.uint64)).view(np.float64)


def stored_as(dtype: DType) -> Callable[[Array], Array]:
    """A function that rounds and wraps values as storing them as ``dtype`` and reading them again would."""
    if not dtype.sub_byte_bits:
        return lambda x: x.astype(dtype.numpy).astype(x.dtype)
    bits, sign = (1 << dtype.sub_byte_bits) - 1, 1 << (dtype.sub_byte_bits - 1) if dtype.kind == "int" else 0
    return lambda x: ((x & bits) ^ sign) - sign
