"""Elementwise operators."""

from __future__ import annotations

import math

import numpy as np

from vkep import dtypes
from vkep.errors import Decline
from vkep.tosa.graph import PROPAGATE, GraphBuilder, Tensor
from vkep.tosa.ops.quantized import added, clamped
from vkep.tosa.registry import ANY, FLOATS, NUMBERS, constant_of, tosa_operator

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
    ("BitwiseNot", "bitwise_not", ("int32", "int16", "int8")),
):

    def _declare_unary(name: str = _tosa) -> object:
        def lower(b: GraphBuilder, x: Tensor) -> Tensor:
            return b.unary(name, x)

        return lower

    tosa_operator(_onnx, types=_types, since=6 if _onnx not in ("BitwiseNot", "Sin", "Cos", "Not", "Erf") else 1)(
        _declare_unary()  # type: ignore[arg-type]
    )


@tosa_operator("Neg", types=(*NUMBERS, "int16", "int8"), since=6)
def neg(b: GraphBuilder, x: Tensor) -> Tensor:
    return b.negate(x)


@tosa_operator("Identity", types=ANY)
def identity(b: GraphBuilder, x: Tensor) -> Tensor:
    return x


@tosa_operator("Dropout", types=FLOATS, since=12)
def dropout(
    b: GraphBuilder, x: Tensor, ratio: Tensor | None = None, training_mode: Tensor | None = None, *, seed: int = 0
) -> Tensor:
    if training_mode is not None and bool(constant_of(training_mode, "training_mode").reshape(-1)[0]):
        b.decline("training mode")
    return x


@tosa_operator("Sqrt", types=FLOATS, since=6)
def sqrt(b: GraphBuilder, x: Tensor) -> Tensor:
    return b.unary("reciprocal", b.unary("rsqrt", x))


@tosa_operator("Tan", types=FLOATS)
def tan(b: GraphBuilder, x: Tensor) -> Tensor:
    return b.mul(b.unary("sin", x), b.unary("reciprocal", b.unary("cos", x)))


# ---- activations


@tosa_operator("Relu", types=(*FLOATS, "int8", "int16"), since=6)
def relu(b: GraphBuilder, x: Tensor) -> Tensor:
    return clamped(b, x, b.clamp(x, 0, _top(x)), 0, None)


def _top(x: Tensor) -> float | None:
    return math.inf if x.dtype in FLOATS else None


@tosa_operator("Clip", types=FLOATS, since=6, until=6)
def clip_6(
    b: GraphBuilder, x: Tensor, *, max: float = 3.4028234663852886e38, min: float = -3.4028234663852886e38
) -> Tensor:
    return b.clamp(x, min, max) if min <= max else b.decline("min above max")


@tosa_operator("Clip", types=(*FLOATS, "int8"), since=11)
def clip(b: GraphBuilder, x: Tensor, min: Tensor | None = None, max: Tensor | None = None) -> Tensor:
    top = _top(x)
    low = float(constant_of(min, "min").reshape(-1)[0]) if min is not None else (None if top is None else -top)
    high = float(constant_of(max, "max").reshape(-1)[0]) if max is not None else top
    if low is not None and high is not None and low > high:
        b.decline("min above max")
    return clamped(b, x, b.clamp(x, low, high), low, high)


@tosa_operator("LeakyRelu", types=FLOATS, since=6)
def leaky_relu(b: GraphBuilder, x: Tensor, *, alpha: float = 0.01) -> Tensor:
    return _sloped(b, x, b.fill(x, alpha))


@tosa_operator("PRelu", types=FLOATS, since=7)
def prelu(b: GraphBuilder, x: Tensor, slope: Tensor) -> Tensor:
    return _sloped(b, x, slope)


def _sloped(b: GraphBuilder, x: Tensor, slope: Tensor) -> Tensor:
    return b.select(b.elementwise("greater_equal", x, b.fill(x, 0), dtype="bool"), x, b.mul(x, slope))


