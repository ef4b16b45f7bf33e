"""ai.onnx.preview.training: one step of an optimizer. Semantics: ONNX's operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from vkep.ir.builder import Builder, Operand
from vkep.ir.tensor import Tensor
from vkep.ops.registry import operator

TRAINING = "ai.onnx.preview.training"
_TYPES = {"T1": ("float32",), "T2": ("int64",), "T3": ("float32",)}


def _stepped(b: Builder, inputs: Sequence[Tensor], states: int, step: Callable[..., Sequence[Operand]]) -> list[Tensor]:
    """Apply ``step(x, gradient, *states)`` to each tensor that is optimized: the new tensors, then each one's
    states."""
    count, left = divmod(len(inputs), 2 + states)
    if left or not count:
        b.invalid(f"{len(inputs)} tensors; expected {2 + states} for each tensor to be optimized")
    found = [step(*inputs[k::count]) for k in range(count)]
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
    rate = b.expr("({0} / (1.0 + {1} * {2}))", r, b.expr("float({0})", t, ctype="float"), decay_factor)

    def step(x: Tensor, gradient: Tensor, squares: Tensor) -> Sequence[Operand]:
        slope = b.expr("mul_add", x, norm_coefficient, gradient)
        summed = b.expr("({0} + {1} * {1})", squares, slope)
        return b.expr("({0} - {1} * {2} / (sqrt({3}) + {4}))", x, rate, slope, summed, epsilon), summed

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
    logs = [float(np.log(factor)) if factor > 0 else -1e30 for factor in (beta, alpha)]
    time = b.expr("float({0})", t, ctype="float")
    bias = "({1} > 0.0 ? {0} * sqrt(LEFT2) / LEFT3 : {0})"
    for k in (2, 3):  # 1 - factor ** t without cancellation
        half = f"max(0.5 * {{1}} * {{{k}}}, -40.0)"
        bias = bias.replace(f"LEFT{k}", f"(-2.0 * exp({half}) * accurate_sinh({half}))")
    rate = b.expr(bias, r, time, *logs)

    def step(x: Tensor, gradient: Tensor, mean: Tensor, squares: Tensor) -> Sequence[Operand]:
        slope = b.expr("mul_add", x, norm_coefficient, gradient)
        mean_now = b.expr("({0} * {2} + {1} * {3})", mean, slope, alpha, 1 - alpha)
        squares_now = b.expr("({0} * {2} + {1} * {1} * {3})", squares, slope, beta, 1 - beta)
        moved = b.expr("({0} - {1} * {2} / (sqrt({3}) + {4}))", x, rate, mean_now, squares_now, epsilon)
        return b.expr("({0} * {1})", moved, 1 - norm_coefficient_post), mean_now, squares_now

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
    share = b.expr("(float({0}) > 0.0 ? {1} : 1.0)", t, b.scalar_like(beta, r), ctype="float")

    def step(x: Tensor, gradient: Tensor, velocity: Tensor) -> Sequence[Operand]:
        slope = b.expr("mul_add", x, norm_coefficient, gradient)
        now = b.expr("({0} * {1} + {2} * {3})", velocity, alpha, share, slope)
        if mode == "standard":
            return b.expr("({0} - {1} * {2})", x, r, now), now
        return b.expr("({0} - {1} * ({2} + {3} * {4}))", x, r, slope, alpha, now), now

    return _stepped(b, inputs, 1, step)
