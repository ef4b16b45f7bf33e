"""Roots and powers."""

from __future__ import annotations

import functools
import math

import numpy as np

from vkep.tosa.graph import TosaBuilder, TosaTensor
from vkep.tosa.ops.casts import cast_to
from vkep.tosa.registry import FLOATS, tosa_operator

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
    """TOSA's POW takes bases above 0: signs, zeros and NaN are put right around it, as C's pow() has them."""
    if x.dtype != "float32":
        b.decline("POW of float16: the exponent's rounding is larger than the type's")
    zero, one, nan = (b.fill(x, v) for v in (0, 1, math.nan))

    def same(u: TosaTensor, v: TosaTensor) -> TosaTensor:
        return b.elementwise("equal", u, v, dtype="bool")

    base = x.array
    size = b.unary("abs", x)
    at_zero = same(x, zero)
    # 1 where the base is 0: what POW makes of 0 is left open
    power = b.elementwise("pow", b.select(at_zero, one, size), y)
    falling = b.elementwise("greater", zero, y, dtype="bool")
    of_zero = b.select(falling, b.fill(x, math.inf), zero)
    if base is None or base.min() < 0:
        half = b.mul(y, b.fill(y, 0.5))
        whole, even = same(b.unary("floor", y), y), same(b.unary("floor", half), half)
        negative = b.elementwise("greater", zero, x, dtype="bool")
        signed = b.select(whole, b.select(even, power, b.negate(power)), nan)
        power = b.select(negative, signed, power)
    made = b.select(at_zero, of_zero, power) if base is None or not np.all(base) else power
    made = b.select(same(y, zero), one, made)  # also of NaN
    return made if np.broadcast_shapes(x.shape, y.shape) == made.shape else b.mul(made, b.fill(x, 1))
