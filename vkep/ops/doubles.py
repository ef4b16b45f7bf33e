"""Functions in double precision, which GLSL lacks: it has +, -, *, /, sqrt, abs, floor and their like of doubles. Each is an
expression that is right to a few units in the last place; of angles beyond a million the sine and its like lose digits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from vkep.ir.builder import Builder
from vkep.ir.expr import Const, Expr

_INFINITY, _NAN = "packDouble2x32(uvec2(0u, 0x7ff00000u))", "packDouble2x32(uvec2(0u, 0x7ff80000u))"


def _polynomial(variable: str, coefficients: Sequence[float]) -> str:
    """GLSL for a polynomial in double precision, the constant coefficient first (Horner's scheme)."""
    code = f"{coefficients[-1]!r}lf"
    for c in reversed(coefficients[:-1]):
        code = f"({c!r}lf + {variable} * {code})"
    return code


def exp(b: Builder, x: Expr) -> Expr:
    """2**n times the series of the remainder, whose magnitude is below ln(2)
    / 2."""
    n = b.expr("roundEven(clamp({0}, -800.0lf, 800.0lf) * 1.4426950408889634lf)", x)
    # ln(2) in two parts, the first with few bits, so that the product with n is exact
    rest = b.expr("({0} - {1} * 0.693147180369123816490lf - {1} * 1.90821492927058770002e-10lf)", x, n)
    series = b.expr(_polynomial("{0}", [1 / math.factorial(k) for k in range(14)]), rest)
    half = b.expr("(int({0}) / 2)", n, ctype="int")
    power = "packDouble2x32(uvec2(0u, uint({0} + 1023) << 20))"
    low = b.expr(power, half, ctype="double")
    high = b.expr(power, b.expr("(int({0}) - {1})", n, half, ctype="int"), ctype="double")
    scaled = b.expr("({0} * {1} * {2})", series, low, high)
    return b.expr(f"({{0}} > 709.79lf ? {_INFINITY} : ({{0}} < -745.2lf ? 0.0lf : {{1}}))", x, scaled)


def log(b: Builder, x: Expr) -> Expr:
    """The exponent's part, and the series of atanh for a mantissa near 1."""
    normal = b.expr("({0} < 2.2250738585072014e-308lf ? {0} * 18014398509481984.0lf : {0})", x)  # 2**54
    words = b.expr("unpackDouble2x32({0})", normal, ctype="uvec2")
    mantissa = b.expr("packDouble2x32(uvec2({0}.x, ({0}.y & 0xfffffu) | 0x3ff00000u))", words, ctype="double")
    above = b.expr("({0} > 1.4142135623730951lf)", mantissa, ctype="bool")
    m = b.expr("({1} ? {0} * 0.5lf : {0})", mantissa, above)
    exponent = b.expr(
        "double(int({0}.y >> 20) - 1023 + ({1} ? 1 : 0) - ({2} < 2.2250738585072014e-308lf ? 54 : 0))",
        words, above, x, ctype="double",
    )  # fmt: skip
    s = b.expr("(({0} - 1.0lf) / ({0} + 1.0lf))", m)
    series = b.expr("(2.0lf * {0} * " + _polynomial("({0} * {0})", [1 / (2 * k + 1) for k in range(12)]) + ")", s)
    result = b.expr("({0} * 1.90821492927058770002e-10lf + {1} + {0} * 0.693147180369123816490lf)", exponent, series)
    special = "({0} == 0.0lf ? -{2} : ({0} < 0.0lf || isnan({0}) ? {0} * {3} : (isinf({0}) ? {0} : {1})))"
    return b.expr(
        special.replace("{2}", _INFINITY).replace(
            "{3}", _NAN
        ),
        x, result,
    )  # fmt: skip


def expm1(b: Builder, x: Expr) -> Expr:
    """exp(x) - 1, without cancellation near 0."""
    series = b.expr("({0} * " + _polynomial("{0}", [1 / math.factorial(k) for k in range(1, 17)]) + ")", x)
    return b.expr("(abs({0}) < 0.4lf ? {1} : {2} - 1.0lf)", x, series, exp(b, x))


def log1p(b: Builder, x: Expr) -> Expr:
    """log(1 + x), near 0 by the series of atanh."""
    part = b.expr("({0} / (2.0lf + {0}))", x)
    near = b.expr("(2.0lf * {0} * " + _polynomial("({0} * {0})", [1 / (2 * k + 1) for k in range(13)]) + ")", part)
    return b.expr("(abs({0}) < 0.3lf ? {1} : {2})", x, near, log(b, b.expr("(1.0lf + {0})", x)))


def _sign_of(b: Builder, x: Expr, size: Expr) -> Expr:
    """``size`` with the sign of ``x``; NaN where ``x`` is."""
    return b.expr("(isnan({0}) ? {0} : with_sign({1}, {0}))", x, size)


def tanh(b: Builder, x: Expr) -> Expr:
    """``m / (m + 2)`` with ``m = expm1(2 abs(x))``, and the sign of x."""
    grown = expm1(b, b.expr("(abs({0}) > 20.0lf ? 40.0lf : 2.0lf * abs({0}))", x))
    return _sign_of(b, x, b.expr("({0} / ({0} + 2.0lf))", grown))


def sinh(b: Builder, x: Expr) -> Expr:
    """From ``expm1(abs(x))``; for large x from ``exp(abs(x) / 2)`` squared, which overflows no earlier than the result."""
    grown, half = expm1(b, b.expr("abs({0})", x)), exp(b, b.expr("(0.5lf * abs({0}))", x))
    size = b.expr("(abs({0}) > 22.0lf ? 0.5lf * {2} * {2} : 0.5lf * ({1} + {1} / ({1} + 1.0lf)))", x, grown, half)
    return _sign_of(b, x, size)


def cosh(b: Builder, x: Expr) -> Expr:
    """From ``exp(abs(x) / 2)`` squared, which overflows no earlier than the result."""
    half = exp(b, b.expr("(0.5lf * abs({0}))", x))
    return b.expr("(isnan({0}) ? {0} : 0.5lf * {1} * {1} + 0.5lf / ({1} * {1}))", x, half)


def sigmoid(b: Builder, x: Expr) -> Expr:
    """From ``exp(-abs(x))``, which does not overflow."""
    shrunk = exp(b, b.expr("(-abs({0}))", x))
    return b.expr("(isnan({0}) ? {0} : ({0} < 0.0lf ? {1} : 1.0lf) / (1.0lf + {1}))", x, shrunk)


def _quarter(b: Builder, x: Expr) -> tuple[Expr, Expr, Expr]:
    """Sine and cosine of the remainder of an angle after whole quarters of a turn, and the number of quarters, modulo
    4."""
    count = b.expr("roundEven({0} * 0.6366197723675814lf)", x)
    # a quarter in parts of 33 bits, whose products with the count are exact
    rest = b.expr(
        "((({0} - {1} * 1.57079632673412561417lf) - {1} * 6.07710050630396597660e-11lf) - {1} * 2.02226624879595063154e-21lf)",
        x,
        count,
    )
    # from 2**53 on no digit of the remainder is right: it is only kept in its range
    rest = b.expr("({0} > 0.79lf ? 0.79lf : ({0} < -0.79lf ? -0.79lf : {0}))", rest)
    squared = b.expr("({0} * {0})", rest)
    odd = [(-1) ** k / math.factorial(2 * k + 1) for k in range(10)]
    even = [(-1) ** k / math.factorial(2 * k) for k in range(11)]
    sine = b.expr("({0} * {1})", rest, b.expr(_polynomial("{0}", odd), squared))
    return sine, b.expr(_polynomial("{0}", even), squared), b.expr("({0} - 4.0lf * floor(0.25lf * {0}))", count)


def _turned(b: Builder, quarter: tuple[Expr, Expr, Expr], shift: int) -> Expr:
    code = "({2} == {a} ? {0} : {2} == {b} ? {1} : {2} == {c} ? -{0} : -{1})"
    for k, name in enumerate("abc"):
        code = code.replace(f"{{{name}}}", f"{(k - shift) % 4}.0lf")
    return b.expr(code, *quarter)


def sin(b: Builder, x: Expr) -> Expr:
    """Sine, after reduction of the angle to a quarter of a turn."""
    return b.expr("({0} == 0.0lf ? {0} : {1})", x, _turned(b, _quarter(b, x), 0))


def cos(b: Builder, x: Expr) -> Expr:
    """Cosine, after reduction of the angle to a quarter of a turn."""
    return _turned(b, _quarter(b, x), 1)


def tan(b: Builder, x: Expr) -> Expr:
    """The quotient of sine and cosine."""
    quarter = _quarter(b, x)
    return b.expr("({0} == 0.0lf ? {0} : {1} / {2})", x, _turned(b, quarter, 0), _turned(b, quarter, 1))


def atan(b: Builder, x: Expr) -> Expr:
    """The angle halved twice, and the series of the rest."""
    size = b.expr("abs({0})", x)
    part = b.expr("({0} > 1.0lf ? 1.0lf / {0} : {0})", size)
    for _ in range(2):
        part = b.expr("({0} / (1.0lf + sqrt(1.0lf + {0} * {0})))", part)
    series = _polynomial("({0} * {0})", [(-1) ** k / (2 * k + 1) for k in range(13)])
    angle = b.expr(f"(4.0lf * {{0}} * {series})", part)
    return _sign_of(b, x, b.expr("({0} > 1.0lf ? 1.5707963267948966lf - {1} : {1})", size, angle))


def asin(b: Builder, x: Expr) -> Expr:
    """``atan(x / sqrt((1 - x)(1 + x)))``."""
    return atan(b, b.expr("({0} / sqrt((1.0lf - {0}) * (1.0lf + {0})))", x))


def acos(b: Builder, x: Expr) -> Expr:
    """``2 atan(sqrt((1 - x) / (1 + x)))``."""
    return b.expr("(2.0lf * {0})", atan(b, b.expr("sqrt((1.0lf - {0}) / (1.0lf + {0}))", x)))


def asinh(b: Builder, x: Expr) -> Expr:
    """By ``log1p``; for large x by the logarithm of ``2 abs(x)``."""
    size = b.expr("abs({0})", x)
    near = log1p(b, b.expr("({0} + {0} * {0} / (1.0lf + sqrt({0} * {0} + 1.0lf)))", size))
    far = b.expr("({0} + 0.6931471805599453lf)", log(b, size))
    return _sign_of(b, x, b.expr("({0} > 1e9lf ? {1} : {2})", size, far, near))


def acosh(b: Builder, x: Expr) -> Expr:
    """By ``log1p``; for large x by the logarithm of ``2 x``."""
    above = b.expr("({0} - 1.0lf)", x)
    near = log1p(b, b.expr("({0} + sqrt({0} * ({0} + 2.0lf)))", above))
    far = b.expr("({0} + 0.6931471805599453lf)", log(b, x))
    return b.expr(f"({{0}} < 1.0lf ? {_NAN} : {{0}} > 1e9lf ? {{1}} : {{2}})", x, far, near)


def atanh(b: Builder, x: Expr) -> Expr:
    """Half of ``log1p(2 abs(x) / (1 - abs(x)))``, with the sign of x."""
    half = b.expr("(0.5lf * {0})", log1p(b, b.expr("(2.0lf * abs({0}) / (1.0lf - abs({0})))", x)))
    return _sign_of(b, x, half)


def erf(b: Builder, x: Expr) -> Expr:
    """Below 3 a series of terms of one sign (Abramowitz and Stegun 7.1.6), above it one less a continued fraction (7.1.14)."""
    size = b.expr("min(abs({0}), 6.5lf)", x)
    fall = exp(b, b.expr("(-{0} * {0})", size))
    terms = [1.0]
    while len(terms) < 60:
        terms.append(terms[-1] * 2 / (2 * len(terms) + 1))
    series = b.expr(_polynomial("{0}", terms), b.expr("({0} * {0})", size))
    near = b.expr("(1.1283791670955126lf * {0} * {1} * {2})", size, fall, series)
    fraction = b.expr("same", size)
    for k in range(24, 0, -1):
        fraction = b.expr(f"({{0}} + {k / 2!r}lf / {{1}})", size, fraction)
    far = b.expr("(1.0lf - 0.5641895835477563lf * {0} / {1})", fall, fraction)
    return _sign_of(b, x, b.expr("({0} < 3.0lf ? {1} : {2})", size, near, far))


def power(b: Builder, x: Expr, y: Expr) -> Expr:
    """``x ** y`` with C's rules for bases and exponents that are 0, negative, infinite or NaN; integer powers up to 1023
    by squaring."""
    size = b.expr("abs({0})", x)
    grown = exp(b, b.expr("({0} * {1})", y, log(b, size)))
    count = b.expr("int(min(abs({0}), 1023.0lf))", y, ctype="int")
    product, base = b.expr("(true ? 1.0lf : {0})", size), b.expr("same", size)
    for bit in range(10):
        product = b.expr(f"(({{0}} & {1 << bit}) != 0 ? {{1}} * {{2}} : {{1}})", count, product, base, ctype="double")
        base = b.expr("({0} * {0})", base)
    by_squaring = b.expr("({0} < 0.0lf ? 1.0lf / {1} : {1})", y, product)
    whole, odd = (
        b.expr(code, y, ctype="bool") for code in ("(floor({0}) == {0})", "(2.0lf * floor(0.5lf * {0}) != {0})")
    )
    grown = b.expr(
        "({1} && abs({0}) <= 1023.0lf ? {2} : {0} == 0.5lf ? sqrt({3}) : {0} == -0.5lf ? 1.0lf / sqrt({3}) : {4})",
        y, whole, by_squaring, size, grown,
    )  # fmt: skip
    grown = b.expr("({0} == 1.0lf && isinf({1}) ? 1.0lf : {2})", size, y, grown)
    negative = b.expr("({0} < 0.0lf || ({0} == 0.0lf && 1.0lf / {0} < 0.0lf))", x, ctype="bool")
    signed = b.expr("({0} && {1} && {2} && !isinf({3}) ? -{4} : {4})", negative, whole, odd, y, grown, ctype="double")
    real = b.expr(f"({{0}} < 0.0lf && !isinf({{0}}) && !{{1}} ? {_NAN} : {{2}})", x, whole, signed)
    return b.expr("({1} == 0.0lf || {0} == 1.0lf ? 1.0lf : isnan({0}) ? {0} : isnan({1}) ? {1} : {2})", x, y, real)


def power_of(b: Builder, x: Expr, exponent: float) -> Expr:
    """`power` with a known exponent."""
    return power(b, x, Const("double", value=float(exponent)))


def hard_swish(b: Builder, x: Expr) -> Expr:
    """``x * clamp(x / 6 + 1 / 2, 0, 1)`` (ONNX HardSwish)."""
    return b.expr("({0} * clamp({0} / 6.0lf + 0.5lf, 0.0lf, 1.0lf))", x)


def softplus(b: Builder, x: Expr) -> Expr:
    """``max(x, 0) + log1p(exp(-abs(x)))``, which does not overflow."""
    small = log1p(b, exp(b, b.expr("(-abs({0}))", x)))
    return b.expr("(isnan({0}) ? {0} : ({0} > 0.0lf ? {0} : 0.0lf) + {1})", x, small)


#: by ONNX operator of one input
UNARY: dict[str, Callable[[Builder, Expr], Expr]] = {
    "Acos": acos, "Acosh": acosh, "Asin": asin, "Asinh": asinh, "Atan": atan, "Atanh": atanh, "Cos": cos, "Cosh": cosh,
    "Erf": erf, "Exp": exp, "HardSwish": hard_swish, "Log": log, "Sigmoid": sigmoid, "Sin": sin, "Sinh": sinh,
    "Softplus": softplus, "Tan": tan, "Tanh": tanh,
}  # fmt: skip
