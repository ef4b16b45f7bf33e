"""Operations that GLSL has no function for, or a slow one, as expressions of others: most functions of doubles, a few of floats.

GLSL has +, -, *, /, sqrt, abs, floor and their like of doubles. Of the others each is right to a few units in the last place; of
angles beyond a million the sine and its like lose digits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

from vkep.ir import algebra as fn
from vkep.ir.algebra import where
from vkep.ir.expr import Const, Expr, Leaf, apply, known_number, literal, remaining, with_args

#: by operation and type of the first argument; a function may return None for what GLSL has
COMPOSED: dict[tuple[str, str], Callable[..., Expr | None]] = {}
F = TypeVar("F", bound=Callable[..., "Expr | None"])


def _composed(*ctypes: str) -> Callable[[F], F]:
    """The operation of the function's name for these types."""

    def register(function: F) -> F:
        COMPOSED.update({(function.__name__, ctype): function for ctype in ctypes})
        return function

    return register


def _polynomial(x: Expr, coefficients: Sequence[float]) -> Expr:
    """The constant coefficient first (Horner's scheme)."""
    result = coefficients[-2] + x * coefficients[-1]
    for c in coefficients[-3::-1]:
        result = c + x * result
    return result


def _power_of_two(exponent: Expr) -> Expr:
    """Of an int, as a double."""
    return apply("from_words", 0, fn.cast(exponent + 1023, "uint") << 20)


@_composed("double")
def exp(x: Expr) -> Expr:
    """2**n times the series of the remainder, whose magnitude is below ln(2) / 2."""
    n = fn.round_even(fn.clamp(x, -800.0, 800.0) * 1.4426950408889634)
    # ln(2) in two parts, the first with few bits, so that the product with n is exact
    rest = x - n * 0.693147180369123816490 - n * 1.90821492927058770002e-10
    series = _polynomial(rest, [1 / math.factorial(k) for k in range(14)])
    whole = fn.cast(n, "int")
    half = whole / 2
    scaled = series * _power_of_two(half) * _power_of_two(whole - half)
    return where(x > 709.79, math.inf, where(x < -745.2, 0.0, scaled))


@_composed("double")
def log(x: Expr) -> Expr:
    """The exponent's part, and the series of atanh for a mantissa near 1."""
    subnormal = x < 2.2250738585072014e-308
    normal = where(subnormal, x * 2.0**54, x)
    high = apply("high_word", normal)
    mantissa = apply("from_words", apply("low_word", normal), (high & 0xFFFFF) | 0x3FF00000)
    above = mantissa > 1.4142135623730951
    m = where(above, mantissa * 0.5, mantissa)
    whole = fn.cast(high >> 20, "int") - 1023 + fn.cast(above, "int")
    exponent = fn.cast(where(subnormal, whole - 54, whole), "double")
    s = (m - 1.0) / (m + 1.0)
    series = 2.0 * s * _polynomial(s * s, [1 / (2 * k + 1) for k in range(12)])
    result = exponent * 1.90821492927058770002e-10 + series + exponent * 0.693147180369123816490
    special = where((x < 0.0) | fn.isnan(x), x * math.nan, where(fn.isinf(x), x, result))
    return where(fn.equal(x, 0.0), -math.inf, special)


@_composed("double")
def expm1(x: Expr) -> Expr:
    """exp(x) - 1, without cancellation near 0."""
    series = x * _polynomial(x, [1 / math.factorial(k) for k in range(1, 17)])
    return where(abs(x) < 0.4, series, fn.exp(x) - 1.0)


@_composed("double")
def log1p(x: Expr) -> Expr:
    """log(1 + x), near 0 by the series of atanh."""
    part = x / (2.0 + x)
    near = 2.0 * part * _polynomial(part * part, [1 / (2 * k + 1) for k in range(13)])
    return where(abs(x) < 0.3, near, fn.log(1.0 + x))


def _sign_of(x: Expr, size: Expr) -> Expr:
    """``size`` with the sign of ``x``; NaN where ``x`` is."""
    return where(fn.isnan(x), x, fn.with_sign(size, x))


@_composed("double")
def tanh(x: Expr) -> Expr:
    """``m / (m + 2)`` with ``m = expm1(2 abs(x))``, and the sign of x."""
    grown = fn.expm1(where(abs(x) > 20.0, 40.0, 2.0 * abs(x)))
    return _sign_of(x, grown / (grown + 2.0))


@_composed("double")
def sinh(x: Expr) -> Expr:
    """From ``expm1(abs(x))``; for large x from ``exp(abs(x) / 2)`` squared, which overflows no earlier than the result."""
    size = abs(x)
    grown, half = fn.expm1(size), fn.exp(0.5 * size)
    return _sign_of(x, where(size > 22.0, 0.5 * half * half, 0.5 * (grown + grown / (grown + 1.0))))


@_composed("double")
def cosh(x: Expr) -> Expr:
    """From ``exp(abs(x) / 2)`` squared, which overflows no earlier than the result."""
    half = fn.exp(0.5 * abs(x))
    return where(fn.isnan(x), x, 0.5 * half * half + 0.5 / (half * half))


