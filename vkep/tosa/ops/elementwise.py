"""Elementwise operators, roots and powers."""

from __future__ import annotations

import functools
import math

import numpy as np

from vkep.tosa.graph import PROPAGATE, TosaBuilder, TosaTensor
from vkep.tosa.ops.casts import cast_to
from vkep.tosa.ops.integers import quotient
from vkep.tosa.ops.quantized import added, multiplied
from vkep.tosa.registry import ANY, FLOATS, NUMBERS, constant_of, tosa_operator

pointwise = functools.partial(tosa_operator, pointwise=True)

# ---- one TOSA operation

for _onnx, _tosa, _types in (
    ("Abs", "abs", NUMBERS),
    ("Ceil", "ceil", FLOATS),
    ("Cos", "cos", FLOATS),
    ("Erf", "erf", FLOATS),
    ("Exp", "exp", FLOATS),
    ("Floor", "floor", FLOATS),
    ("Log", "log", FLOATS),
    ("Not", "logical_not", ("bool",)),
    ("Reciprocal", "reciprocal", FLOATS),
    ("Sigmoid", "sigmoid", FLOATS),
    ("Sin", "sin", FLOATS),
    ("Tanh", "tanh", FLOATS),
):

    def _declare_unary(name: str = _tosa) -> object:
        def lower(b: TosaBuilder, x: TosaTensor) -> TosaTensor:
            return b.unary(name, x)

        return lower

    pointwise(_onnx, types=_types, since=1 if _onnx in ("Sin", "Cos", "Not", "Erf") else 6)(
        _declare_unary()  # type: ignore[arg-type]
    )


@pointwise("Neg", types=(*NUMBERS, "int16", "int8"), since=6)
def neg(b: TosaBuilder, x: TosaTensor) -> TosaTensor:
    return b.negate(x)


@tosa_operator("Identity", types=ANY, moves=True)
def identity(b: TosaBuilder, x: TosaTensor) -> TosaTensor:
    return x


@pointwise("Dropout", types=FLOATS, since=12)
def dropout(
    b: TosaBuilder,
    x: TosaTensor,
    ratio: TosaTensor | None = None,
    training_mode: TosaTensor | None = None,
    *,
    seed: int = 0,
) -> TosaTensor:
    if training_mode is not None and bool(constant_of(training_mode, "training_mode").reshape(-1)[0]):
        b.decline("training mode")
    return x


@pointwise("Round", types=FLOATS, since=11)
def round_(b: TosaBuilder, x: TosaTensor) -> TosaTensor:
    """CAST rounds halves to even; from 2**23 on floats have no fraction."""
    whole = b.elementwise("cast", b.elementwise("cast", x, dtype="int32"), dtype=x.dtype)
    small = b.elementwise(
        "greater", b.fill(x, 2.0**23 if x.dtype == "float32" else 2.0**11), b.unary("abs", x), dtype="bool"
    )
    return b.select(small, whole, x)


@pointwise("Sign", types=NUMBERS, since=9)
def sign(b: TosaBuilder, x: TosaTensor) -> TosaTensor:
    """Of a float that is neither above nor below 0, the result is itself: NaN stays. An integer is 0 there."""
    zero = b.fill(x, 0)
    above, below = (b.elementwise("greater", *pair, dtype="bool") for pair in ((x, zero), (zero, x)))
    return b.select(above, b.fill(x, 1), b.select(below, b.fill(x, -1), zero if x.dtype == "int32" else x))


@pointwise("IsNaN", types=FLOATS, since=9)
def is_nan(b: TosaBuilder, x: TosaTensor) -> TosaTensor:
    return b.unary("logical_not", b.elementwise("equal", x, x, dtype="bool"))


@pointwise("IsInf", types=FLOATS, since=10)
def is_inf(b: TosaBuilder, x: TosaTensor, *, detect_negative: int = 1, detect_positive: int = 1) -> TosaTensor:
    if not (detect_negative or detect_positive):
        b.decline("neither infinity is asked for")
    if detect_negative and detect_positive:
        return b.elementwise("equal", b.unary("abs", x), b.fill(x, math.inf), dtype="bool")
    return b.elementwise("equal", x, b.fill(x, math.inf if detect_positive else -math.inf), dtype="bool")


@pointwise("Tan", types=FLOATS)
def tan(b: TosaBuilder, x: TosaTensor) -> TosaTensor:
    return b.mul(b.unary("sin", x), b.unary("reciprocal", b.unary("cos", x)))


# ---- two or more inputs


@pointwise("Add", types=NUMBERS, since=7)
def add(b: TosaBuilder, x: TosaTensor, y: TosaTensor) -> TosaTensor:
    return added(b, x, y, b.add(x, y))


@pointwise("Sub", types=NUMBERS, since=7)
def sub(b: TosaBuilder, x: TosaTensor, y: TosaTensor) -> TosaTensor:
    return added(b, x, y, b.sub(x, y), "sub")


@pointwise("Mul", types=NUMBERS, since=7)
def mul(b: TosaBuilder, x: TosaTensor, y: TosaTensor) -> TosaTensor:
    return multiplied(b, x, y, b.mul(x, y))


