"""ai.onnx.preview.training: one step of an optimizer. Semantics: ONNX's operators."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from vkep.ir import algebra as fn
from vkep.ir.algebra import where
from vkep.ir.builder import Builder
from vkep.ir.expr import Expr
from vkep.ir.tensor import Tensor
from vkep.ops.registry import operator

TRAINING = "ai.onnx.preview.training"
_TYPES = {"T1": ("float32",), "T2": ("int64",), "T3": ("float32",)}


def _stepped(b: Builder, inputs: Sequence[Tensor], states: int, step: Callable[..., Sequence[Expr]]) -> list[Tensor]:
    """Apply ``step(x, gradient, *states)`` to each tensor that is optimized: the new tensors, then each one's
    states."""
    count, left = divmod(len(inputs), 2 + states)
    if left or not count:
        b.invalid(f"{len(inputs)} tensors; expected {2 + states} for each tensor to be optimized")
    found = [step(*b.reads(*inputs[k::count])) for k in range(count)]
    return [  # an expression of constants alone has no type and no shape of its own
        b.pointwise("same", values[part], dtype=x.dtype, shape=x.shape)
        for part in range(1 + states)
        for x, values in zip(inputs[:count], found, strict=True)
    ]


@operator("Adagrad", domain=TRAINING, types=_TYPES)
def adagrad(
    b: Builder,
    r: Tensor,
    t: Tensor,
    *inputs: Tensor,
    decay_factor: float = 0.0,
    epsilon: float = 1e-6,
    norm_coefficient: float = 0.0,
) -> list[Tensor]:
    first, time, decay, norm, least = b.reads(r, t, decay_factor, norm_coefficient, epsilon)
    rate = first / (1.0 + fn.cast(time, "float") * decay)

    def step(x: Expr, gradient: Expr, squares: Expr) -> Sequence[Expr]:
        slope = x * norm + gradient
        summed = squares + slope * slope
        return x - rate * slope / (fn.sqrt(summed) + least), summed

    return _stepped(b, inputs, 1, step)


@operator("Adam", domain=TRAINING, types=_TYPES)
def adam(
    b: Builder,
    r: Tensor,
    t: Tensor,
    *inputs: Tensor,
    alpha: float = 0.9,
    beta: float = 0.999,
    epsilon: float = 1e-6,
    norm_coefficient: float = 0.0,
    norm_coefficient_post: float = 0.0,
) -> list[Tensor]:
    logs = [math.log(factor) if factor > 0 else -1e30 for factor in (beta, alpha)]
    first, count, log_beta, log_alpha, norm, least, kept = b.reads(
        r, t, *logs, norm_coefficient, epsilon, 1 - norm_coefficient_post
    )
    old_mean, new_mean, old_square, new_square = b.reads(first, alpha, 1 - alpha, beta, 1 - beta)[1:]
    time = fn.cast(count, "float")

    def left(log: Expr) -> Expr:
        """1 - factor ** t without cancellation."""
        half = fn.maximum(0.5 * time * log, -40.0)
        return -2.0 * fn.exp(half) * fn.sinh(half)

    rate = where(time > 0.0, first * fn.sqrt(left(log_beta)) / left(log_alpha), first)

    def step(x: Expr, gradient: Expr, mean: Expr, squares: Expr) -> Sequence[Expr]:
        slope = x * norm + gradient
        mean_now = mean * old_mean + slope * new_mean
        squares_now = squares * old_square + slope * slope * new_square
        moved = x - rate * mean_now / (fn.sqrt(squares_now) + least)
        return moved * kept, mean_now, squares_now

    return _stepped(b, inputs, 2, step)


@operator("Momentum", domain=TRAINING, types=_TYPES)
def momentum(
    b: Builder,
    r: Tensor,
    t: Tensor,
    *inputs: Tensor,
    alpha: float,
    beta: float,
    mode: str,
    norm_coefficient: float,
) -> list[Tensor]:
    if mode not in ("standard", "nesterov"):
        b.invalid(f"mode is {mode!r}, expected standard or nesterov")
    rate, time, kept, damped, norm = b.reads(r, t, alpha, beta, norm_coefficient)
    share = where(time > 0, damped, 1.0)

    def step(x: Expr, gradient: Expr, velocity: Expr) -> Sequence[Expr]:
        slope = x * norm + gradient
        now = velocity * kept + share * slope
        return x - rate * (now if mode == "standard" else slope + kept * now), now

    return _stepped(b, inputs, 1, step)
