"""Reductions, softmax and norms over axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from vkep.graph.attributes import LayerNormAttributes
from vkep.tosa.graph import PROPAGATE, TosaBuilder, TosaTensor
from vkep.tosa.ops.casts import cast_to
from vkep.tosa.ops.elementwise import sqrt
from vkep.tosa.registry import FLOATS, NUMBERS, axis_of, constant_of, tosa_operator


def _sum(b: TosaBuilder, x: TosaTensor, axes: Sequence[int]) -> TosaTensor:
    return b.reduce("reduce_sum", x, axes)


def mean_of(b: TosaBuilder, x: TosaTensor, axes: Sequence[int]) -> TosaTensor:
    """The mean over axes, which are kept with size 1."""
    return b.mul(_sum(b, x, axes), b.fill(x, 1 / math.prod(x.shape[a] for a in axes)))


def _extreme(b: TosaBuilder, name: str, x: TosaTensor, axes: Sequence[int]) -> TosaTensor:
    """REDUCE_MAX or REDUCE_MIN.

    The emulation layer (0.11) starts them at the largest finite numbers, so that a row of infinities has a finite
    result: with halving before and doubling after, it is infinite again, and every other number is unchanged.
    """
    if x.dtype == "bool":
        return b.reduce("reduce_any" if name == "reduce_max" else "reduce_all", x, axes)
    if x.dtype not in FLOATS:
        return b.reduce(name, x, axes, nan_mode=PROPAGATE)
    return b.mul(b.reduce(name, b.mul(x, b.fill(x, 0.5)), axes, nan_mode=PROPAGATE), b.fill(x, 2))


def _square(b: TosaBuilder, x: TosaTensor) -> TosaTensor:
    return b.mul(x, x)


_ORDERED = (*NUMBERS, "int8", "bool")
_REDUCTIONS: dict[str, tuple[Callable[[TosaBuilder, TosaTensor, Sequence[int]], TosaTensor], tuple[str, ...], int]] = {
    "ReduceSum": (_sum, NUMBERS, 13),
    "ReduceMean": (mean_of, FLOATS, 18),
    "ReduceMax": (lambda b, x, a: _extreme(b, "reduce_max", x, a), _ORDERED, 18),
    "ReduceMin": (lambda b, x, a: _extreme(b, "reduce_min", x, a), _ORDERED, 18),
    "ReduceProd": (lambda b, x, a: b.reduce("reduce_product", x, a), FLOATS, 18),
    "ReduceSumSquare": (lambda b, x, a: _sum(b, _square(b, x), a), NUMBERS, 18),
    "ReduceL1": (lambda b, x, a: _sum(b, b.unary("abs", x), a), NUMBERS, 18),
    "ReduceL2": (lambda b, x, a: sqrt(b, _sum(b, _square(b, x), a)), FLOATS, 18),
    "ReduceLogSum": (lambda b, x, a: b.unary("log", _sum(b, x, a)), FLOATS, 18),
    "ReduceLogSumExp": (lambda b, x, a: _log_sum_exp(b, x, a), FLOATS, 18),
}


def _log_sum_exp(b: TosaBuilder, x: TosaTensor, axes: Sequence[int]) -> TosaTensor:
    top = b.reduce("reduce_max", x, axes, nan_mode=PROPAGATE)
    return b.add(b.unary("log", _sum(b, b.unary("exp", b.sub(x, top)), axes)), top)


def _reduced(
    b: TosaBuilder,
    x: TosaTensor,
    axes: Sequence[int] | None,
    keepdims: int,
    noop: int,
    function: Callable[[TosaBuilder, TosaTensor, Sequence[int]], TosaTensor],
) -> TosaTensor:
    if x.scalar:
        b.decline("a reduction of a scalar")
    if axes is None or not len(axes):
        if noop:
            b.decline("a reduction over no axes")
        axes = range(x.rank)
    chosen = sorted({axis_of(int(a), x.rank) for a in axes})
    made = in_float32(b, x, lambda b, x: function(b, x, chosen)) if x.dtype in FLOATS else function(b, x, chosen)
    return made if keepdims else b.reshape(made, [s for i, s in enumerate(x.shape) if i not in chosen])


def _declare(name: str) -> None:
    function, types, version = _REDUCTIONS[name]

    def old(b: TosaBuilder, x: TosaTensor, *, axes: Sequence[int] | None = None, keepdims: int = 1) -> TosaTensor:
        return _reduced(b, x, axes, keepdims, 0, function)

    def new(
        b: TosaBuilder,
        x: TosaTensor,
        axes: TosaTensor | None = None,
        *,
        keepdims: int = 1,
        noop_with_empty_axes: int = 0,
    ) -> TosaTensor:
        which = constant_of(axes, "the axes").reshape(-1) if axes is not None else None
        return _reduced(b, x, which, keepdims, noop_with_empty_axes, function)

    tosa_operator(name, types=types, until=version - 1)(old)
    tosa_operator(name, types=types, since=version)(new)


for _name in _REDUCTIONS:
    _declare(_name)


def in_float32(b: TosaBuilder, x: TosaTensor, function: Callable[[TosaBuilder, TosaTensor], TosaTensor]) -> TosaTensor:
    """Compute several operations in full precision: float16 is rounded once, at the end."""
    return cast_to(b, function(b, cast_to(b, x, "float32")), x.dtype)


@tosa_operator("Softmax", types=FLOATS, since=13)
def softmax(b: TosaBuilder, x: TosaTensor, *, axis: int = -1) -> TosaTensor:
    return in_float32(b, x, lambda b, x: _softmax(b, x, axis))


def _softmax(b: TosaBuilder, x: TosaTensor, axis: int) -> TosaTensor:
    which = [axis_of(axis, x.rank)]
    powers = b.unary("exp", b.sub(x, b.reduce("reduce_max", x, which, nan_mode=PROPAGATE)))
    return b.mul(powers, b.unary("reciprocal", _sum(b, powers, which)))


@tosa_operator("LogSoftmax", types=FLOATS, since=13)
def log_softmax(b: TosaBuilder, x: TosaTensor, *, axis: int = -1) -> TosaTensor:
    return in_float32(b, x, lambda b, x: _log_softmax(b, x, axis))


def _log_softmax(b: TosaBuilder, x: TosaTensor, axis: int) -> TosaTensor:
    which = [axis_of(axis, x.rank)]
    shifted = b.sub(x, b.reduce("reduce_max", x, which, nan_mode=PROPAGATE))
    return b.sub(shifted, b.unary("log", _sum(b, b.unary("exp", shifted), which)))


def _normalized(b: TosaBuilder, x: TosaTensor, axes: Sequence[int], epsilon: float) -> TosaTensor:
    centered = b.sub(x, mean_of(b, x, axes))
    variance = mean_of(b, _square(b, centered), axes)
    return b.mul(centered, b.unary("rsqrt", b.add(variance, b.fill(x, epsilon))))


@tosa_operator("LayerNormalization", types=FLOATS)
def layer_normalization(
    b: TosaBuilder,
    x: TosaTensor,
    scale: TosaTensor,
    bias: TosaTensor | None = None,
    *,
    a: LayerNormAttributes,
) -> TosaTensor:
    axes = range(axis_of(a.axis, x.rank), x.rank)
    made = b.mul(in_float32(b, x, lambda b, x: _normalized(b, x, axes, a.epsilon)), scale)
    return b.add(made, bias) if bias is not None else made


@tosa_operator("RMSNormalization", types=FLOATS)
def rms_normalization(b: TosaBuilder, x: TosaTensor, scale: TosaTensor, *, a: LayerNormAttributes) -> TosaTensor:
    axes = range(axis_of(a.axis, x.rank), x.rank)

    def normalized(b: TosaBuilder, x: TosaTensor) -> TosaTensor:
        mean = mean_of(b, _square(b, x), axes)
        return b.mul(x, b.unary("rsqrt", b.add(mean, b.fill(x, a.epsilon))))

    return b.mul(in_float32(b, x, normalized), scale)


@tosa_operator("InstanceNormalization", types=("float32",), since=6)
def instance_normalization(
    b: TosaBuilder, x: TosaTensor, scale: TosaTensor, bias: TosaTensor, *, epsilon: float = 1e-5
) -> TosaTensor:
    channel = (x.shape[1],) + (1,) * (x.rank - 2)
    made = _normalized(b, x, range(2, x.rank), epsilon)
    return b.add(b.mul(made, b.reshape(scale, channel)), b.reshape(bias, channel))
