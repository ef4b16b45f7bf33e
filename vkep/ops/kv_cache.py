"""The cache of keys and values that GroupQueryAttention returns, gathered from its past and its new rows."""

from __future__ import annotations

import numpy as np

from vkep.dtypes import DTYPES
from vkep.ir.builder import Builder, Operand
from vkep.ir.expr import Expr
from vkep.ir.tensor import Tensor
from vkep.kernels.gather import GatherProblem
from vkep.ops.generators import positions
from vkep.ops.sdpa import expect_joins
from vkep.sizes import largest, serves_others

_INT32 = DTYPES["int32"]


def _joined_rows(b: Builder, batch: int, heads: int, each: int) -> Operand:
    """The first row of each sequence and head, of ``each`` rows."""
    if serves_others(batch) or serves_others(each):
        return b.expr("({0} * {1})", b.reshape(positions(b, batch * heads), (batch, heads, 1, 1)), each, ctype="int")
    return b.constant((np.arange(batch * heads, dtype=np.int32) * each).reshape(batch, heads, 1, 1))


def _rows_before(b: Builder, room: int, old: int) -> Operand:
    """For each position in the room the row of the past, at most its last."""
    shape, strides = (1, 1, room, 1), (0, 0, 1, 0)
    if serves_others(room) or serves_others(old):
        return b.expr("min({0}, {1})", positions(b, room).view(shape, strides), largest(old - 1, 0), ctype="int")
    return b.constant(np.minimum(np.arange(room, dtype=np.int32), max(old - 1, 0))).view(shape, strides)


def cached(b: Builder, past: Tensor | None, new: Tensor, first: Tensor, room: int) -> Tensor:
    """The KV cache [batch, heads, room, size]: ``past`` before each sequence's ``first`` position, ``new`` from there on, then
    zeros, since what the past's buffer holds beyond a sequence's end may be NaN.
    """
    batch, heads, length, size = new.shape
    old = past.shape[2] if past is not None else 0
    if old == 0 and room == length:
        return new
    if past is not None:
        expect_joins(b, past, new)
    places = positions(b, room).view((1, 1, room, 1), (0, 0, 1, 0))

    def step_in(start: int, count: int) -> Expr:
        """Index into ``new`` for each position: negative before the new rows, at least ``length`` after them."""
        return b.expr("sub", places.slice(2, start, count), b.reshape(first, (batch, 1, 1, 1)))

    if past is not None and old and length == 1 and room <= old + 1:
        out = b.empty(new.dtype, (batch, heads, room, size))
        ctype, zero = new.dtype.glsl_compute, b.scalar_like(0, new)
        kept = b.expr("({0} < 0 ? {1} : {2})", step_in(0, old), past, zero, ctype=ctype)
        value = b.expr("({0} == 0 ? {1} : {2})", step_in(0, old), new, kept, ctype=ctype)
        b.store(value, new.dtype, out=out.slice(2, 0, old))
        if room > old:
            last = b.expr("({0} == 0 ? {1} : {2})", step_in(old, 1), new, zero, ctype=ctype)
            b.store(last, new.dtype, out=out.slice(2, old, 1))
        return out
    # Gather each row of the cache from past, new and a row of zeros, joined for each sequence and head.
    both = b.empty(new.dtype, (batch, heads, old + length + 1, size))
    if past is not None and old:
        b.copy(past, out=both.slice(2, 0, old))
    b.copy(new, out=both.slice(2, old, length))
    b.copy(b.full((batch, heads, 1, size), 0, new.dtype), out=both.slice(2, old + length, 1))
    row, before = _joined_rows(b, batch, heads, both.shape[2]), _rows_before(b, room, old)
    source = b.expr("({0} < 0 ? {1} : {3} + min({0}, {2}))", step_in(0, room), before, length, old, ctype="int")
    index = b.store(b.expr("add", source, row), _INT32, shape=(batch, heads, room, 1))
    out = b.empty(new.dtype, (batch, heads, room, size))
    rows_in = batch * heads * both.shape[2]
    b.compute(GatherProblem(1, rows_in, size, index.size, new.dtype.name, "int32"), [both, index], [out])
    return out
