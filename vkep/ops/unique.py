"""Unique without an axis: sort, mark where a run begins, and take as many as there are (see `vkep.lowering.sized`)."""

from __future__ import annotations

import numpy as np

from vkep.dtypes import DTYPES
from vkep.lowering.builder import Builder
from vkep.lowering.expr import Expr
from vkep.lowering.sized import SIZED
from vkep.lowering.tensor import Tensor
from vkep.ops.gather import gather_, scatter_elements_
from vkep.ops.reduction import arg_max, reduce_axes, top_k_1
from vkep.ops.registry import operator
from vkep.ops.selection import positions_of

#: elements of the table that inverse_indices and counts are read from
MOST_COMPARED = 1 << 26
_BOOL, _INT64 = DTYPES["bool"], DTYPES["int64"]


def _same(b: Builder, x: Tensor, y: Tensor) -> Expr:
    both_nan = " || (isnan({0}) && isnan({1}))" if x.dtype.kind == "float" else ""
    return b.expr(f"({{0}} == {{1}}{both_nan})", x, y, ctype="bool")


@operator("UniqueFill", domain=SIZED, types={})
def unique_fill(b: Builder, x: Tensor, *, axis: int | None = None, sorted: int = 1) -> list[Tensor]:
    """Where each distinct value first occurs (flat positions, in the order of the result), and how many there are."""
    if axis is not None:
        b.decline("unique slices along an axis, which need a sort of whole slices")
    if x.dtype.name == "float64" or x.dtype.kind == "bits":
        b.decline(f"{x.dtype} has no sort key")
    if not x.size:
        return [b.constant(np.zeros(0, np.int64)), b.constant(np.zeros(1, np.int64))]
    if x.dtype.kind == "bool":
        x = b.cast(x, DTYPES["uint8"])
    # descending, equal ones by lower index first, so that a run begins at its value's first occurrence
    values, places = top_k_1(b, b.reshape(x, [x.size]), k=x.size)
    begins = b.empty(_BOOL, [x.size])
    b.copy(b.full([1], True, _BOOL), out=begins.slice(0, 0, 1))
    if x.size > 1:
        again = _same(b, values.slice(0, 1, x.size - 1), values.slice(0, 0, x.size - 1))
        b.store(b.expr("(!{0})", again), _BOOL, out=begins.slice(0, 1, x.size - 1))
    if sorted:
        found, count = positions_of(b, b.copy(begins.slice(0, x.size - 1, x.size, -1)))
        back = b.store(b.expr("({1} - {0})", found, x.size - 1), _INT64, shape=[x.size])
        return [gather_(b, places, back), count]
    firsts = scatter_elements_(b, b.full([x.size], False, _BOOL), places, begins, 0, "none")
    return positions_of(b, firsts)


@operator("UniqueTake", domain=SIZED, types={})
def unique_take(
    b: Builder, firsts: Tensor, count: Tensor, x: Tensor, *, axis: int | None = None, sorted: int = 1
) -> list[Tensor]:
    many = int(b.value(count, "the number of distinct values").reshape(-1)[0])
    flat = b.reshape(x, [x.size])
    indices = firsts.slice(0, 0, many)
    if not many:
        empty = b.constant(np.zeros(0, np.int64))
        return [flat, empty, empty, empty]
    made = gather_(b, flat, indices)
    wanted = list(b.node.outputs) if b.node is not None else []
    if not any(wanted[2:]):
        return [made, indices]
    if x.size * many > MOST_COMPARED:
        b.decline(f"inverse_indices or counts of {x.size} elements with {many} distinct ones")
    table = b.store(
        b.expr("({0} ? 1 : 0)", _same(b, b.reshape(flat, [x.size, 1]), made), ctype="int"),
        DTYPES["int32"],
        shape=[x.size, many],
    )
    counts = b.cast(reduce_axes(b, "sum", table, [0], keepdims=False), _INT64)
    return [made, indices, arg_max(b, table, axis=1, keepdims=0), counts]