@_composed("double")
def sigmoid(x: Expr) -> Expr:
    """From ``exp(-abs(x))``, which does not overflow."""
    shrunk = fn.exp(-abs(x))
    return where(fn.isnan(x), x, where(x < 0.0, shrunk, 1.0) / (1.0 + shrunk))


def _quarter(x: Expr) -> tuple[Expr, Expr, Expr]:
    """Sine and cosine of the remainder of an angle after whole quarters of a turn, and the number of quarters, modulo 4."""
    count = fn.round_even(x * 0.6366197723675814)
    # a quarter in parts of 33 bits, whose products with the count are exact
    rest = (
        (x - count * 1.57079632673412561417) - count * 6.07710050630396597660e-11
    ) - count * 2.02226624879595063154e-21
    # from 2**53 on no digit of the remainder is right: it is only kept in its range
    rest = where(rest > 0.79, 0.79, where(rest < -0.79, -0.79, rest))
    squared = rest * rest
    sine = rest * _polynomial(squared, [(-1) ** k / math.factorial(2 * k + 1) for k in range(10)])
    cosine = _polynomial(squared, [(-1) ** k / math.factorial(2 * k) for k in range(11)])
    return sine, cosine, count - 4.0 * fn.floor(0.25 * count)


def _turned(quarter: tuple[Expr, Expr, Expr], shift: int) -> Expr:
    sine, cosine, count = quarter
    of = [fn.equal(count, float((k - shift) % 4)) for k in range(3)]
    return where(of[0], sine, where(of[1], cosine, where(of[2], -sine, -cosine)))


@_composed("double")
def sin(x: Expr) -> Expr:
    """Sine, after reduction of the angle to a quarter of a turn."""
    return where(fn.equal(x, 0.0), x, _turned(_quarter(x), 0))


@_composed("double")
def cos(x: Expr) -> Expr:
    """Cosine, after reduction of the angle to a quarter of a turn."""
    return _turned(_quarter(x), 1)


@_composed("double")
def tan(x: Expr) -> Expr:
    """The quotient of sine and cosine."""
    quarter = _quarter(x)
    return where(fn.equal(x, 0.0), x, _turned(quarter, 0) / _turned(quarter, 1))


@_composed("double")
def atan(x: Expr) -> Expr:
    """The angle halved twice, and the series of the rest."""
    size = abs(x)
    part = where(size > 1.0, 1.0 / size, size)
    for _ in range(2):
        part = part / (1.0 + fn.sqrt(1.0 + part * part))
    angle = 4.0 * part * _polynomial(part * part, [(-1) ** k / (2 * k + 1) for k in range(13)])
    return _sign_of(x, where(size > 1.0, 1.5707963267948966 - angle, angle))


@_composed("double")
def asin(x: Expr) -> Expr:
    """``atan(x / sqrt((1 - x)(1 + x)))``."""
    return fn.atan(x / fn.sqrt((1.0 - x) * (1.0 + x)))


@_composed("double")
def acos(x: Expr) -> Expr:
    """``2 atan(sqrt((1 - x) / (1 + x)))``."""
    return 2.0 * fn.atan(fn.sqrt((1.0 - x) / (1.0 + x)))


@_composed("float", "double")
def asinh(x: Expr) -> Expr:
    """By ``log1p``; for large x by the logarithm of ``2 abs(x)``."""
    size = abs(x)
    near = fn.log1p(size + size * size / (1.0 + fn.sqrt(size * size + 1.0)))
    return _sign_of(x, where(size > 1e9, fn.log(size) + math.log(2), near))


@_composed("float", "double")
def acosh(x: Expr) -> Expr:
    """By ``log1p``; for large x by the logarithm of ``2 x``."""
    above = x - 1.0
    near = fn.log1p(above + fn.sqrt(above * (above + 2.0)))
    return where(x < 1.0, math.nan, where(x > 1e9, fn.log(x) + math.log(2), near))


@_composed("float", "double")
def atanh(x: Expr) -> Expr:
    """Half of ``log1p(2 abs(x) / (1 - abs(x)))``, with the sign of x."""
    return _sign_of(x, 0.5 * fn.log1p(2.0 * abs(x) / (1.0 - abs(x))))


@_composed("double")
def erf(x: Expr) -> Expr:
    """Below 3 a series of terms of one sign (Abramowitz and Stegun 7.1.6), above it one less a continued fraction (7.1.14)."""
    size = fn.minimum(abs(x), 6.5)
    fall = fn.exp(-size * size)
    terms = [1.0]
    while len(terms) < 60:
        terms.append(terms[-1] * 2 / (2 * len(terms) + 1))
    near = 1.1283791670955126 * size * fall * _polynomial(size * size, terms)
    fraction = size
    for k in range(24, 0, -1):
        fraction = size + k / 2 / fraction
    far = 1.0 - 0.5641895835477563 * fall / fraction
    return _sign_of(x, where(size < 3.0, near, far))


