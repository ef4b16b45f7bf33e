"""The keys and values of a decoder's step: one new token joins the cache (`vkep.kernels.cache_step`)."""

from __future__ import annotations

from typing import NamedTuple

from vkep.dtypes import DTYPES
from vkep.ir.builder import Builder
from vkep.ir.tensor import Tensor
from vkep.kernels.cache_step import CacheStepProblem
from vkep.kernels.tiles import STORAGE
from vkep.ops.gather import outside


class Rotary(NamedTuple):
    """How queries and keys turn: tables [positions, half] of cos and sin, the position of each sequence's token (int64; None:
    where it lies in the cache), and whether neighbours are the pairs.
    """

    cos: Tensor
    sin: Tensor
    positions: Tensor | None
    interleaved: bool


class Step(NamedTuple):
    """Queries [batch, heads, 1, size], the caches [batch, kv heads, room, size], and the new token's row (int32 [batch])."""

    q: Tensor
    key: Tensor
    value: Tensor
    first: Tensor


def takes_step(q: Tensor, k: Tensor, v: Tensor, past_key: Tensor | None, past_value: Tensor | None) -> bool:
    """Whether `cache_step` computes this: one new token, and a past of the same type."""
    if past_key is None or past_value is None or q.shape[2] != 1:
        return False
    kinds = {t.dtype.name for t in (q, k, v, past_key, past_value)}
    return len(kinds) == 1 and kinds <= set(STORAGE) and past_key.shape[2] != 0 and q.size != 0


def cache_step(
    b: Builder,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    past: tuple[Tensor, Tensor],
    room: int,
    lengths: Tensor,
    total: Tensor,
    rotary: Rotary | None,
) -> Step:
    """``q``, ``k``, ``v`` [batch, heads, 1, size] and the past's caches; the token goes to row ``lengths`` (int32 [batch]), or to
    row 0 where ``total`` (int32 [1]) is 1.
    """
    batch, heads, _, size = q.shape
    rows = [_rows(b, t) for t in ((q, k, v) if rotary is not None else (k, v))]
    strides = [(t.strides[0] if batch != 1 else 0, t.strides[1] if t.shape[1] != 1 else 0) for t in rows]
    table = () if rotary is None else (b.contiguous(rotary.cos), b.contiguous(rotary.sin))
    positions = None if rotary is None else rotary.positions
    table_rows = table[0].shape[0] if table else 0
    problem = CacheStepProblem(
        batch,
        heads,
        k.shape[1],
        size,
        v.shape[3],
        past[0].shape[2],
        room,
        strides[0] if rotary is not None else (0, 0),
        strides[-2],
        strides[-1],
        q.dtype.name,
        half=table[0].shape[1] if table else 0,
        interleaved=rotary is not None and rotary.interleaved,
        table_rows=table_rows,
        ids=positions is not None,
        fault=outside(table_rows, 0, "a position", False) if table else "",
    )
    made = [Tensor.contiguous(DTYPES[need.dtype], need.shape) for need in problem.makes()]
    given = [*rows, *map(b.contiguous, past), *table, b.contiguous(lengths), b.contiguous(total)]
    b.compute(problem, [*given, *([] if positions is None else [b.contiguous(positions)])], made)
    return Step(made[0] if rotary is not None else q, *made[-3:])


def _rows(b: Builder, t: Tensor) -> Tensor:
    """A tensor whose rows are dense."""
    return t if t.strides[3] == 1 or t.shape[3] == 1 else b.contiguous(t)
