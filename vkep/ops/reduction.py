"""Reductions over axes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from vkep.dtypes import DTYPES
from vkep.kernels.argreduce import argreduce
from vkep.kernels.cumsum import cumsum
from vkep.kernels.reduce import reduce
from vkep.kernels.topk import topk
from vkep.lowering.builder import Builder
from vkep.lowering.tensor import Tensor
from vkep.ops.registry import FLOATS, INDICES, NUMERIC, operator


def middle(b: Builder, x: Tensor, axes: Sequence[int]) -> tuple[Tensor, int, int, int]:
    """``x`` laid out as [outer, axis, inner] with ``axes`` in the middle: the dense tensor and the three sizes."""
    axes = sorted(axes)
    if axes and axes != list(range(axes[0], axes[-1] + 1)):  # not neighbours: bring them to the end
        kept = [i for i in range(x.rank) if i not in axes]
        x = x.transpose([*kept, *axes])
        axes = list(range(len(kept), x.rank))
    first, last = (axes[0], axes[-1]) if axes else (x.rank, x.rank - 1)
    outer, inner = math.prod(x.shape[:first]), math.prod(x.shape[last + 1 :])
    return b.contiguous(x), outer, math.prod(x.shape[first : last + 1]), inner


def reduce_axes(b: Builder, op: str, x: Tensor, axes: Sequence[int], keepdims: bool) -> Tensor:
    """Reduce ``axes`` (counted from the front)."""
    shape = [1 if i in axes else d for i, d in enumerate(x.shape)]
    dense, outer, axis, inner = middle(b, x, axes)
    out = b.empty(x.dtype, shape)
    b.kernel(
        [dense],
        [out],
        lambda t, i, o, _: reduce(op, outer, axis, inner, x.dtype.name, t.caps, i[0], o[0], t),
        flops=x.size,
    )
    return out if keepdims else b.reshape(out, [d for i, d in enumerate(x.shape) if i not in axes])


_REDUCTIONS = {
    "ReduceSum": ("sum", NUMERIC),
    "ReduceMean": ("mean", FLOATS),
    "ReduceMax": ("max", NUMERIC),
    "ReduceMin": ("min", NUMERIC),
    "ReduceProd": ("prod", (*FLOATS, "int32", "int64")),
    "ReduceSumSquare": ("sumsq", (*FLOATS, "int32", "int64")),
    "ReduceL1": ("l1", (*FLOATS, "int32", "int64")),
    "ReduceL2": ("l2", FLOATS),
    "ReduceLogSum": ("logsum", FLOATS),
    "ReduceLogSumExp": ("logsumexp", FLOATS),
}


def _declare(op_type: str, op: str, types: tuple[str, ...]) -> None:
    first_with_input = 13 if op_type == "ReduceSum" else 18
    # schemas before 13 know no 8-bit types; a type that a version lacks never reaches it
    allowed = tuple(t for t in types if not (op == "sum" and t in ("int8", "uint8")))

    def with_attribute(b: Builder, data: Tensor, *, axes: Sequence[int] | None = None, keepdims: int = 1) -> Tensor:
        chosen = range(data.rank) if axes is None else [b.axis(a, data.rank) for a in axes]
        return reduce_axes(b, op, data, list(chosen), bool(keepdims))

    def with_input(
        b: Builder, data: Tensor, axes: Tensor | None = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0
    ) -> Tensor:
        chosen = b.ints(axes, "axes") or []
        if not chosen and noop_with_empty_axes:
            return data
        return reduce_axes(
            b, op, data, [b.axis(a, data.rank) for a in chosen] or list(range(data.rank)), bool(keepdims)
        )

    operator(op_type, until=first_with_input - 1, types={"T": allowed})(with_attribute)
    operator(op_type, since=first_with_input, types={"T": allowed})(with_input)


for _op_type, (_op, _types) in _REDUCTIONS.items():
    _declare(_op_type, _op, _types)


def _arg(b: Builder, op: str, x: Tensor, axis: int, keepdims: int, select_last_index: int) -> Tensor:
    axis = b.axis(axis, x.rank)
    dense, outer, size, inner = middle(b, x, [axis])
    out = b.empty(DTYPES["int64"], [1 if i == axis else d for i, d in enumerate(x.shape)])
    b.kernel(
        [dense],
        [out],
        lambda t, i, o, _: argreduce(
            op, outer, size, inner, x.dtype.name, t.caps, i[0], o[0], select_last_index=bool(select_last_index)
        ),
        flops=x.size,
    )
    return out if keepdims else b.reshape(out, [d for i, d in enumerate(x.shape) if i != axis])


@operator("ArgMax", types={"T": NUMERIC})
def arg_max(b: Builder, data: Tensor, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Tensor:
    return _arg(b, "max", data, axis, keepdims, select_last_index)


@operator("ArgMin", types={"T": NUMERIC})
def arg_min(b: Builder, data: Tensor, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Tensor:
    return _arg(b, "min", data, axis, keepdims, select_last_index)


@operator("CumSum", types={"T": (*FLOATS, "int32", "int64"), "T2": INDICES})
def cum_sum(b: Builder, x: Tensor, axis: Tensor, *, exclusive: int = 0, reverse: int = 0) -> Tensor:
    where = b.axis(int(b.value(axis, "axis").reshape(-1)[0]), x.rank)
    dense, outer, size, inner = middle(b, x, [where])
    out = b.empty(x.dtype, x.shape)
    b.kernel(
        [dense],
        [out],
        lambda t, i, o, _: cumsum(
            outer, size, inner, x.dtype.name, t.caps, i[0], o[0], exclusive=bool(exclusive), reverse=bool(reverse)
        ),
        flops=x.size,
    )
    return out


@operator("TopK", since=11, types={"T": NUMERIC, "I": ("int64",)})
def top_k(b: Builder, x: Tensor, k: Tensor, *, axis: int = -1, largest: int = 1, sorted: int = 1) -> list[Tensor]:
    axis = b.axis(axis, x.rank)
    count = int(b.value(k, "k").reshape(-1)[0])
    dense, outer, size, inner = middle(b, x, [axis])
    shape = [count if i == axis else d for i, d in enumerate(x.shape)]
    values, indices = b.empty(x.dtype, shape), b.empty(DTYPES["int64"], shape)
    b.kernel(
        [dense],
        [values, indices],
        lambda t, i, o, _: topk(
            outer, size, inner, count, x.dtype.name, t.caps, i[0], o[0], o[1], largest=bool(largest)
        ),
        flops=x.size * max(1, int(np.log2(max(count, 2)))),
    )
    return [values, indices]
