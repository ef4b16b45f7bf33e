"""8-bit and 4-bit floats: kernels move them as bits, and only casts read their values.

Formats: OCP 8-bit Floating Point (OFP8), OCP Microscaling (MX), and the FNUZ forms of arXiv:2206.02915; values
out of range convert as the tables of ONNX Cast say.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from vkep.dtypes import DType
from vkep.ir import algebra as fn
from vkep.ir.algebra import equal, not_equal, where
from vkep.ir.expr import Expr


@dataclass(frozen=True)
class NarrowFloat:
    """A format with a sign bit: its fields, and the codes (without the sign) of infinity and NaN."""

    exponent_bits: int
    mantissa_bits: int
    bias: int
    largest: int  #: code of the greatest finite number
    nan: int | None  #: code of NaN (None: the format has none)
    infinity: int | None = None
    signed_zero: bool = True  #: False (FNUZ): the code of -0 is NaN

    @property
    def sign(self) -> int:
        """The bit of the sign."""
        return 1 << (self.exponent_bits + self.mantissa_bits)


FORMATS = {
    "float8_e4m3fn": NarrowFloat(4, 3, 7, 0x7E, 0x7F),
    "float8_e4m3fnuz": NarrowFloat(4, 3, 8, 0x7F, 0x80, signed_zero=False),
    "float8_e5m2": NarrowFloat(5, 2, 15, 0x7B, 0x7E, infinity=0x7C),
    "float8_e5m2fnuz": NarrowFloat(5, 2, 16, 0x7F, 0x80, signed_zero=False),
    "float4_e2m1fn": NarrowFloat(2, 1, 1, 0x7, None),
}


def decode(bits: Expr, dtype: DType) -> Expr:
    """float32 values of codes (a ``uint`` expression)."""
    if dtype.name == "float8_e8m0fnu":  # powers of two: the exponent is float32's own, whose 0 would be subnormal
        return fn.from_float_bits(where(equal(bits, 255), 0x7FC00000, where(equal(bits, 0), 0x400000, bits << 23)))
    f = FORMATS[dtype.name]
    size, negative = bits & (f.sign - 1), not_equal(bits & f.sign, 0)
    normal = fn.from_float_bits((size << (23 - f.mantissa_bits)) + ((127 - f.bias) << 23))
    small = fn.cast(size, "float") * 2.0 ** (1 - f.bias - f.mantissa_bits)
    value = where(size < (1 << f.mantissa_bits), small, normal)
    if f.infinity is not None:
        value = where(size > f.infinity, math.nan, where(equal(size, f.infinity), math.inf, value))
    value = where(negative, -value, value)
    if not f.signed_zero:
        return where(equal(bits, f.sign), math.nan, value)
    return value if f.nan is None or f.infinity is not None else where(equal(size, f.nan), math.nan, value)


def encode(value: Expr, dtype: DType, saturate: bool = True, round_mode: str = "up") -> Expr:
    """Codes (``uint``) of float32 values: rounded to nearest, ties to even, then as ONNX Cast's tables say."""
    if dtype.name == "float8_e8m0fnu":
        return _encode_power(value, saturate, round_mode)
    f = FORMATS[dtype.name]
    size, least = abs(value), 1 - f.bias
    exponent = fn.maximum(fn.cast(fn.float_bits(size) >> 23, "int") - 127, least)
    # 2**(mantissa bits - exponent), exactly; the exponent is small enough for infinity to stay one
    step = fn.from_float_bits(fn.cast(f.mantissa_bits + 127 - exponent, "uint") << 23)
    count = fn.cast(fn.round_even(size * step), "uint")
    # the implicit bit of the count carries into the exponent field, also where rounding reached the next power
    code = (fn.cast(exponent - least, "uint") << f.mantissa_bits) + count
    beyond = f.largest if saturate or f.nan is None else (f.nan if f.infinity is None else f.infinity)
    code = where((size > _limit(f)) | (code > f.largest), beyond, code)
    negative = (fn.float_bits(value) >> 31) * f.sign
    signed = code | negative
    if not f.signed_zero:
        signed = where(equal(code, 0) | equal(code, f.sign), code, signed)
    nan = f.nan if f.nan is not None else f.sign  # -0, as ml_dtypes converts it
    return where(fn.isnan(value), negative | nan if f.nan is not None and f.signed_zero else nan, signed)


def _limit(f: NarrowFloat) -> float:
    """A float above which every value is out of range, and below which the count fits: twice the largest finite
    number."""
    return float(2.0 ** ((1 << f.exponent_bits) - f.bias + 1))


def _encode_power(value: Expr, saturate: bool, round_mode: str) -> Expr:
    bits = fn.float_bits(value)
    # up: to the next power where any bit of the mantissa is set; nearest: where its highest is
    raise_at = {"up": 0x7FFFFF, "nearest": 0x400000, "down": 0}[round_mode]
    # a subnormal lies between the codes 0 (2**-127) and 1 (2**-126), and becomes 1 from this one on
    second = {"up": 0x400001, "nearest": 0x600000, "down": 0x800000}[round_mode]
    code = where(bits < 0x800000, fn.cast(bits >= second, "uint"), ((bits + raise_at) >> 23) & 511)
    top, bottom = (254, 0) if saturate else (255, 255)
    code = where(code >= 255, top, where(equal(bits, 0), bottom, code))
    return where(fn.isnan(value), 255, code)
