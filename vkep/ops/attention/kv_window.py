"""Caches of keys and values that hold a window of the sequence and drop what is behind it (GroupQueryAttention's
``sliding_window_cache``).

Semantics: ONNX Runtime, docs/ContribOperators.md, "Windowed KV Cache".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vkep.dtypes import DTYPES
from vkep.ir import algebra as fn
from vkep.ir.algebra import where
from vkep.ir.builder import LARGEST, Builder
from vkep.ir.expr import Expr
from vkep.ir.tensor import Tensor
from vkep.kernels.gather import GatherProblem
from vkep.ops.gather import elements_at
from vkep.ops.generators import positions

_INT32, _INT64 = DTYPES["int32"], DTYPES["int64"]


@dataclass(frozen=True)
class Window:
    """A step of a windowed cache: its keys and the new ones are joined in a buffer of ``rows`` rows, and the last rows in use
    remain.

    ``first`` (int32 [batch]) is the row of each sequence's first new token, ``places`` (int64 [batch, length]) are the positions
    of the new tokens in the sequence, ``begin`` (int32 [batch]) that of the first row, and ``shift`` (int32 [batch]) is the first
    row that remains.
    """

    capacity: int
    rows: int
    first: Tensor
    places: Tensor
    begin: Tensor
    shift: Tensor

    def remaining(self, b: Builder, joined: Tensor) -> Tensor:
        """The next cache [batch, kv heads, capacity, size] of the joined one."""
        batch, heads, rows, size = joined.shape
        own = b.constant(np.arange(batch * heads, dtype=np.int32).reshape(batch, heads, 1))
        place = positions(b, self.capacity)
        shift = b.reshape(self.shift, (batch, 1, 1))
        row, step, by = b.reads(own, place, shift)
        at = b.store(row * rows + fn.minimum(step + by, rows - 1), _INT32, shape=(batch, heads, self.capacity))
        out = b.empty(joined.dtype, (batch, heads, self.capacity, size))
        count = batch * heads * self.capacity
        problem = GatherProblem(1, batch * heads * rows, size, count, joined.dtype.name, "int32")
        b.compute(problem, [b.contiguous(joined), at], [out])
        return out

    def columns(self, b: Builder, bias: Tensor, batch: int) -> Tensor:
        """A bias [batch or 1, heads or 1, length, positions] by the rows of the joined cache in place of positions."""
        if bias.rank != 4:
            b.invalid(f"attention_bias has shape {list(bias.shape)}, expected 4 axes")
        most = bias.shape[3] - 1
        place = b.reshape(positions(b, self.rows), (1, 1, 1, self.rows))
        column = fn.minimum(b.expr("add", place, b.reshape(self.begin, (batch, 1, 1, 1))), most)
        shape = (batch, *bias.shape[1:3], self.rows)
        wide = b.broadcast("attention_bias", bias, (batch, *bias.shape[1:]))
        return elements_at(b, wide, b.store(column, _INT32, shape=shape), 3, "a position of attention_bias")


def window(b: Builder, lengths: Tensor, counts: Tensor | None, length: int, capacity: int, size: int) -> Window:
    """The step of ``length`` new tokens, of which ``counts`` (int32 [batch]) are no padding (None: as many as the sequence has),
    for sequences of ``lengths`` + 1 tokens with them, a cache of ``capacity`` rows and a window of ``size`` keys.
    """
    if not 0 < size <= capacity:
        b.invalid(f"local_window_size is {size}, expected 1 to the cache's {capacity} rows")
    batch = lengths.size
    b.expect_range("seqlens_k", lengths, 0, LARGEST - 1 - capacity)
    after = b.expr("same", lengths) + 1
    if counts is None:
        before = fn.maximum(after - length, 0)
    else:
        b.expect_range("query_seqlens", counts, 0, length)
        earlier = b.expr("sub", after, b.reshape(counts, (batch,)))
        before = b.expr("same", b.require(earlier, lambda v: v >= 0, "a sequence is shorter than its query_seqlens"))
    first = b.store(_held(before, capacity, size), _INT32, shape=(batch,))
    begin = b.expr("sub", before, first)
    shift = b.store(after - _held(after, capacity, size) - begin, _INT32, shape=(batch,))
    seen = b.reshape(b.store(before, _INT32, shape=(batch,)), (batch, 1))
    steps = positions(b, length).view((1, length), (0, 1))
    places = b.cast(b.pointwise("add", steps, seen, dtype=_INT32, shape=(batch, length)), _INT64)
    return Window(capacity, capacity + length, first, places, b.store(begin, _INT32, shape=(batch,)), shift)


def _held(tokens: Expr, capacity: int, size: int) -> Expr:
    """How many of so many tokens the cache holds: it drops as many at once as it has rows beyond the window, and one."""
    at_once = capacity - size + 1
    dropped = (tokens - capacity + (at_once - 1)) / at_once * at_once
    return where(tokens <= capacity, tokens, tokens - dropped)
