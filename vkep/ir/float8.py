"""8-bit and 4-bit floats: kernels move them as bits, and only casts read their values.

Formats: OCP 8-bit Floating Point (OFP8), OCP Microscaling (MX), and the FNUZ forms of arXiv:2206.02915; values
out of range convert as the tables of ONNX Cast say.
"""

from __future__ import annotations

from dataclasses import dataclass

from vkep.dtypes import DType
from vkep.ir.expr import Expr
from vkep.ir.pointwise_ops import NAN


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
_INFINITY = "uintBitsToFloat(0x7f800000u)"


def decode(bits: Expr, dtype: DType) -> Expr:
    """float32 values of codes (a ``uint`` expression)."""
    if dtype.name == "float8_e8m0fnu":  # powers of two: the exponent is float32's own, whose 0 would be subnormal
        code = f"({{0}} == 255u ? {NAN} : ({{0}} == 0u ? uintBitsToFloat(0x00400000u) : uintBitsToFloat({{0}} << 23)))"
        return Expr("float", code, (bits,))
    f = FORMATS[dtype.name]
    size = Expr("uint", f"({{0}} & {f.sign - 1}u)", (bits,))
    shift = 23 - f.mantissa_bits
    normal = f"uintBitsToFloat(({{0}} << {shift}) + {(127 - f.bias) << 23}u)"
    small = f"(float({{0}}) * {2.0 ** (1 - f.bias - f.mantissa_bits)!r})"
    value = Expr("float", f"({{0}} < {1 << f.mantissa_bits}u ? {small} : {normal})", (size,))
    signed = Expr("float", f"(({{1}} & {f.sign}u) != 0u ? -{{0}} : {{0}})", (value, bits))
    if not f.signed_zero:
        return Expr("float", f"({{1}} == {f.sign}u ? {NAN} : {{0}})", (signed, bits))
    if f.infinity is not None:
        special = f"({{1}} > {f.infinity}u ? {NAN} : {_INFINITY})"
        special = f"(({{2}} & {f.sign}u) != 0u ? -{special} : {special})"
        return Expr("float", f"({{1}} >= {f.infinity}u ? {special} : {{0}})", (signed, size, bits))
    if f.nan is not None:
        return Expr("float", f"({{1}} == {f.nan}u ? {NAN} : {{0}})", (signed, size))
    return signed


def encode(value: Expr, dtype: DType, saturate: bool = True, round_mode: str = "up") -> Expr:
    """Codes (``uint``) of float32 values: rounded to nearest, ties to even, then as ONNX Cast's tables say."""
    if dtype.name == "float8_e8m0fnu":
        return _encode_power(value, saturate, round_mode)
    f = FORMATS[dtype.name]
    size = Expr("float", "abs", (value,))
    least = 1 - f.bias
    exponent = Expr("int", f"max(int(floatBitsToUint({{0}}) >> 23) - 127, {least})", (size,))
    # 2**(mantissa bits - exponent), exactly; the exponent is small enough for infinity to stay one
    step = Expr("float", f"uintBitsToFloat(uint({f.mantissa_bits} - {{0}} + 127) << 23)", (exponent,))
    count = Expr("float", "roundEven({0} * {1})", (size, step))
    # the implicit bit of the count carries into the exponent field, also where rounding reached the next power
    code = Expr("uint", f"((uint({{0}} - {least}) << {f.mantissa_bits}) + uint({{1}}))", (exponent, count))
    beyond = f.largest if saturate or f.nan is None else (f.nan if f.infinity is None else f.infinity)
    over = Expr("bool", f"({{0}} > {_limit(f)})", (size,))
    code = Expr("uint", f"({{1}} || {{0}} > {f.largest}u ? {beyond}u : {{0}})", (code, over))
    negative = Expr("uint", f"((floatBitsToUint({{0}}) >> 31) * {f.sign}u)", (value,))
    if f.signed_zero:
        signed = Expr("uint", "({0} | {1})", (code, negative))
    else:
        signed = Expr("uint", f"({{0}} == 0u || {{0}} == {f.sign}u ? {{0}} : ({{0}} | {{1}}))", (code, negative))
    nan = f"{f.nan}u" if f.nan is not None else f"{f.sign}u"  # -0, as ml_dtypes converts it
    if f.nan is not None and f.signed_zero:
        nan = f"({nan} | {{2}})"
    return Expr("uint", f"(isnan({{1}}) ? {nan} : {{0}})", (signed, value, negative))


def _limit(f: NarrowFloat) -> str:
    """A float above which every value is out of range, and below which the count fits: twice the largest finite
    number."""
    return repr(2.0 ** ((1 << f.exponent_bits) - f.bias + 1))


def _encode_power(value: Expr, saturate: bool, round_mode: str) -> Expr:
    bits = Expr("uint", "floatBitsToUint({0})", (value,))
    # up: to the next power where any bit of the mantissa is set; nearest: where its highest is
    raise_at = {"up": "0x7fffffu", "nearest": "0x400000u", "down": "0u"}[round_mode]
    # a subnormal lies between the codes 0 (2**-127) and 1 (2**-126)
    code = Expr("uint", f"(({{0}} + {raise_at}) >> 23 & 511u)", (bits,))
    small = {"up": "({0} > 0x400000u ? 1u : 0u)", "nearest": "({0} >= 0x600000u ? 1u : 0u)", "down": "0u"}[round_mode]
    code = Expr("uint", f"({{0}} < 0x800000u ? {small} : {{1}})", (bits, code))
    top, bottom = ("254u", "0u") if saturate else ("255u", "255u")
    code = Expr("uint", f"({{0}} >= 255u ? {top} : ({{1}} == 0u ? {bottom} : {{0}}))", (code, bits))
    return Expr("uint", "(isnan({1}) ? 255u : {0})", (code, value))
