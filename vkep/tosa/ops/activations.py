"""Activations."""

from __future__ import annotations

import functools
import math

from vkep.tosa.graph import TosaBuilder, TosaTensor
from vkep.tosa.ops.quantized import clamped
from vkep.tosa.registry import FLOATS, constant_of, tosa_operator

pointwise = functools.partial(tosa_operator, pointwise=True)


@pointwise("Relu", types=(*FLOATS, "int8", "int16"), since=6)
def relu(b: TosaBuilder, x: TosaTensor) -> TosaTensor:
    return clamped(b, x, b.clamp(x, 0, _top(x)), 0, None)


def _top(x: TosaTensor) -> float | None:
    return math.inf if x.dtype in FLOATS else None


@pointwise("Clip", types=FLOATS, since=6, until=6)
def clip_6(
    b: TosaBuilder, x: TosaTensor, *, max: float = 3.4028234663852886e38, min: float = -3.4028234663852886e38
) -> TosaTensor:
    return b.clamp(x, min, max) if min <= max else b.decline("min above max")


@pointwise("Clip", types=(*FLOATS, "int8"), since=11)
def clip(b: TosaBuilder, x: TosaTensor, min: TosaTensor | None = None, max: TosaTensor | None = None) -> TosaTensor:
    low, high = (
        None if limit is None else float(constant_of(limit, what).reshape(-1)[0])
        for what, limit in (("min", min), ("max", max))
    )
    if low is not None and high is not None and low > high:
        b.decline("min above max")
    return clamped(b, x, b.clamp(x, low, high), low, high)


@pointwise("LeakyRelu", types=FLOATS, since=6)
def leaky_relu(b: TosaBuilder, x: TosaTensor, *, alpha: float = 0.01) -> TosaTensor:
    return _sloped(b, x, b.fill(x, alpha))


@pointwise("PRelu", types=FLOATS, since=7)
def prelu(b: TosaBuilder, x: TosaTensor, slope: TosaTensor) -> TosaTensor:
    return _sloped(b, x, slope)


def _sloped(b: TosaBuilder, x: TosaTensor, slope: TosaTensor) -> TosaTensor:
    return b.select(b.elementwise("greater_equal", x, b.fill(x, 0), dtype="bool"), x, b.mul(x, slope))


@pointwise("ThresholdedRelu", types=FLOATS)
def thresholded_relu(b: TosaBuilder, x: TosaTensor, *, alpha: float = 1.0) -> TosaTensor:
    return b.select(b.elementwise("greater", x, b.fill(x, alpha), dtype="bool"), x, b.fill(x, 0))


def _expm1(b: TosaBuilder, x: TosaTensor) -> TosaTensor:
    return b.sub(b.unary("exp", x), b.fill(x, 1))


def _at_least_zero(b: TosaBuilder, x: TosaTensor) -> TosaTensor:
    return b.elementwise("greater_equal", x, b.fill(x, 0), dtype="bool")


@pointwise("Elu", types=FLOATS, since=6)
def elu(b: TosaBuilder, x: TosaTensor, *, alpha: float = 1.0) -> TosaTensor:
    return b.select(_at_least_zero(b, x), x, b.mul(_expm1(b, x), b.fill(x, alpha)))


@pointwise("Selu", types=FLOATS, since=6)
def selu(
    b: TosaBuilder, x: TosaTensor, *, alpha: float = 1.67326319217681884765625, gamma: float = 1.05070102214813232421875
) -> TosaTensor:
    negative = b.mul(_expm1(b, x), b.fill(x, alpha))
    return b.mul(b.select(_at_least_zero(b, x), x, negative), b.fill(x, gamma))


@pointwise("Celu", types=("float32",))
def celu(b: TosaBuilder, x: TosaTensor, *, alpha: float = 1.0) -> TosaTensor:
    negative = b.mul(_expm1(b, b.mul(x, b.fill(x, 1 / alpha))), b.fill(x, alpha))
    return b.select(_at_least_zero(b, x), x, negative)


@pointwise("HardSigmoid", types=FLOATS, since=6)
def hard_sigmoid(b: TosaBuilder, x: TosaTensor, *, alpha: float = 0.2, beta: float = 0.5) -> TosaTensor:
    return b.clamp(b.add(b.mul(x, b.fill(x, alpha)), b.fill(x, beta)), 0.0, 1.0)


@pointwise("HardSwish", types=FLOATS)
def hard_swish(b: TosaBuilder, x: TosaTensor) -> TosaTensor:
    return b.mul(x, hard_sigmoid(b, x, alpha=1 / 6, beta=0.5))


def softplus_of(b: TosaBuilder, x: TosaTensor) -> TosaTensor:
    """log(1 + exp(x)) without overflow: max(x, 0) + log(1 + exp(-abs(x)))."""
    small = b.unary("exp", b.negate(b.unary("abs", x)))
    return b.add(b.clamp(x, 0.0, math.inf), b.unary("log", b.add(small, b.fill(x, 1))))


@pointwise("Softplus", types=FLOATS)
def softplus(b: TosaBuilder, x: TosaTensor) -> TosaTensor:
    return softplus_of(b, x)


@pointwise("Mish", types=FLOATS)
def mish(b: TosaBuilder, x: TosaTensor) -> TosaTensor:
    return b.mul(x, b.unary("tanh", softplus_of(b, x)))


@pointwise("Swish", types=FLOATS)
def swish(b: TosaBuilder, x: TosaTensor, *, alpha: float = 1.0) -> TosaTensor:
    return b.mul(x, b.unary("sigmoid", b.mul(x, b.fill(x, alpha))))


@pointwise("Softsign", types=FLOATS)
def softsign(b: TosaBuilder, x: TosaTensor) -> TosaTensor:
    return b.mul(x, b.unary("reciprocal", b.add(b.unary("abs", x), b.fill(x, 1))))


@pointwise("Gelu", types=FLOATS)
def gelu(b: TosaBuilder, x: TosaTensor, *, approximate: str = "none") -> TosaTensor:
    half = b.mul(x, b.fill(x, 0.5))
    if approximate == "tanh":
        cube = b.mul(b.mul(b.mul(x, x), x), b.fill(x, 0.044715))
        inner = b.unary("tanh", b.mul(b.add(x, cube), b.fill(x, math.sqrt(2 / math.pi))))
    else:
        inner = b.unary("erf", b.mul(x, b.fill(x, math.sqrt(0.5))))
    return b.mul(half, b.add(inner, b.fill(x, 1)))
