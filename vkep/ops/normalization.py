"""Softmax and the normalizations: ONNX's, and those of domain com.microsoft that add a skipped tensor, a bias or a gate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from vkep.dtypes import DTYPES, FLOAT32, DType, from_onnx
from vkep.graph.attributes import BatchNormAttributes, LayerNormAttributes
from vkep.ir import algebra as fn
from vkep.ir.algebra import equal, where
from vkep.ir.builder import Builder
from vkep.ir.expr import Expr
from vkep.ir.tensor import Tensor
from vkep.kernels.reductions.norm import (
    ChannelFactorsProblem,
    GroupNormProblem,
    LayerNormProblem,
    LocalResponseNormProblem,
    MomentsProblem,
    SoftmaxProblem,
    gains_by_factors,
    gains_by_moments,
)
from vkep.ops.allowed import FLOATING, SINGLE, every
from vkep.ops.gather import padded
from vkep.ops.microsoft import MICROSOFT, outputs, wants_output
from vkep.ops.reduction import middle, reduce_axes
from vkep.ops.registry import FLOATS, operator


def softmax_over(
    b: Builder, x: Tensor, outer: int, axis: int, inner: int, *, log: bool = False, zeros: bool = False
) -> Tensor:
    """Softmax over the middle axis of ``x``, dense and read as [outer, axis, inner]; ``zeros``: where all of an axis is
    minus infinity."""
    return b.result(SoftmaxProblem(outer, axis, inner, x.dtype.name, log, zeros=zeros), x, shape=x.shape)


def _softmax(b: Builder, x: Tensor, axes: range, log: bool) -> Tensor:
    if x.dtype.name == "float64":
        return _double_softmax(b, x, list(axes), log)
    dense, sizes = middle(b, b.contiguous(x), list(axes))  # in the order of x's axes, as the result is
    return softmax_over(b, dense, *sizes, log=log)


def _double_softmax(b: Builder, x: Tensor, axes: list[int], log: bool) -> Tensor:
    below = b.pointwise("sub", x, reduce_axes(b, "max", x, axes, keepdims=True))
    raised = b.pointwise("exp", below)
    total = reduce_axes(b, "sum", raised, axes, keepdims=True)
    if not log:
        return b.pointwise("div", raised, total)
    return b.pointwise(lambda v, of: v - fn.log(of), below, total)


def _declare_softmax(op_type: str, log: bool) -> None:
    def until_12(b: Builder, x: Tensor, *, axis: int = 1) -> Tensor:
        # before version 13 the input is treated as a matrix: all axes from `axis` on together
        return _softmax(b, x, range(b.axis(axis, x.rank), x.rank), log)

    def since_13(b: Builder, x: Tensor, *, axis: int = -1) -> Tensor:
        first = b.axis(axis, x.rank)
        return _softmax(b, x, range(first, first + 1), log)

    operator(op_type, until=12, types={"T": every(op_type, among=FLOATING)})(until_12)
    operator(op_type, since=13, types={"T": every(op_type, among=FLOATING)})(since_13)


_declare_softmax("Softmax", log=False)
_declare_softmax("LogSoftmax", log=True)


def _per_channel(b: Builder, values: Tensor, rank: int) -> Tensor:
    """A vector over axis 1, shaped to broadcast; a tensor with one axis has one channel."""
    return b.reshape(values, [1, values.size, *([1] * (rank - 2))] if rank > 1 else [values.size])


def _expect_channels(b: Builder, x: Tensor, **values: Tensor) -> None:
    for name, tensor in values.items():
        b.expect(name, tensor, x.shape[1:2] or (1,))


def _computed_in(x: Tensor) -> DType:
    """The type of parameters and statistics, which may be of other types than ``x``."""
    return DTYPES["float64" if x.dtype.name == "float64" else "float32"]


def _normalized(x: Expr, scale: Expr, bias: Expr, mean: Expr, variance: Expr, epsilon: Expr) -> Expr:
    return (x - mean) * (scale / fn.sqrt(variance + epsilon)) + bias


def _batch_norm(
    b: Builder, x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, var: Tensor, epsilon: float
) -> Tensor:
    _expect_channels(b, x, scale=scale, B=bias, input_mean=mean, input_var=var)
    parts = [t.array for t in (scale, bias, mean, var)]
    if all(p is not None for p in parts):
        s, o, m, v = (np.asarray(p, np.float64) for p in parts)
        factor = s / np.sqrt(v + epsilon)
        kind = np.float64 if x.dtype.name == "float64" else np.float32
        weight = b.constant((factor).astype(kind), "scale")
        shift = b.constant((o - m * factor).astype(kind), "shift")
        return b.pointwise("mul_add", x, _per_channel(b, weight, x.rank), _per_channel(b, shift, x.rank))
    s_, o_, m_, v_ = (_per_channel(b, b.cast(t, _computed_in(x)), x.rank) for t in (scale, bias, mean, var))
    return b.pointwise(_normalized, x, s_, o_, m_, v_, epsilon)


@operator("BatchNormalization", since=1, until=13, types={"T": every("BatchNormalization", among=FLOATING)})
def batch_normalization_1(
    b: Builder,
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    mean: Tensor,
    var: Tensor,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    is_test: int = 0,
    spatial: int = 1,
    consumed_inputs: list[int] | None = None,
    opset: int,
) -> Tensor:
    if opset < 7 and not is_test:
        b.decline("training mode of a version before 7")
    if not spatial and scale.shape != x.shape[1:2]:
        parts = {"scale": scale, "B": bias, "mean": mean, "var": var}
        for name, part in parts.items():
            b.expect(name, part, x.shape[1:])
        scale, bias, mean, var = (b.reshape(part, [part.size]) for part in parts.values())
        rows = b.reshape(x, [x.shape[0], x.size // max(x.shape[0], 1)])
        return b.reshape(_batch_norm(b, rows, scale, bias, mean, var, epsilon), x.shape)
    return _batch_norm(b, x, scale, bias, mean, var, epsilon)


@operator("BatchNormalization", since=14, types={"T": every("BatchNormalization", among=FLOATING)})
def batch_normalization(
    b: Builder,
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    mean: Tensor,
    var: Tensor,
    *,
    a: BatchNormAttributes,
) -> list[Tensor]:
    if not a.training_mode:
        if b.node is not None and any(b.node.outputs[1:]):
            b.invalid("statistics are outputs of training_mode 1 only")
        return [_batch_norm(b, x, scale, bias, mean, var, a.epsilon)]
    _expect_channels(b, x, input_mean=mean, input_var=var)
    axes = [0, *range(2, x.rank)]
    wide = b.cast(x, _computed_in(x))
    centre = reduce_axes(b, "mean", wide, axes, keepdims=True)
    squares = b.pointwise(lambda x, y: (x - y) * (x - y), wide, centre)
    spread = reduce_axes(b, "mean", squares, axes, keepdims=True)
    out = _batch_norm(b, x, scale, bias, b.reshape(centre, mean.shape), b.reshape(spread, var.shape), a.epsilon)
    blended = lambda x, y, share: x * share + y * (1 - share)  # noqa: E731
    running = [
        b.cast(b.pointwise(blended, b.cast(old, wide.dtype), b.reshape(new, old.shape), a.momentum), old.dtype)
        for old, new in ((mean, centre), (var, spread))
    ]
    return [out, *running]


def _row_of(wide: Tensor, first: int) -> Tensor | None:
    """The row that all rows of a broadcast view are equal to (the axes from ``first`` on); None where they differ."""
    if any(step and size > 1 for size, step in zip(wide.shape[:first], wide.strides[:first], strict=True)):
        return None
    return wide.view(wide.shape[first:], wide.strides[first:])


def row_norm(
    b: Builder,
    x: Tensor,
    scale: Tensor,
    bias: Tensor | None = None,
    *,
    axis: int = -1,
    epsilon: float,
    rms: bool = False,
    mean: bool = False,
    inv_std: bool = False,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Layer norm (or RMS norm) over the axes from ``axis`` on: the result, and its statistics where requested."""
    first = b.axis(axis, x.rank)
    row = x.shape[first:]
    named = {"scale": scale, "bias": bias}
    factors = [b.broadcast(name, b.cast(t, x.dtype), x.shape) for name, t in named.items() if t is not None]
    lead, count = [*x.shape[:first], *([1] * len(row))], math.prod(x.shape[:first])

    def with_factors(out: Tensor) -> Tensor:
        for op, wide in zip(("mul", "add"), factors, strict=False):
            out = b.pointwise(op, out, wide)
        return out

    if gains_by_moments(count, math.prod(row), b.caps):
        found = [b.reshape(t, lead) for t in _moments(b, x, count, epsilon, rms)]
        out = with_factors(b.pointwise(lambda v, centre, factor: (v - centre) * factor, x, *found))
        return out, found[0] if mean else None, found[1] if inv_std else None
    rows = [_row_of(wide, first) for wide in factors]
    fused = None not in rows  # else a scale or shift that differs between rows is applied after the kernel
    out = b.empty(x.dtype, x.shape)
    means, deviations = (b.empty(FLOAT32, lead) if wanted else None for wanted in (mean, inv_std))
    problem = LayerNormProblem(
        count,
        math.prod(row),
        x.dtype.name,
        epsilon,
        rms,
        fused,
        fused and bias is not None,
        mean,
        inv_std,
    )
    results = [out, *(t for t in (means, deviations) if t is not None)]
    inputs = [x, *(row for row in rows if row is not None)] if fused else [x]
    b.compute(problem, [b.contiguous(t) for t in inputs], results)
    return out if fused else with_factors(out), means, deviations


