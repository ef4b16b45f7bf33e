"""Rotary position embeddings: those of queries and keys in attention, and the operators RotaryEmbedding (ONNX and
com.microsoft), GemmaRotaryEmbedding and MRotaryEmbedding.

Semantics: the operators' schemas in ONNX Runtime (docs/ContribOperators.md), and its CPU provider's kernels where those
say no more.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vkep.ir.algebra import equal, where
from vkep.ir.builder import LARGEST, Builder
from vkep.ir.expr import Expr
from vkep.ir.tensor import Tensor
from vkep.ops.allowed import SINGLE
from vkep.ops.attention.sdpa import merge_heads, split_heads
from vkep.ops.gather import rows_at
from vkep.ops.generators import positions
from vkep.ops.microsoft import MICROSOFT
from vkep.ops.registry import FLOATS, operator


def rotated(b: Builder, x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """``x`` [batch, heads, length, size], rotated by angles whose cos and sin are [batch or 1, length, width / 2].

    Rotates the pairs of features (i, i + width / 2), or neighbours if ``interleaved``; copies those beyond ``width``.
    Raises `InvalidNode` where the tables do not fit.
    """
    half = cos.shape[-1] if cos.rank == 3 else 0
    if x.shape[1] * x.shape[3] >= LARGEST:  # also where there are no sequences
        b.invalid(f"{x.shape[1]} heads of {x.shape[3]} features; together they must be below 2**31")
    b.expect("sin", sin, cos.shape)
    if not half or cos.shape[0] not in (1, x.shape[0]) or cos.shape[1] != x.shape[2] or 2 * half > x.shape[3]:
        b.invalid(f"cos and sin of shape {list(cos.shape)} do not fit heads of shape {list(x.shape)}")
    out = b.empty(x.dtype, x.shape)
    source, target = (_pairs(t.slice(3, 0, 2 * half), half, interleaved) for t in (x, out))
    axis = 4 if interleaved else 3
    other = source.slice(axis, 1, 2, -1)
    angle_shape = (cos.shape[0], 1, cos.shape[1], half, 1) if interleaved else (cos.shape[0], 1, cos.shape[1], 1, half)
    cos, sin = b.reshape(cos, angle_shape), b.reshape(sin, angle_shape)
    sign_shape, sign_strides = ((2,), (1,)) if interleaved else ((2, 1), (1, 0))
    sign = b.constant(np.array([-1, 1], np.float32)).view(sign_shape, sign_strides)
    b.pointwise(_turned, source, other, cos, sin, sign, out=target)
    if 2 * half < x.shape[3]:
        rest = x.shape[3] - 2 * half
        b.copy(x.slice(3, 2 * half, rest), out=out.slice(3, 2 * half, rest))
    return out


def _turned(x: Expr, other: Expr, cos: Expr, sin: Expr, sign: Expr) -> Expr:
    return x * cos + sign * other * sin


def expect_turns(b: Builder, x: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Raise `InvalidNode` where tables [positions, half] do not fit heads ``x`` [batch, heads, length, size]."""
    b.expect("sin_cache", sin, cos.shape)
    if cos.rank != 2 or not cos.shape[1] or 2 * cos.shape[1] > x.shape[3]:
        b.invalid(f"cos and sin of shape {list(cos.shape)} do not fit heads of shape {list(x.shape)}")


def _pairs(t: Tensor, half: int, interleaved: bool) -> Tensor:
    """The last axis as [half, 2] (neighbours) or [2, half]."""
    step = t.strides[3]
    if interleaved:
        return t.view((*t.shape[:3], half, 2), (*t.strides[:3], 2 * step, step))
    return t.view((*t.shape[:3], 2, half), (*t.strides[:3], half * step, step))


def angles(b: Builder, cos: Tensor, sin: Tensor, positions: Tensor | None) -> tuple[Tensor, Tensor]:
    """Rows of the tables cos and sin [positions, half] for positions [batch, length]: [batch, length, half].

    Without positions the tables have that shape already.
    """
    b.expect("sin_cache", sin, cos.shape)
    if positions is None:
        return cos, sin
    return rows_at(b, cos, positions, "a position"), rows_at(b, sin, positions, "a position")