@tosa_operator("ThresholdedRelu", types=FLOATS)
def thresholded_relu(b: GraphBuilder, x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return b.select(b.elementwise("greater", x, b.fill(x, alpha), dtype="bool"), x, b.fill(x, 0))


def _expm1(b: GraphBuilder, x: Tensor) -> Tensor:
    return b.sub(b.unary("exp", x), b.fill(x, 1))


def _at_least_zero(b: GraphBuilder, x: Tensor) -> Tensor:
    return b.elementwise("greater_equal", x, b.fill(x, 0), dtype="bool")


@tosa_operator("Elu", types=FLOATS, since=6)
def elu(b: GraphBuilder, x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return b.select(_at_least_zero(b, x), x, b.mul(_expm1(b, x), b.fill(x, alpha)))


@tosa_operator("Selu", types=FLOATS, since=6)
def selu(
    b: GraphBuilder, x: Tensor, *, alpha: float = 1.67326319217681884765625, gamma: float = 1.05070102214813232421875
) -> Tensor:
    negative = b.mul(_expm1(b, x), b.fill(x, alpha))
    return b.mul(b.select(_at_least_zero(b, x), x, negative), b.fill(x, gamma))


@tosa_operator("Celu", types=("float32",))
def celu(b: GraphBuilder, x: Tensor, *, alpha: float = 1.0) -> Tensor:
    negative = b.mul(_expm1(b, b.mul(x, b.fill(x, 1 / alpha))), b.fill(x, alpha))
    return b.select(_at_least_zero(b, x), x, negative)


@tosa_operator("HardSigmoid", types=FLOATS, since=6)
def hard_sigmoid(b: GraphBuilder, x: Tensor, *, alpha: float = 0.2, beta: float = 0.5) -> Tensor:
    return b.clamp(b.add(b.mul(x, b.fill(x, alpha)), b.fill(x, beta)), 0.0, 1.0)


@tosa_operator("HardSwish", types=FLOATS)
def hard_swish(b: GraphBuilder, x: Tensor) -> Tensor:
    return b.mul(x, hard_sigmoid(b, x, alpha=1 / 6, beta=0.5))


def softplus_of(b: GraphBuilder, x: Tensor) -> Tensor:
    """log(1 + exp(x)) without overflow: max(x, 0) + log(1 + exp(-abs(x)))."""
    small = b.unary("exp", b.negate(b.unary("abs", x)))
    return b.add(b.clamp(x, 0.0, math.inf), b.unary("log", b.add(small, b.fill(x, 1))))


@tosa_operator("Softplus", types=FLOATS)
def softplus(b: GraphBuilder, x: Tensor) -> Tensor:
    return softplus_of(b, x)


@tosa_operator("Mish", types=FLOATS)
def mish(b: GraphBuilder, x: Tensor) -> Tensor:
    return b.mul(x, b.unary("tanh", softplus_of(b, x)))


@tosa_operator("Softsign", types=FLOATS)
def softsign(b: GraphBuilder, x: Tensor) -> Tensor:
    return b.mul(x, b.unary("reciprocal", b.add(b.unary("abs", x), b.fill(x, 1))))


@tosa_operator("Gelu", types=FLOATS)
def gelu(b: GraphBuilder, x: Tensor, *, approximate: str = "none") -> Tensor:
    half = b.mul(x, b.fill(x, 0.5))
    if approximate == "tanh":
        cube = b.mul(b.mul(b.mul(x, x), x), b.fill(x, 0.044715))
        inner = b.unary("tanh", b.mul(b.add(x, cube), b.fill(x, math.sqrt(2 / math.pi))))
    else:
        inner = b.unary("erf", b.mul(x, b.fill(x, math.sqrt(0.5))))
    return b.mul(half, b.add(inner, b.fill(x, 1)))


# ---- two or more inputs


@tosa_operator("Add", types=NUMBERS, since=7)
def add(b: GraphBuilder, x: Tensor, y: Tensor) -> Tensor:
    return added(b, x, y, b.add(x, y))


@tosa_operator("Sub", types=NUMBERS, since=7)
def sub(b: GraphBuilder, x: Tensor, y: Tensor) -> Tensor:
    return b.sub(x, y)


@tosa_operator("Mul", types=NUMBERS, since=7)
def mul(b: GraphBuilder, x: Tensor, y: Tensor) -> Tensor:
    return b.mul(x, y)


@tosa_operator("Div", types=FLOATS, since=7)
def div(b: GraphBuilder, x: Tensor, y: Tensor) -> Tensor:
    if y.array is not None:
        with np.errstate(divide="ignore"):
            return b.mul(x, b.constant((1 / y.array.astype(np.float64)).astype(y.dtype)))
    return b.mul(x, b.unary("reciprocal", y))


@tosa_operator("Pow", types=FLOATS, since=7)
def pow_(b: GraphBuilder, x: Tensor, y: Tensor) -> Tensor:
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
    if y.dtype != x.dtype:
        b.decline(f"a base of {x.dtype} and an exponent of {y.dtype}")
    raise Decline("TOSA's POW has no result for a negative base")


for _onnx, _tosa in (("Greater", "greater"), ("Equal", "equal")):

    def _declare_comparison(name: str = _tosa) -> object:
        def lower(b: GraphBuilder, x: Tensor, y: Tensor) -> Tensor:
            return b.elementwise(name, x, y, dtype="bool")

        return lower

    tosa_operator(_onnx, types=NUMBERS, since=7)(_declare_comparison())  # type: ignore[arg-type]


@tosa_operator("GreaterOrEqual", types=NUMBERS, since=12)
def greater_or_equal(b: GraphBuilder, x: Tensor, y: Tensor) -> Tensor:
    return b.elementwise("greater_equal", x, y, dtype="bool")


@tosa_operator("Less", types=NUMBERS, since=7)
def less(b: GraphBuilder, x: Tensor, y: Tensor) -> Tensor:
    return b.elementwise("greater", y, x, dtype="bool")


@tosa_operator("LessOrEqual", types=NUMBERS, since=12)
def less_or_equal(b: GraphBuilder, x: Tensor, y: Tensor) -> Tensor:
    return b.elementwise("greater_equal", y, x, dtype="bool")


for _onnx, _tosa, _types in (
    ("And", "logical_and", ("bool",)),
    ("Or", "logical_or", ("bool",)),
    ("Xor", "logical_xor", ("bool",)),
    ("BitwiseAnd", "bitwise_and", ("int32", "int16", "int8")),
    ("BitwiseOr", "bitwise_or", ("int32", "int16", "int8")),
    ("BitwiseXor", "bitwise_xor", ("int32", "int16", "int8")),
):

    def _declare_logical(name: str = _tosa) -> object:
        def lower(b: GraphBuilder, x: Tensor, y: Tensor) -> Tensor:
            return b.elementwise(name, x, y)

        return lower

    tosa_operator(_onnx, types=_types, since=7 if "B" not in _onnx else 1)(_declare_logical())  # type: ignore[arg-type]


@tosa_operator("Where", types=("bool",))
def where(b: GraphBuilder, condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return b.select(condition, x, y)


@tosa_operator("Max", types=NUMBERS, since=8)
def max_(b: GraphBuilder, *inputs: Tensor) -> Tensor:
    return _chain(b, "maximum", inputs)


@tosa_operator("Min", types=NUMBERS, since=8)
def min_(b: GraphBuilder, *inputs: Tensor) -> Tensor:
    return _chain(b, "minimum", inputs)


def _chain(b: GraphBuilder, name: str, inputs: tuple[Tensor, ...]) -> Tensor:
    result = inputs[0]
    for other in inputs[1:]:
        extra = {"nan_mode": PROPAGATE} if name in ("maximum", "minimum") else None
        result = b.elementwise(name, result, other, attributes=extra)
    return result


@tosa_operator("Sum", types=FLOATS, since=8)
def sum_(b: GraphBuilder, *inputs: Tensor) -> Tensor:
    return _chain(b, "add", inputs)


@tosa_operator("Mean", types=FLOATS, since=8)
def mean(b: GraphBuilder, *inputs: Tensor) -> Tensor:
    return b.mul(_chain(b, "add", inputs), b.fill(inputs[0], 1 / len(inputs)))


# ---- casts


@tosa_operator("Cast", types=ANY, since=6)
def cast(b: GraphBuilder, x: Tensor, *, to: int, saturate: int = 1, round_mode: str = "up") -> Tensor:
    target = dtypes.from_onnx(to)
    if target is None:
        b.decline(f"no cast to {dtypes.onnx_name(to)}")
    return cast_to(b, x, target.name)


def cast_to(b: GraphBuilder, x: Tensor, dtype: str) -> Tensor:
    """A cast that means the same in ONNX and in TOSA. Raises `Decline` for the others."""
    if x.dtype == dtype:
        return x
    if x.dtype in FLOATS and dtype not in (*FLOATS, "bool"):
        b.decline("TOSA's CAST of floats to integers rounds, ONNX's cuts off")
    if x.dtype in FLOATS and dtype == "bool":
        equal = b.elementwise("equal", x, b.fill(x, 0), dtype="bool")
        return b.unary("logical_not", equal)
    if x.dtype == "bool" and dtype in FLOATS:  # SPIR-V's TOSA set casts booleans to integers only
        return b.select(x, b.constant(1, dtype), b.constant(0, dtype))
    return b.elementwise("cast", x, dtype=dtype)