def row_norm_of_two_types(
    b: Builder, x: Tensor, scale: Tensor, bias: Tensor | None = None, **rest: Any
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """`row_norm` with a result of the scale's type, which may differ from that of ``x`` in ONNX Runtime's own
    operators."""
    if x.dtype is scale.dtype:
        return row_norm(b, x, scale, bias, **rest)
    out, mean, inv_std = row_norm(b, b.cast(x, FLOAT32), scale, bias, **rest)
    return b.cast(out, scale.dtype), mean, inv_std


@operator("LayerNormalization", types={"T": every("LayerNormalization", among=FLOATING)})
def layer_normalization(
    b: Builder,
    x: Tensor,
    scale: Tensor,
    bias: Tensor | None = None,
    *,
    a: LayerNormAttributes,
) -> list[Tensor]:
    stash = _stash(b, a)
    count = len(b.node.outputs) if b.node is not None else 1
    if "float64" in (x.dtype.name, stash.name):
        first, wide = b.axis(a.axis, x.rank), DTYPES["float64"]
        out, *rest = _wide_norm(b, x, range(first, x.rank), *_spread(b, x, scale, bias), a.epsilon, wide)
        return [b.cast(out, x.dtype), *(b.cast(t, stash) for t in rest)][:count]
    old = b.node is not None and b.node.schema is None  # ONNX Runtime's operator, before opset 17
    norm = row_norm_of_two_types if old else row_norm
    out, mean, inv_std = norm(b, x, scale, bias, axis=a.axis, epsilon=a.epsilon, mean=count > 1, inv_std=count > 2)
    return [out, *(b.cast(t, stash) for t in (mean, inv_std) if t is not None)]


def _stash(b: Builder, a: LayerNormAttributes) -> DType:
    """The type of the statistics. They are computed in float32 where it is narrower."""
    stash = from_onnx(a.stash_type)
    if stash is None or stash.kind != "float":
        b.decline(f"stash_type is {a.stash_type}, expected that of a floating-point type")
    return stash


def _spread(b: Builder, x: Tensor, scale: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
    return b.broadcast("scale", scale, x.shape), None if bias is None else b.broadcast("bias", bias, x.shape)


@operator(
    "RMSNormalization",
    since=23,
    types={"T": every("RMSNormalization", among=FLOATING), "V": every("RMSNormalization", "V", FLOATING)},
)
def rms_normalization(b: Builder, x: Tensor, scale: Tensor, *, a: LayerNormAttributes) -> Tensor:
    if "float64" in (x.dtype.name, _stash(b, a).name):
        first, wide = b.axis(a.axis, x.rank), DTYPES["float64"]
        made = _wide_norm(b, x, range(first, x.rank), *_spread(b, x, scale, None), a.epsilon, wide, rms=True)
        return b.cast(made[0], x.dtype)
    return row_norm(b, x, scale, axis=a.axis, epsilon=a.epsilon, rms=True)[0]


def centred(b: Builder, x: Tensor, axes: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
    """``x`` less its mean over ``axes``, its variance, of the differences (E[x**2] - E[x]**2 overflows and cancels), and the
    mean."""
    mean = reduce_axes(b, "mean", x, axes, keepdims=True)
    apart = b.pointwise("sub", x, mean)
    return apart, reduce_axes(b, "mean", b.pointwise("mul", apart, apart), axes, keepdims=True), mean


def _wide_norm(
    b: Builder,
    x: Tensor,
    axes: Sequence[int],
    scale: Tensor,
    bias: Tensor | None,
    epsilon: float,
    wide: DType,
    rms: bool = False,
) -> list[Tensor]:
    """``x`` without its mean (RMS norm: with it) over the square root of its variance over ``axes``, computed in ``wide``;
    the means and the factors."""
    x = b.cast(x, wide)
    apart, variance, mean = centred(b, x, axes)
    if rms:
        apart, variance = x, reduce_axes(b, "mean", b.pointwise("mul", x, x), axes, keepdims=True)
    inv_std = b.store(b.expr("exact_div", 1.0, b.expr("sqrt", b.expr("add", variance, epsilon))), wide)
    result = b.expr("mul", b.expr("mul", apart, inv_std), b.cast(scale, wide))
    if bias is not None:
        result = b.expr("add", result, b.cast(bias, wide))
    return [b.store(result, wide, shape=x.shape), mean, inv_std]


def _group_norm(b: Builder, x: Tensor, groups: int, scale: Tensor, bias: Tensor, epsilon: float) -> Tensor:
    images, channels, spatial = x.shape[0], x.shape[1], math.prod(x.shape[2:])
    if x.dtype.name == "float64":
        rows = b.reshape(x, (images, groups, channels // max(groups, 1), spatial))
        scale, bias = (b.reshape(t, (1, groups, channels // max(groups, 1), 1)) for t in (scale, bias))
        return b.reshape(_wide_norm(b, rows, [2, 3], scale, bias, epsilon, x.dtype)[0], x.shape)
    problem = GroupNormProblem(images, channels, spatial, x.dtype.name, groups, epsilon)
    if not gains_by_factors(images * groups, channels // groups * spatial, x.dtype.name, b.caps):
        return b.result(problem, x, scale, bias, shape=x.shape)
    # a factor and a shift for each channel: the result has the shape of x, and may have its layout
    factors = b.empty(FLOAT32, (images, channels)), b.empty(FLOAT32, (images, channels))
    by_channel = ChannelFactorsProblem(images, channels, spatial, groups, x.dtype.name, epsilon)
    b.compute(by_channel, [b.contiguous(t) for t in (x, scale, bias)], list(factors))
    lead = (images, channels, *[1] * (x.rank - 2))
    return b.pointwise("mul_add", x, *(b.reshape(t, lead) for t in factors))


def _moments(b: Builder, x: Tensor, rows: int, epsilon: float, rms: bool = False) -> tuple[Tensor, Tensor]:
    """The means and inverse deviations (float32 [rows]) of as many rows that ``x`` consists of."""
    made = b.empty(FLOAT32, (rows,)), b.empty(FLOAT32, (rows,))
    b.compute(MomentsProblem(rows, x.size // max(rows, 1), x.dtype.name, epsilon, rms), [b.contiguous(x)], list(made))
    return made


@operator("InstanceNormalization", since=6, types={"T": every("InstanceNormalization", among=FLOATING)})
def instance_normalization(b: Builder, x: Tensor, scale: Tensor, bias: Tensor, *, epsilon: float = 1e-5) -> Tensor:
    _expect_channels(b, x, scale=scale, B=bias)
    return _group_norm(b, x, x.shape[1] or 1, scale, bias, epsilon)


@operator("GroupNormalization", since=21, types={"T": every("GroupNormalization", among=FLOATING)})
def group_normalization(
    b: Builder, x: Tensor, scale: Tensor, bias: Tensor, *, num_groups: int, epsilon: float = 1e-5, stash_type: int = 1
) -> Tensor:
    if x.rank < 2 or num_groups < 1 or x.shape[1] % num_groups:
        b.invalid(f"{num_groups} groups of the channels of an input of shape {list(x.shape)}")
    _expect_channels(b, x, scale=scale, bias=bias)
    return _group_norm(b, x, num_groups, scale, bias, epsilon)


@operator("MeanVarianceNormalization", since=9, types={"T": every("MeanVarianceNormalization", among=FLOATING)})
def mean_variance_normalization(b: Builder, x: Tensor, *, axes: Sequence[int] = (0, 2, 3)) -> Tensor:
    apart, variance, _ = centred(b, b.cast(x, _computed_in(x)), [b.axis(a, x.rank) for a in axes])
    return b.cast(over_deviation(b, apart, variance), x.dtype)


def over_deviation(b: Builder, apart: Tensor, variance: Tensor) -> Tensor:
    """Differences from a mean over their standard deviation and 1e-9, as ONNX's MeanVarianceNormalization."""
    return b.pointwise("div", apart, b.expr("add", b.expr("sqrt", variance), 1e-9))


@operator("LRN", types={"T": every("LRN", among=FLOATING)})
def lrn(b: Builder, x: Tensor, *, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0) -> Tensor:
    images, channels, inner = x.shape[0], x.shape[1], math.prod(x.shape[2:])
    problem = LocalResponseNormProblem(images, channels, inner, x.dtype.name, size, alpha, beta, bias)
    if x.dtype.name == "float64":
        before, ends = (size - 1) // 2, [0] * (x.rank - 2)
        wide = padded(b, b.pointwise("mul", x, x), [0, before, *ends], [0, size - 1 - before, *ends])
        windows = wide.view((*x.shape, size), (*wide.strides, wide.strides[1]))
        total = reduce_axes(b, "sum", windows, [x.rank], keepdims=False)
        return b.pointwise(
            lambda v, of, least, by, power: v * fn.power(least + by * of, power), x, total, bias, alpha / size, -beta
        )
    return b.result(problem, x, shape=x.shape)


@operator("LpNormalization", types={"T": every("LpNormalization", among=(*SINGLE, "float64"))})
def lp_normalization(b: Builder, x: Tensor, *, axis: int = -1, p: int = 2) -> Tensor:
    if p not in (1, 2):
        b.invalid(f"p is {p}, expected 1 or 2")
    wide = b.cast(x, FLOAT32) if x.dtype.name == "float16" else x  # a sum may be too large for float16
    norm = reduce_axes(b, f"l{p}", wide, [b.axis(axis, x.rank)], keepdims=True)
    return b.cast(b.pointwise(lambda v, of: where(equal(of, 0), 0, v / of), wide, norm), x.dtype)


# ---- domain com.microsoft


@operator("SimplifiedLayerNormalization", types={"x": FLOATS, "scale": FLOATS}, schema=False)
def simplified_layer_normalization(b: Builder, x: Tensor, scale: Tensor, *, a: LayerNormAttributes) -> list[Tensor]:
    wanted = wants_output(b, 1)
    out, _, inv_std = row_norm_of_two_types(b, x, scale, axis=a.axis, epsilon=a.epsilon, rms=True, inv_std=wanted)
    return outputs(b, out, inv_std)


operator("SimplifiedLayerNormalization", domain=MICROSOFT, types={"x": FLOATS, "scale": FLOATS})(
    simplified_layer_normalization
)


def with_skip(
    b: Builder, x: Tensor, skip: Tensor, bias: Tensor | None, epsilon: float, **factors: Tensor | None
) -> Tensor:
    """``x`` plus ``skip`` plus ``bias``. Raises `InvalidNode` where they, or a norm's ``factors``, do not fit."""
    if x.rank not in (2, 3):
        b.invalid(f"the input has shape {list(x.shape)}, expected 2 or 3 axes")
    b.expect("skip", skip, x.shape, *([(1, *x.shape[1:]), x.shape[1:]] if x.rank == 3 else []))
    for what, tensor in {"bias": bias, **factors}.items():
        b.expect(what, tensor, x.shape[-1:])
    if not epsilon >= 0:
        b.invalid(f"epsilon is {epsilon}, expected 0 or more")
    total = b.expr("add", x, skip)
    if bias is not None:
        total = b.expr("add", total, bias)
    return b.store(total, x.dtype, shape=x.shape)


@operator("SkipLayerNormalization", domain=MICROSOFT, types={"x skip gamma beta bias": FLOATS})
def skip_layer_normalization(
    b: Builder,
    x: Tensor,
    skip: Tensor,
    gamma: Tensor,
    beta: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    epsilon: float = 1e-12,
) -> list[Tensor]:
    total = with_skip(b, x, skip, bias, epsilon, gamma=gamma, beta=beta)
    stats = {"mean": wants_output(b, 1), "inv_std": wants_output(b, 2)}
    out, mean, inv_std = row_norm(b, total, gamma, beta, epsilon=epsilon, **stats)
    return outputs(b, out, mean, inv_std, total)


@operator("SkipSimplifiedLayerNormalization", domain=MICROSOFT, types={"x skip gamma bias": FLOATS})
def skip_simplified_layer_normalization(
    b: Builder, x: Tensor, skip: Tensor, gamma: Tensor, bias: Tensor | None = None, *, epsilon: float = 1e-12
) -> list[Tensor]:
    total = with_skip(b, x, skip, bias, epsilon, gamma=gamma)
    out, _, inv_std = row_norm(b, total, gamma, epsilon=epsilon, rms=True, inv_std=wants_output(b, 2))
    return outputs(b, out, None, inv_std, total)


@operator("BiasSoftmax", domain=MICROSOFT, types={"data bias": FLOATS})
def bias_softmax(b: Builder, data: Tensor, bias: Tensor, *, axis: int = 1, is_inner_broadcast: int) -> Tensor:
    """Rows are the axes from ``axis`` on; a row of the bias applies to adjacent rows, or to every n-th one."""
    first = b.axis(axis, data.rank)
    rows, width = math.prod(data.shape[:first]), math.prod(data.shape[first:])
    some = bias.size // max(width, 1)
    if not width or bias.size != some * width or not some or rows % some:
        b.invalid(f"a bias of shape {list(bias.shape)} for rows from axis {first} on of {list(data.shape)}")
    apart = (some, rows // some, width) if is_inner_broadcast else (rows // some, some, width)
    added = b.reshape(bias, (some, 1, width) if is_inner_broadcast else (1, some, width))
    total = b.pointwise("add", b.reshape(data, apart), added, shape=apart)
    return b.reshape(softmax_over(b, total, rows, width, 1), data.shape)


def _grouped(
    b: Builder, x: Tensor, gamma: Tensor, beta: Tensor, groups: int, epsilon: float, activation: int
) -> Tensor:
    """Channels first."""
    if activation not in (0, 1):
        b.invalid(f"activation is {activation}, expected 0 or 1 (SiLU)")
    scale, bias = (b.cast(t, x.dtype) for t in (gamma, beta))
    made = group_normalization(b, x, scale, bias, num_groups=groups, epsilon=epsilon)
    return b.pointwise(fn.swish, made) if activation else made


def _norm_of_groups(
    b: Builder, x: Tensor, gamma: Tensor, beta: Tensor, groups: int, epsilon: float, activation: int, last: int
) -> Tensor:
    if x.rank != 4:
        b.invalid(f"the input has shape {list(x.shape)}, expected 4 axes")
    channels = x.shape[3 if last else 1]
    for what, tensor in {"gamma": gamma, "beta": beta}.items():
        b.expect(what, tensor, (channels,))
    first = x.transpose((0, 3, 1, 2)) if last else x
    made = _grouped(b, first, gamma, beta, groups, epsilon, activation)
    return made.transpose((0, 2, 3, 1)) if last else made


@operator("GroupNorm", domain=MICROSOFT, types={"x": FLOATS, "gamma beta": FLOATS})
def group_norm(
    b: Builder,
    x: Tensor,
    gamma: Tensor,
    beta: Tensor,
    *,
    activation: int,
    channels_last: int = 1,
    epsilon: float = 1e-5,
    groups: int,
) -> Tensor:
    return _norm_of_groups(b, x, gamma, beta, groups, epsilon, activation, channels_last)


@operator("SkipGroupNorm", domain=MICROSOFT, types={"x skip bias": FLOATS, "gamma beta": FLOATS})
def skip_group_norm(
    b: Builder,
    x: Tensor,
    gamma: Tensor,
    beta: Tensor,
    skip: Tensor,
    bias: Tensor | None = None,
    *,
    activation: int,
    channels_last: int = 1,
    epsilon: float = 1e-5,
    groups: int,
) -> list[Tensor]:
    if x.rank != 4:
        b.invalid(f"the input has shape {list(x.shape)}, expected 4 axes")
    channels = x.shape[3 if channels_last else 1]
    spread = (1, 1, channels) if channels_last else (channels, 1, 1)
    b.expect("skip", skip, x.shape, (x.shape[0], channels), (x.shape[0], *spread))
    b.expect("bias", bias, (channels,))
    total = b.expr("add", x, b.reshape(skip, (x.shape[0], *spread)) if skip.shape != x.shape else skip)
    if bias is not None:
        total = b.expr("add", total, b.reshape(bias, spread))
    summed = b.store(total, x.dtype, shape=x.shape)
    return outputs(b, _norm_of_groups(b, summed, gamma, beta, groups, epsilon, activation, channels_last), summed)


@operator("BranchwiseRMSNorm", domain=MICROSOFT, types={"x": SINGLE, "scale": SINGLE})
def branchwise_rms_norm(
    b: Builder, x: Tensor, scale: Tensor | None = None, *, epsilon: float = 1e-5, num_branches: int = 0
) -> Tensor:
    if x.rank < 1 + (not num_branches) or num_branches < 0 or (num_branches and x.shape[-1] % num_branches):
        b.invalid(f"{num_branches} branches of an input of shape {list(x.shape)}")
    grouped = (*x.shape[:-1], num_branches, x.shape[-1] // num_branches) if num_branches else x.shape
    branches, width = grouped[-2:]
    b.expect("scale", scale, (branches * width,), (branches, width), (width,))
    rows = b.reshape(x, grouped)
    wide = b.cast(rows, FLOAT32)
    made, _, _ = row_norm(b, wide, b.full((width,), 1, FLOAT32), epsilon=epsilon, rms=True)
    value = b.expr("same", made)
    if scale is not None:
        factor = b.reshape(scale, (branches, width)) if scale.size != width else b.reshape(scale, (width,))
        value = b.expr("mul", value, factor)
    return b.reshape(b.store(value, x.dtype, shape=grouped), x.shape)


@operator("GatedRMSNorm", domain=MICROSOFT, types={"x gate": SINGLE, "scale": SINGLE})
def gated_rms_norm(
    b: Builder, x: Tensor, scale: Tensor, gate: Tensor, *, activation: str = "silu", epsilon: float = 1e-5
) -> Tensor:
    gates = {"silu": fn.swish, "swish": fn.swish, "sigmoid": fn.sigmoid}
    if activation not in gates:
        b.invalid(f"activation is {activation!r}, expected one of {', '.join(gates)}")
    width = scale.size
    if scale.rank != 1 or not width or not x.rank or x.shape[-1] % width:
        b.invalid(f"a scale of shape {list(scale.shape)} for an input of shape {list(x.shape)}")
    b.expect("gate", gate, x.shape)
    rows = b.cast(b.reshape(x, (x.size // width, width)), FLOAT32)
    made, _, _ = row_norm(b, rows, b.cast(scale, FLOAT32), epsilon=epsilon, rms=True)
    value, opened = b.reads(made, b.reshape(gate, rows.shape))
    return b.reshape(b.store(value * gates[activation](opened), x.dtype, shape=rows.shape), x.shape)
