"""The caches of keys and values that decoders return: the past rows followed by new ones
(`vkep.kernels.cache_update`)."""

from __future__ import annotations

from typing import NamedTuple

from vkep.dtypes import DTYPES
from vkep.ir.builder import Builder
from vkep.ir.tensor import Tensor
from vkep.kernels.cache_update import CacheUpdateProblem, Strides
from vkep.ops.attention.kv_coding import Coding
from vkep.ops.attention.sdpa import expect_joins
from vkep.ops.gather import outside
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