@pointwise("Div", types=NUMBERS, since=7)
def div(b: TosaBuilder, x: TosaTensor, y: TosaTensor) -> TosaTensor:
    if x.dtype == "int32":
        return quotient(b, x, y)
    if y.array is not None:
        with np.errstate(divide="ignore"):
            return b.mul(x, b.constant((1 / y.array.astype(np.float64)).astype(y.dtype)))
    return b.mul(x, b.unary("reciprocal", y))


for _onnx, _tosa, _types in (
    ("And", "logical_and", ("bool",)),
    ("Or", "logical_or", ("bool",)),
    ("Xor", "logical_xor", ("bool",)),
):

    def _declare_logical(name: str = _tosa) -> object:
        def lower(b: TosaBuilder, x: TosaTensor, y: TosaTensor) -> TosaTensor:
            return b.elementwise(name, x, y)

        return lower

    pointwise(_onnx, types=_types, since=7)(_declare_logical())  # type: ignore[arg-type]


@pointwise("Where", types=("bool",))
def where(b: TosaBuilder, condition: TosaTensor, x: TosaTensor, y: TosaTensor) -> TosaTensor:
    return b.select(condition, x, y)


@pointwise("Max", types=NUMBERS, since=8)
def max_(b: TosaBuilder, *inputs: TosaTensor) -> TosaTensor:
    return _chain(b, "maximum", inputs)


@pointwise("Min", types=NUMBERS, since=8)
def min_(b: TosaBuilder, *inputs: TosaTensor) -> TosaTensor:
    return _chain(b, "minimum", inputs)


def _chain(b: TosaBuilder, name: str, inputs: tuple[TosaTensor, ...]) -> TosaTensor:
    result = inputs[0]
    for other in inputs[1:]:
        extra = {"nan_mode": PROPAGATE} if name in ("maximum", "minimum") else None
        result = b.elementwise(name, result, other, attributes=extra)
    return result


@pointwise("Sum", types=FLOATS, since=8)
def sum_(b: TosaBuilder, *inputs: TosaTensor) -> TosaTensor:
    return _chain(b, "add", inputs)


@pointwise("Mean", types=FLOATS, since=8)
def mean(b: TosaBuilder, *inputs: TosaTensor) -> TosaTensor:
    return b.mul(_chain(b, "add", inputs), b.fill(inputs[0], 1 / len(inputs)))


pointwise = functools.partial(tosa_operator, pointwise=True)


@pointwise("Sqrt", types=FLOATS, since=6)
def sqrt(b: TosaBuilder, x: TosaTensor) -> TosaTensor:
    return b.unary("reciprocal", b.unary("rsqrt", x))


@pointwise("Pow", types=FLOATS, since=7)
def pow_(b: TosaBuilder, x: TosaTensor, y: TosaTensor) -> TosaTensor:
    exponent = y.array
    if exponent is not None and exponent.size == 1:
        power = float(exponent.reshape(-1)[0])
        if power == 2:
            return b.mul(x, x)
        if power == 3:
            return b.mul(b.mul(x, x), x)
        if power == 0.5:
            return sqrt(b, x)
        if power == -0.5:
            return b.unary("rsqrt", x)
        if power == -1:
            return b.unary("reciprocal", x)
    if exponent is not None:
        y = b.constant(exponent.astype(x.dtype))
    return _any_power(b, x, cast_to(b, y, x.dtype))


def _any_power(b: TosaBuilder, x: TosaTensor, y: TosaTensor) -> TosaTensor:
    """TOSA's POW supports bases above 0: signs, zeros and NaN are handled separately, as in C's pow()."""
    if x.dtype != "float32":
        b.decline("POW of float16: the exponent's rounding is larger than the type's")
    zero, one, nan = (b.fill(x, v) for v in (0, 1, math.nan))

    def same(u: TosaTensor, v: TosaTensor) -> TosaTensor:
        return b.elementwise("equal", u, v, dtype="bool")

    base = x.array
    size = b.unary("abs", x)
    at_zero = same(x, zero)
    # 1 where the base is 0: the result of POW for 0 is undefined
    power = b.elementwise("pow", b.select(at_zero, one, size), y)
    falling = b.elementwise("greater", zero, y, dtype="bool")
    of_zero = b.select(falling, b.fill(x, math.inf), zero)
    if base is None or np.signbit(base).any():
        half = b.mul(y, b.fill(y, 0.5))
        whole, even = same(b.unary("floor", y), y), same(b.unary("floor", half), half)
        signed_zero = b.select(falling, b.unary("reciprocal", x), x)
        of_zero = b.select(whole, b.select(even, of_zero, signed_zero), of_zero)
        negative = b.elementwise("greater", zero, x, dtype="bool")
        signed = b.select(whole, b.select(even, power, b.negate(power)), nan)
        power = b.select(negative, signed, power)
    of_zero = b.select(same(y, y), of_zero, y)  # NaN
    made = b.select(at_zero, of_zero, power) if base is None or not np.all(base) else power
    made = b.select(same(y, zero), one, made)  # also of NaN
    return made if np.broadcast_shapes(x.shape, y.shape) == made.shape else b.mul(made, b.fill(x, 1))
