"""The caches of keys and values that decoders return: the past rows followed by new ones (`vkep.kernels.attention.cache_update`);
as codes; and in a window that drops what is behind it (GroupQueryAttention's ``sliding_window_cache``).

Semantics of windows: ONNX Runtime, docs/ContribOperators.md, "Windowed KV Cache".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from vkep.dtypes import DTYPES, FLOAT32, INT32, INT64, DType
from vkep.ir import algebra as fn
from vkep.ir import expr as ex
from vkep.ir.algebra import where
from vkep.ir.builder import LARGEST, Builder
from vkep.ir.expr import Expr
from vkep.ir.tensor import Tensor
from vkep.kernels.attention.cache_update import CacheUpdateProblem, Strides
from vkep.kernels.attention.kv_codes import CODES
from vkep.kernels.indexing.gather import GatherProblem
from vkep.ops.gather import elements_at, outside
from vkep.ops.generators import positions
from vkep.sizes import matches


class Rotary(NamedTuple):
    """Rotation of queries and keys: tables [positions, half] of cos and sin, the positions of the new tokens (int64
    [batch, length]; None: their positions in the cache), and whether adjacent features form the pairs."""

    cos: Tensor
    sin: Tensor
    positions: Tensor | None
    interleaved: bool


class Cached(NamedTuple):
    """Queries [batch, heads, length, size] and the caches [batch, kv heads, room, size]."""

    q: Tensor
    key: Tensor
    value: Tensor


def cached(
    b: Builder,
    past: tuple[Tensor | None, Tensor | None],
    new: tuple[Tensor, Tensor, Tensor],
    first: Tensor,
    room: int,
    used: int,
    rotary: Rotary | None = None,
    coding: Coding | None = None,
) -> Cached:
    """Append to the caches, which have ``room`` rows: the past's rows up to each sequence's row ``first`` (int32
    [batch]), then ``new`` (queries, keys, values [batch, heads, length, size]), then the past's rows again. In rows
    before ``used``, which attention reads, values that are not finite become 0 (``used`` 0: attention reads no row behind
    a sequence's own). ``coding``: how the caches hold numbers."""
    q, k, v = new
    (batch, heads, length, size), (past_key, past_value) = q.shape, past
    old = past_key.shape[2] if past_key is not None else 0
    if past_key is not None and past_value is not None:
        packs = 1 if coding is None else coding.packs
        expect_joins(b, past_key, k, packs)
        expect_joins(b, past_value, v, packs)
    if old == 0 and room == length and rotary is None and coding is None:
        return Cached(q, k, v)
    rows = [_rows(b, t) for t in (new if rotary is not None else (k, v))]
    strides = [_strides(t) for t in rows]
    table = () if rotary is None else (b.contiguous(rotary.cos), b.contiguous(rotary.sin))
    positions = None if rotary is None else rotary.positions
    table_rows = table[0].shape[0] if table else 0
    problem = CacheUpdateProblem(
        batch,
        heads,
        k.shape[1],
        length,
        size,
        v.shape[3],
        old,
        room,
        used,
        strides[0] if rotary is not None else (0, 0, 0),
        strides[-2],
        strides[-1],
        q.dtype.name,
        half=table[0].shape[1] if table else 0,
        interleaved=rotary is not None and rotary.interleaved,
        table_rows=table_rows,
        ids=positions is not None,
        fault=outside(table_rows, 0, "a position", False) if table else "",
        cache="" if coding is None else coding.dtype.name,
        k_channels=coding is not None and coding.by_channel(coding.k_scale),
        v_channels=coding is not None and coding.by_channel(coding.v_scale),
    )
    made = [Tensor.contiguous(DTYPES[need.dtype], need.shape) for need in problem.makes()]
    pasts = [b.contiguous(t) for t in past if t is not None] if problem.has_past else []
    given = [*rows, *pasts, *table, b.contiguous(first)]
    given += [] if positions is None else [b.contiguous(positions)]
    given += [] if coding is None else coding.scales
    b.compute(problem, given, made)
    return Cached(made[0] if rotary is not None else q, *made[-2:])


def _rows(b: Builder, t: Tensor) -> Tensor:
    """A tensor whose rows are dense."""
    return t if matches(t.strides[3], 1) or matches(t.shape[3], 1) else b.contiguous(t)


def _strides(t: Tensor) -> Strides:
    batch, head, row = (0 if matches(dim, 1) else step for dim, step in zip(t.shape[:3], t.strides[:3], strict=True))
    return batch, head, row


def joined(b: Builder, past: Tensor | None, new: Tensor) -> Tensor:
    """Past and new keys or values, concatenated. Raises `InvalidNode` where they differ in more than length."""
    if past is None or (past.rank == 4 and past.shape[2] == 0):
        return new
    expect_joins(b, past, new)
    length = past.shape[2] + new.shape[2]
    out = b.empty(new.dtype, (*new.shape[:2], length, new.shape[3]))
    b.copy(past, out=out.slice(2, 0, past.shape[2]))
    b.copy(new, out=out.slice(2, past.shape[2], new.shape[2]))
    return out


def expect_joins(b: Builder, past: Tensor, new: Tensor, packs: int = 1) -> None:
    """Raise `InvalidNode` where past and new keys or values [batch, heads, length, size] differ in more than length.
    ``packs`` is the number of values in an element of the past.
    """
    if past.rank != 4 or past.shape[:2] != new.shape[:2] or past.shape[3] != -(-new.shape[3] // packs):
        b.invalid(f"past of shape {list(past.shape)} and new of shape {list(new.shape)} do not join")


# ---- caches of codes


@dataclass(frozen=True)
class Coding:
    """The encoding of a cache whose elements have another type than the new keys and values (`vkep.kernels.attention.kv_codes`):
    as rows of ``size`` and ``value_size``.

    Scales are float32 [1], or [kv heads * size] for each feature; None for bfloat16.
    """

    dtype: DType
    size: int
    value_size: int
    k_scale: Tensor | None = None
    v_scale: Tensor | None = None

    @property
    def packs(self) -> int:
        """Numbers of an element."""
        return CODES[self.dtype.name][0]

    @property
    def scales(self) -> list[Tensor]:
        """Both, where there are any."""
        return [t for t in (self.k_scale, self.v_scale) if t is not None]

    @staticmethod
    def by_channel(scale: Tensor | None) -> bool:
        """Whether a scale is one for each feature."""
        return scale is not None and scale.size != 1

    def numbers(self, b: Builder, k: Tensor, v: Tensor, dtype: DType) -> tuple[Tensor, Tensor]:
        """Keys and values [batch, kv heads, length, size and value size] as floats."""
        return (
            self._decoded(b, k, self.k_scale, self.size, dtype),
            self._decoded(b, v, self.v_scale, self.value_size, dtype),
        )

    def _decoded(self, b: Builder, cache: Tensor, scale: Tensor | None, size: int, dtype: DType) -> Tensor:
        batch, heads, length, width = cache.shape
        packs = self.packs
        if self.dtype.name == "bfloat16":
            return b.cast(cache, dtype)
        wide = cache.view((*cache.shape, packs), (*cache.strides, 0))
        if packs == 2:
            shift = b.constant(np.array([0, 4], np.int32))
            value = fn.cast(b.expr("shift_right", wide, shift) & 15, "float") - 8
        else:
            value = b.cast_expr(ex.leaf(wide), cache.dtype, FLOAT32)
        assert scale is not None
        if scale.size > 1:
            if size != width * packs:  # a half of the last element is empty
                filled = b.full((heads, width * packs), 1, scale.dtype)
                filled = b.copy(filled)
                b.copy(b.reshape(scale, (heads, size)), out=filled.slice(1, 0, size))
                scale = filled
            scale = b.reshape(scale, (1, heads, 1, width, packs))
        else:
            scale = b.reshape(scale, (1, 1, 1, 1, 1))
        made = b.store(b.expr("mul", value, scale, ctype="float"), dtype, shape=wide.shape)
        return b.reshape(made, (batch, heads, length, width * packs)).slice(3, 0, size)


# ---- caches of a window


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
        at = b.store(row * rows + fn.minimum(step + by, rows - 1), INT32, shape=(batch, heads, self.capacity))
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
        return elements_at(b, wide, b.store(column, INT32, shape=shape), 3, "a position of attention_bias")


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
    first = b.store(_held(before, capacity, size), INT32, shape=(batch,))
    begin = b.expr("sub", before, first)
    shift = b.store(after - _held(after, capacity, size) - begin, INT32, shape=(batch,))
    seen = b.reshape(b.store(before, INT32, shape=(batch,)), (batch, 1))
    steps = positions(b, length).view((1, length), (0, 1))
    places = b.cast(b.pointwise("add", steps, seen, dtype=INT32, shape=(batch, length)), INT64)
    return Window(capacity, capacity + length, first, places, b.store(begin, INT32, shape=(batch,)), shift)


def _held(tokens: Expr, capacity: int, size: int) -> Expr:
    """How many of so many tokens the cache holds: it drops as many at once as it has rows beyond the window, and one."""
    at_once = capacity - size + 1
    dropped = (tokens - capacity + (at_once - 1)) / at_once * at_once
    return where(tokens <= capacity, tokens, tokens - dropped)
