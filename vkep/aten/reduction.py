"""Reductions, softmax, and batch, group, layer and RMS norm."""

from __future__ import annotations

from collections.abc import Sequence

from vkep.aten.builder import FLOAT, INT64, GraphBuilder, Size, Val
from vkep.aten.registry import aten


def reduced(b: GraphBuilder, op_type: str, x: Val, axes: Sequence[int] | None, keepdim: bool) -> Val:
    """A reduction over some axes; an empty list means all."""
    wanted = sorted({b.axis(a, x.rank) for a in axes}) if axes else list(range(x.rank))
    if not x.rank:
        return x
    dims: list[int | None] = [1 if k in wanted else d for k, d in enumerate(x.dims)]
    if not keepdim:
        dims = [d for k, d in enumerate(dims) if k not in wanted]
    return b.op(op_type, x, b.ints(wanted), keepdims=int(keepdim), dims=dims)


@aten("aten.mean.dim")
def mean(b: GraphBuilder, x: Val, dim: Sequence[int] | None, keepdim: bool = False, dtype: object = None) -> Val:
    return reduced(b, "ReduceMean", b.cast(x, b.results[0].elem), dim, keepdim)


@aten("aten.sum.dim_IntList")
def sum_(b: GraphBuilder, x: Val, dim: Sequence[int] | None, keepdim: bool = False, dtype: object = None) -> Val:
    return reduced(b, "ReduceSum", b.cast(x, b.results[0].elem), dim, keepdim)


@aten("aten.amax.default")
def amax(b: GraphBuilder, x: Val, dim: Sequence[int] = (), keepdim: bool = False) -> Val:
    return reduced(b, "ReduceMax", x, dim, keepdim)


@aten("aten.amin.default")
def amin(b: GraphBuilder, x: Val, dim: Sequence[int] = (), keepdim: bool = False) -> Val:
    return reduced(b, "ReduceMin", x, dim, keepdim)


def _arg(name: str, op_type: str) -> None:
    @aten(f"aten.{name}.default")
    def function(b: GraphBuilder, x: Val, dim: int | None = None, keepdim: bool = False) -> Val:
        result = b.results[0]
        if dim is None:  # the position in the flattened tensor
            flat = b.op(op_type, b.reshape(x, [-1]), axis=0, keepdims=0, elem=INT64, dims=())
            return b.reshape(flat, [1] * result.rank)
        axis = b.axis(dim, x.rank)
        dims = [1 if k == axis else d for k, d in enumerate(x.dims) if keepdim or k != axis]
        return b.op(op_type, x, axis=axis, keepdims=int(keepdim), elem=INT64, dims=dims)


_arg("argmax", "ArgMax")
_arg("argmin", "ArgMin")


@aten("aten._softmax.default")
def softmax(b: GraphBuilder, x: Val, dim: int, half_to_float: bool = False) -> Val:
    return _along(b, "Softmax", x, dim, half_to_float)


@aten("aten._log_softmax.default")
def log_softmax(b: GraphBuilder, x: Val, dim: int, half_to_float: bool = False) -> Val:
    return _along(b, "LogSoftmax", x, dim, half_to_float)


def _along(b: GraphBuilder, op_type: str, x: Val, dim: int, half_to_float: bool) -> Val:
    x = b.cast(x, FLOAT) if half_to_float else x
    if not x.rank:
        return b.reshape(b.op(op_type, b.reshape(x, [1]), axis=0), [])
    return b.op(op_type, x, axis=b.axis(dim, x.rank))


def _affine(b: GraphBuilder, value: Val | None, count: int, default: float, elem: int) -> Val:
    """A scale or shift that may be missing: then ``default``, ``count`` times."""
    return b.filled([count], default, elem) if value is None else b.cast(value, elem)


@aten("aten._native_batch_norm_legit_no_training.default")
def batch_norm(
    b: GraphBuilder,
    x: Val,
    weight: Val | None,
    bias: Val | None,
    running_mean: Val,
    running_var: Val,
    momentum: float,
    eps: float,
) -> list[Val]:
    channels = running_mean.shape[0]
    scale, shift = _affine(b, weight, channels, 1, x.elem), _affine(b, bias, channels, 0, x.elem)
    mean, var = b.cast(running_mean, x.elem), b.cast(running_var, x.elem)
    out = b.op("BatchNormalization", x, scale, shift, mean, var, epsilon=eps, dims=x.dims)
    return [out, *(b.filled(r.shape, 0, r.elem) for r in b.results[1:])]  # inference saves no statistics


@aten("aten.native_layer_norm.default")
def layer_norm(
    b: GraphBuilder, x: Val, normalized_shape: Sequence[Size], weight: Val | None, bias: Val | None, eps: float
) -> list[Val]:
    count = len(normalized_shape)
    if weight is None:
        sizes = [s for s in normalized_shape if isinstance(s, int)]
        if len(sizes) != count:
            b.decline("a normalized shape that is known only while running, without a weight")
        weight = b.filled(sizes, 1, x.elem)
    parts = b.ops(3, "LayerNormalization", x, b.cast(weight, x.elem), bias and b.cast(bias, x.elem), axis=-count,
                  epsilon=eps, dims=x.dims)  # fmt: skip
    lead = [*x.dims[: x.rank - count], *([1] * count)]
    return [parts[0], *(b.retyped(p, FLOAT, lead) for p in parts[1:])]


@aten("aten.native_group_norm.default")
def group_norm(
    b: GraphBuilder, x: Val, weight: Val | None, bias: Val | None, n: Size, c: Size, hxw: Size, group: int, eps: float
) -> list[Val]:
    channels = b.fixed(x, 1)
    scale, shift = _affine(b, weight, channels, 1, x.elem), _affine(b, bias, channels, 0, x.elem)
    out = b.op("GroupNormalization", x, scale, shift, num_groups=group, epsilon=eps, dims=x.dims)
    rows = b.cast(b.reshape(x, [b.size(x, 0), group, -1]), FLOAT)
    mean = reduced(b, "ReduceMean", rows, [2], True)
    centred = b.op("Sub", rows, mean)
    var = reduced(b, "ReduceMean", b.op("Mul", centred, centred), [2], True)
    rstd = b.op("Reciprocal", b.op("Sqrt", b.op("Add", var, b.number(eps, FLOAT))))
    return [out, b.squeeze(mean, [2]), b.squeeze(rstd, [2])]


@aten("et_vk.rms_norm.default")
def rms_norm(b: GraphBuilder, x: Val, weight: Val, eps: float) -> Val:
    return b.op("RMSNormalization", x, b.cast(weight, x.elem), axis=-1, epsilon=eps, dims=x.dims)