@_composed("double")
def pow(x: Expr, y: Expr) -> Expr:
    """``x ** y`` with C's rules for bases and exponents that are 0, negative, infinite or NaN; integer powers up to 1023
    by squaring."""
    size = abs(x)
    grown = fn.exp(y * fn.log(size))
    count = fn.cast(fn.minimum(abs(y), 1023.0), "int")
    product: Expr = literal(1.0, "double")
    base = size
    for bit in range(10):
        product = where(fn.not_equal(count & (1 << bit), 0), product * base, product)
        base = base * base
    by_squaring = where(y < 0.0, 1.0 / product, product)
    whole, odd = fn.equal(fn.floor(y), y), fn.not_equal(2.0 * fn.floor(0.5 * y), y)
    root = fn.sqrt(size)
    grown = where(fn.equal(y, 0.5), root, where(fn.equal(y, -0.5), 1.0 / root, grown))
    grown = where(whole & (abs(y) <= 1023.0), by_squaring, grown)
    grown = where(fn.equal(size, 1.0) & fn.isinf(y), 1.0, grown)
    negative = (x < 0.0) | (fn.equal(x, 0.0) & (1.0 / x < 0.0))
    signed = where(negative & whole & odd & ~fn.isinf(y), -grown, grown)
    real = where((x < 0.0) & ~fn.isinf(x) & ~whole, math.nan, signed)
    one = fn.equal(y, 0.0) | fn.equal(x, 1.0)
    return where(one, 1.0, where(fn.isnan(x), x, where(fn.isnan(y), y, real)))


@_composed("float")
def softplus(x: Expr) -> Expr:
    """``log1p(exp(x))``, and x where they are equal."""
    return where(x > 20.0, x, fn.log1p(fn.exp(x)))


def _softplus_of_doubles(x: Expr) -> Expr:
    """``max(x, 0) + log1p(exp(-abs(x)))``, which does not overflow."""
    return where(fn.isnan(x), x, where(x > 0.0, x, 0.0) + fn.log1p(fn.exp(-abs(x))))


COMPOSED["softplus", "double"] = _softplus_of_doubles


@_composed("double")
def limited(x: Expr, low: Expr, high: Expr) -> Expr:
    """A clamp that keeps NaN."""
    return where(fn.isnan(x), x, fn.clamp(x, low, high))


@_composed("double")
def relu(x: Expr) -> Expr:
    """``max(x, 0)`` that keeps NaN."""
    return where(fn.isnan(x) | (x > 0.0), x, 0.0)


@_composed("double")
def gelu(x: Expr) -> Expr:
    """``x`` times the normal distribution function."""
    return 0.5 * x * (1.0 + fn.erf(x * 0.7071067811865476))


@_composed("double")
def gelu_tanh(x: Expr) -> Expr:
    """The approximation of `gelu` by a hyperbolic tangent."""
    return 0.5 * x * (1.0 + fn.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))


#: `near_whole` and `small_float` take numbers of at most twice this
_MOST = 2**21


@_composed("float")
def clamp(x: Expr, low: Expr, high: Expr) -> Expr | None:
    """Of a rounded number, or of its sum with a known whole one, the limits first: what they leave is rounded by sums."""
    limits, zero = [known_number(low), known_number(high)], known_number(x.args[1]) if x.op == "add" else 0
    rounded = x.args[0] if x.op == "add" else x
    if rounded.op != "round" or not all(n is not None and abs(n) <= _MOST and n == int(n) for n in (zero, *limits)):
        return None
    if not zero:
        return apply("near_whole", fn.clamp(rounded.args[0], low, high))
    ends = [Const("float", value=float(n - zero)) for n in limits if n is not None]
    return apply("near_whole", fn.clamp(rounded.args[0], *ends)) + x.args[1]


@_composed("int")
def cast(x: Expr) -> Expr | None:
    """Of an element of at most 16 bits, or of its difference from a known number, to float."""
    less, integer = (known_number(x.args[1]), x.args[0]) if x.op == "sub" else (0, x)
    while integer.op in ("cast", "same"):
        [integer] = integer.args
    of = integer.tensor if isinstance(integer, Leaf) else None
    if of is None or of.dtype.kind not in ("int", "uint") or of.dtype.bits > 16 or less is None or abs(less) > _MOST:
        return None
    return apply("small_float", x)


def composed(expr: Expr) -> Expr:
    """The expression without operations that GLSL has no function for; shared parts stay shared."""
    done: dict[int, Expr] = {}
    kept: list[Expr] = []  # an id is that of an object while the object exists

    def within(whole: Expr) -> Expr:
        kept.append(whole)
        for node in remaining(whole, done):
            args = tuple([done[id(a)] for a in node.args])
            function = COMPOSED.get((node.op, args[0].ctype)) if args else None
            made = function(*args) if function is not None else None
            if made is None or made.ctype != node.ctype:
                done[id(node)] = with_args(node, args)
            else:
                done.update({id(a): a for a in args})
                done[id(node)] = within(made)  # recursion: as deep as functions that call others
        return done[id(whole)]

    return within(expr)