@operator("RotaryEmbedding", since=23, types={"T": SINGLE, "M": ("int64",)})
def rotary_embedding(
    b: Builder,
    x: Tensor,
    cos_cache: Tensor,
    sin_cache: Tensor,
    position_ids: Tensor | None = None,
    *,
    interleaved: int = 0,
    num_heads: int | None = None,
    rotary_embedding_dim: int = 0,
) -> Tensor:
    flat = x.rank == 3
    heads = split_heads(b, x, num_heads or 0) if flat else x
    if heads.rank != 4:
        b.invalid(f"input of shape {list(x.shape)}; expected 3 or 4 axes")
    batch, _, length, size = heads.shape
    b.expect("position_ids", position_ids, (batch, length))
    places = (batch, length) if position_ids is None else cos_cache.shape[:1]
    b.expect("cos_cache", cos_cache, (*places, (rotary_embedding_dim or size) // 2))
    y = rotated(b, heads, *angles(b, cos_cache, sin_cache, position_ids), bool(interleaved))
    return merge_heads(b, y) if flat else y


@operator("RotaryEmbedding", domain=MICROSOFT, types={"x cos_cache sin_cache": SINGLE, "position_ids": ("int64",)})
def rotary_embedding_(
    b: Builder,
    x: Tensor,
    position_ids: Tensor,
    cos_cache: Tensor,
    sin_cache: Tensor,
    *,
    interleaved: int = 0,
    is_packed_batching: int = 0,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
    scale: float = 1.0,
) -> Tensor:
    flat = x.rank == 3
    if flat:
        width = rotary_embedding_dim or 2 * cos_cache.shape[-1]
        size = x.shape[2] // num_heads if num_heads else width
        x = split_heads(b, x, x.shape[2] // size)
    elif not rotary_embedding_dim:
        b.expect("cos_cache", cos_cache, (*cos_cache.shape[:1], x.shape[-1] // 2))
    batch, length = x.shape[0], x.shape[2]
    if position_ids.shape == (1,):  # the first position of every sequence
        steps = positions(b, length, np.int64).view((1, length), (0, 1))
        first = b.reshape(position_ids, (1, 1))
        position_ids = b.pointwise("add", steps, first, shape=(batch, length))
    b.expect("position_ids", position_ids, (batch, length))
    cos, sin = angles(b, cos_cache, sin_cache, position_ids)
    y = rotated(b, x, cos, sin, bool(interleaved))
    return merge_heads(b, y) if flat else y


@operator(
    "GemmaRotaryEmbedding",
    domain=MICROSOFT,
    types={"emb": ("float32",), "q q_rot k k_rot": FLOATS},
)
def gemma_rotary_embedding(b: Builder, emb: Tensor, q: Tensor, q_rot: Tensor, k: Tensor, k_rot: Tensor) -> list[Tensor]:
    for what, tensor, shape in (("q_rot", q_rot, q.shape), ("k_rot", k_rot, k.shape)):
        b.expect(what, tensor, shape)
    if emb.rank != 3 or any(t.rank != 4 or (t.shape[0], *t.shape[2:]) != emb.shape for t in (q, k)):
        b.invalid(f"angles {list(emb.shape)} for queries {list(q.shape)} and keys {list(k.shape)}")
    angle = b.reshape(emb, (emb.shape[0], 1, *emb.shape[1:]))
    cos, sin = (b.pointwise(f, angle, dtype=q.dtype) for f in ("cos", "sin"))

    def rotation(x: Expr, cos: Expr, turned: Expr, sin: Expr) -> Expr:
        return x * cos + turned * sin

    return [b.pointwise(rotation, x, cos, turned, sin, shape=x.shape) for x, turned in ((q, q_rot), (k, k_rot))]


@operator(
    "MRotaryEmbedding",
    domain=MICROSOFT,
    types={"x cos_cache sin_cache": SINGLE, "position_ids": ("int64",)},
)
def m_rotary_embedding(
    b: Builder,
    x: Tensor,
    position_ids: Tensor,
    cos_cache: Tensor,
    sin_cache: Tensor,
    *,
    interleaved: int = 0,
    is_packed_batching: int = 0,
    mrope_layout: int = 0,
    mrope_section: Sequence[int],
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
    scale: float = 1.0,
) -> Tensor:
    """Rotary embedding of which each angle is of one of three positions: of time, height or width."""
    if is_packed_batching or scale != 1.0:
        b.decline("packed batching, or a scale")
    half = cos_cache.shape[-1] if cos_cache.rank == 2 else 0
    b.expect("sin_cache", sin_cache, cos_cache.shape)
    if len(mrope_section) != 3 or min(mrope_section) < 0 or sum(mrope_section) != half or mrope_layout not in (0, 1):
        b.invalid(
            f"mrope_section is {list(mrope_section)} in layout {mrope_layout} for tables of {list(cos_cache.shape)}"
        )
    flat = x.rank == 3
    if flat:
        size = x.shape[2] // num_heads if num_heads > 0 else rotary_embedding_dim or 2 * half
        x = split_heads(b, x, x.shape[2] // size if size else 0)
    if x.rank != 4 or (rotary_embedding_dim or x.shape[3]) != 2 * half:
        b.invalid(f"heads of shape {list(x.shape)} for tables of {list(cos_cache.shape)}")
    batch, length = x.shape[0], x.shape[2]
    b.expect("position_ids", position_ids, (3, batch, length))
    source = np.repeat(np.arange(3), mrope_section)
    if mrope_layout == 1:
        source = np.zeros(half, np.int64)
        for stream in (1, 2):
            source[stream : 3 * mrope_section[stream] : 3] = stream
    cos, sin = (_of_streams(b, table, position_ids, source) for table in (cos_cache, sin_cache))
    y = rotated(b, x, cos, sin, bool(interleaved))
    return merge_heads(b, y) if flat else y


def _of_streams(b: Builder, table: Tensor, positions: Tensor, source: np.ndarray) -> Tensor:
    """[batch, length, half]: column c of the table's rows at position stream ``source[c]`` of ``positions`` [3, ...]."""
    rows = rows_at(b, table, positions, "a position")
    stream = b.constant(source.astype(np.int32))
    parts = [b.reshape(rows.slice(0, k, 1), rows.shape[1:]) for k in range(3)]
    which, first, second, third = b.reads(stream, *parts)
    value = where(equal(which, 0), first, where(equal(which, 1), second, third))
    return b.store(value, table.dtype, shape=rows.shape[1:])
