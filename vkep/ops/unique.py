"""Unique: sort, mark where each group of equal values begins, and take that many (see `vkep.placement.data_dependent`).

Along an axis, whole slices are compared by their ranks among the slices: first a rank for each of a slice's elements,
then pairs of ranks become one key with its own rank, until one is left.
"""

from __future__ import annotations

import numpy as np

from vkep.dtypes import BOOL, INT32, INT64, UINT8
from vkep.ir import algebra as fn
from vkep.ir.builder import Builder
from vkep.ir.expr import Expr
from vkep.ir.tensor import Tensor
from vkep.kernels.cumsum import ScanProblem
from vkep.ops.allowed import FLOATING, SIGNED, UNSIGNED
from vkep.ops.gather import gathered, scatter_elements_
from vkep.ops.reduction import scan, top_k_1, top_k_of
from vkep.ops.registry import SIZED, operator
from vkep.ops.selection import positions_of
from vkep.sizes import whole


def _differ(x: Expr, y: Expr) -> Expr:
    different = fn.not_equal(x, y)
    return different & ~(fn.isnan(x) & fn.isnan(y)) if x.ctype in ("float", "double") else different


@operator("UniqueFill", domain=SIZED, types={})
def unique_fill(b: Builder, x: Tensor, *, axis: int | None = None, sorted: int = 1) -> list[Tensor]:
    """The first position of each distinct value (flat, in the order of the result), and their number."""
    if x.dtype.kind == "bits":
        b.decline(f"{x.dtype} has no sort key")
    if axis is not None:
        x = _slice_ranks(b, x, axis)
    if not x.size:
        return [b.constant(np.zeros(0, np.int64)), b.constant(np.zeros(1, np.int64))]
    if x.dtype.kind == "bool":
        x = b.cast(x, UINT8)
    # descending, equal ones by lower index first, so that a group begins at its value's first occurrence
    values, places = top_k_1(b, b.reshape(x, [x.size]), k=x.size)
    begins = b.empty(BOOL, [x.size])
    b.copy(b.full([1], True, BOOL), out=begins.slice(0, 0, 1))
    if x.size > 1:
        now, before = (values.slice(0, k, x.size - 1) for k in (1, 0))
        b.pointwise(_differ, now, before, out=begins.slice(0, 1, x.size - 1))
    if sorted:
        found, count = positions_of(b, b.copy(begins.slice(0, x.size - 1, x.size, -1)))
        back = b.pointwise(lambda at, last: last - at, found, x.size - 1)
        return [gathered(b, places, back), count]
    firsts = scatter_elements_(b, b.full([x.size], False, BOOL), places, begins, 0, "none")
    return positions_of(b, firsts)


def _slice_ranks(b: Builder, x: Tensor, axis: int) -> Tensor:
    """int32 [n]: the index of each slice along ``axis`` among the distinct slices, in lexicographic order."""
    axis = b.axis(axis, x.rank)
    count = x.shape[axis]
    others = [d for d in range(x.rank) if d != axis]
    if count >= 1 << 31 or (count and not x.size):
        b.decline(f"{count} slices of shape {[x.shape[d] for d in others]}")
    if x.dtype.kind == "bool":
        x = b.cast(x, UINT8)
    if not count:
        return b.constant(np.zeros(0, np.int32))
    keys = b.reshape(x.transpose([*others, axis]), (x.size // count, count))  # a row for each element of a slice
    ranks = _row_ranks(b, keys)
    while ranks.shape[0] > 1:
        rows = ranks.shape[0]
        pairs = rows // 2
        wide = b.cast(ranks, INT64) if count > 46340 else ranks  # count**2 in 31 bits
        firsts, seconds = (wide.slice(0, k, pairs, 2) for k in (0, 1))
        joined = _row_ranks(b, b.pointwise(lambda x, y, n: x * n + y, firsts, seconds, count))
        if rows % 2:
            odd = b.empty(INT32, (pairs + 1, count))
            b.copy(joined, out=odd.slice(0, 0, pairs))
            b.copy(ranks.slice(0, rows - 1, 1), out=odd.slice(0, pairs, 1))
            joined = odd
        ranks = joined
    return b.reshape(ranks, (count,))


def _row_ranks(b: Builder, keys: Tensor) -> Tensor:
    """int32 of the same shape: the number of distinct smaller values in each element's row."""
    rows, count = keys.shape
    values, places = top_k_of(b, keys, count, 1, largest=0)
    grows = b.empty(INT32, keys.shape)
    b.copy(b.full([rows, 1], 0, INT32), out=grows.slice(1, 0, 1))
    if count > 1:
        now, before = (values.slice(1, k, count - 1) for k in (1, 0))
        b.pointwise(lambda x, y: fn.cast(_differ(x, y), "int"), now, before, out=grows.slice(1, 1, count - 1))
    rank = scan(b, grows, ScanProblem(rows, count, 1, "int32"))
    return scatter_elements_(b, b.full(keys.shape, 0, INT32), places, rank, 1, "none")


@operator("UniqueTake", domain=SIZED, types={})
def unique_take(
    b: Builder, firsts: Tensor, count: Tensor, x: Tensor, *, axis: int | None = None, sorted: int = 1
) -> list[Tensor]:
    many = whole(b.value(count, "the number of distinct values").reshape(-1)[0])
    flat = b.reshape(x, [x.size]) if axis is None else x
    indices = firsts.slice(0, 0, many)
    if not many:
        empty = b.constant(np.zeros(0, np.int64))
        return [flat, empty, empty, empty]
    made = gathered(b, flat, indices, axis or 0)
    wanted = list(b.node.outputs) if b.node is not None else []
    if not any(wanted[2:]):
        return [made, indices]
    return [made, indices, *_counted(b, flat if axis is None else _slice_ranks(b, x, axis), indices)]


def _counted(b: Builder, keys: Tensor, firsts: Tensor) -> list[Tensor]:
    """For each key its index among the distinct values, which first occur at ``firsts``, and the count of each value
    (int64)."""
    many = firsts.size
    if keys.dtype.kind == "bool":
        keys = b.cast(keys, UINT8)
    ranks = b.reshape(_row_ranks(b, b.reshape(keys, (1, keys.size))), (keys.size,))
    # the result's order may be another than that of the ranks
    of_rank = scatter_elements_(
        b, b.full([many], 0, INT64), gathered(b, ranks, firsts), b.constant(np.arange(many)), 0, "none"
    )
    inverse = gathered(b, of_rank, ranks)
    counts = scatter_elements_(b, b.full([many], 0, INT32), inverse, b.full([keys.size], 1, INT32), 0, "add")
    return [inverse, b.cast(counts, INT64)]


# ONNX Runtime's operator of that name: in the order of the input, and without the first positions


@operator("com.microsoft.UniqueFill", domain=SIZED, types={"x": (*FLOATING, *SIGNED, *UNSIGNED, "bool")})
def microsoft_unique_fill(b: Builder, x: Tensor) -> list[Tensor]:
    if x.rank != 1:
        b.invalid(f"the input has shape {list(x.shape)}, expected one axis")
    return unique_fill(b, x, sorted=0)


@operator("com.microsoft.UniqueTake", domain=SIZED, types={})
def microsoft_unique_take(b: Builder, firsts: Tensor, count: Tensor, x: Tensor) -> list[Tensor]:
    many = whole(b.value(count, "the number of distinct values").reshape(-1)[0])
    if not many:
        empty = b.constant(np.zeros(0, np.int64))
        return [x, empty, empty]
    indices = firsts.slice(0, 0, many)
    return [gathered(b, x, indices), *_counted(b, x, indices)]
