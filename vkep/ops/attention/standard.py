"""Attention of the ONNX standard (opset 23 and later)."""

from __future__ import annotations

import math

from onnx import TensorProto

from vkep.dtypes import FLOAT32
from vkep.ir.builder import Builder
from vkep.ir.expr import Expr
from vkep.ir.tensor import Tensor
from vkep.ops.allowed import SINGLE
from vkep.ops.attention.kv_cache import joined
from vkep.ops.attention.sdpa import (
    Heads,
    Mask,
    default_scale,
    heads_of,
    merge_heads,
    per_batch,
    position_mask,
    sdpa,
    split_heads,
)
from vkep.ops.registry import ANY, operator


@operator(
    "Attention",
    since=23,
    types={"T1": SINGLE, "T2": SINGLE, "U": (*ANY, "bfloat16")},
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
    wide = FLOAT32 if dtype.name == "bfloat16" else dtype  # no matrix kernel stores bfloat16
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
