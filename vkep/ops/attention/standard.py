"""Attention and rotary position embeddings (ONNX Attention, opset 23 and later, and RotaryEmbedding)."""

from __future__ import annotations

import math

import numpy as np
from onnx import TensorProto

from vkep.dtypes import DTYPES
from vkep.ir.builder import LARGEST, Builder
from vkep.ir.expr import Expr
from vkep.ir.tensor import Tensor
from vkep.ops.attention.sdpa import (
    Heads,
    Mask,
    default_scale,
    heads_of,
    joined,
    merge_heads,
    per_batch,
    position_mask,
    sdpa,
    split_heads,
)
from vkep.ops.gather import rows_at
from vkep.ops.registry import ANY, FLOATS, operator

_FLOAT32 = DTYPES["float32"]
_ATTENTION_FLOATS = (*FLOATS, "bfloat16")


@operator(
    "Attention",
    since=23,
    types={"T1": _ATTENTION_FLOATS, "T2": _ATTENTION_FLOATS, "U": (*ANY, "bfloat16")},
)
def attention(
    b: Builder,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    nonpad_kv_seqlen: Tensor | None = None,
    *,
    is_causal: int = 0,
    kv_num_heads: int | None = None,
    left_window_size: int = -1,
    q_num_heads: int | None = None,
    qk_matmul_output_mode: int = 0,
    right_window_size: int = -1,
    scale: float | None = None,
    softcap: float = 0.0,
    softmax_precision: int | None = None,
) -> list[Tensor]:
    if softmax_precision == TensorProto.DOUBLE:
        b.decline("a softmax in float64")
    dtype, flat = q.dtype, q.rank == k.rank == v.rank == 3
    if flat:
        q = split_heads(b, q, q_num_heads or 0)
        k, v = (split_heads(b, t, kv_num_heads or 0) for t in (k, v))
    if not q.rank == k.rank == v.rank == 4:
        b.invalid(f"queries {list(q.shape)}, keys {list(k.shape)}, values {list(v.shape)}; expected 3 or 4 axes each")
    present_key, present_value = joined(b, past_key, k), joined(b, past_value, v)
    wide = _FLOAT32 if dtype.name == "bfloat16" else dtype  # no matrix kernel stores bfloat16
    q, k, v = (b.cast(t, wide) for t in (q, present_key, present_value))
    heads = heads_of(b, q, k)
    offset = _offset(b, heads, past_key, nonpad_kv_seqlen)
    mask = position_mask(b, heads, offset, bool(is_causal), left_window_size, right_window_size)
    mask.may_hide_rows |= nonpad_kv_seqlen is not None
    b.expect("nonpad_kv_seqlen", nonpad_kv_seqlen, (heads.batch,))
    b.expect_range("nonpad_kv_seqlen", nonpad_kv_seqlen, 0, heads.keys)
    if nonpad_kv_seqlen is not None:
        lengths = per_batch(b, nonpad_kv_seqlen)
        mask.conditions.append(b.expr("lt", heads.key_index(b), lengths, ctype="bool"))
    if attn_mask is not None:
        _add_mask(b, mask, heads, attn_mask)
    wanted = b.node is not None and len(b.node.outputs) > 3 and bool(b.node.outputs[3])
    if qk_matmul_output_mode not in range(4):
        b.invalid(f"qk_matmul_output_mode is {qk_matmul_output_mode}, expected 0 to 3")
    done = sdpa(
        b,
        q,
        k,
        v,
        heads,
        mask,
        scale=default_scale(q.shape[3]) if scale is None else scale,
        softcap=softcap,
        scores_stage=qk_matmul_output_mode if wanted else None,
        merged=flat,
    )
    y = b.cast(done.y, dtype)
    scores = b.cast(done.scores, dtype) if done.scores is not None else y
    made = [merge_heads(b, y) if flat else y, present_key, present_value, scores]
    return made[: len(b.node.outputs)] if b.node is not None else made


def _offset(b: Builder, heads: Heads, past: Tensor | None, lengths: Tensor | None) -> Expr | int:
    """The position of the first query among the keys."""
    if past is not None:
        return past.shape[2]
    if lengths is None:
        return 0
    return b.expr("sub", per_batch(b, lengths), heads.queries)


def _add_mask(b: Builder, mask: Mask, heads: Heads, given: Tensor) -> None:
    """Add the mask input: bool conditions, or numbers that are added to scores. Keys beyond its last column are hidden."""
    mask.may_hide_rows = True
    columns = given.shape[-1]
    if columns < heads.keys and columns != 1:
        padded = b.empty(given.dtype, (*given.shape[:-1], heads.keys))
        axis = given.rank - 1
        b.copy(given, out=padded.slice(axis, 0, columns))
        rest = padded.slice(axis, columns, heads.keys - columns)
        hidden = False if given.dtype.kind == "bool" else -math.inf
        b.copy(b.full(rest.shape, hidden, given.dtype), out=rest)
        given = padded
    view = heads.mask_view(b, given)
    if given.dtype.kind == "bool":
        mask.conditions.append(b.expr("same", view))
    elif given.dtype.kind == "float":
        mask.biases.append(view)
    else:
        b.decline(f"a mask of {given.dtype}; the kernels take bool and float")


# ---- rotary position embeddings


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


@operator("RotaryEmbedding", since=23, types={"T": _ATTENTION_FLOATS, "M": ("int64",)})
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
