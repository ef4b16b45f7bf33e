"""Reductions and softmax."""

from __future__ import annotations

from collections.abc import Sequence

from vkep.aten.builder import FLOAT, INT64, GraphBuilder, Val
from vkep.aten.registry import aten


def reduced(b: GraphBuilder, op_type: str, x: Val, axes: Sequence[int] | None, keepdim: bool) -> Val:
    """A reduction over some axes; none given means all."""
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
