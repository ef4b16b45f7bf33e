"""ONNX Runtime's GroupQueryAttention (domain com.microsoft): decoders' attention with its cache of keys and values.

Semantics: ONNX Runtime, docs/ContribOperators.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from vkep.dtypes import DTYPES, FLOAT32, INT32, DType
from vkep.ir import algebra as fn
from vkep.ir.algebra import where
from vkep.ir.builder import Builder
from vkep.ir.expr import Expr, leaf
from vkep.ir.tensor import Tensor
from vkep.ops.allowed import SINGLE
from vkep.ops.attention.kv_cache import Coding, Rotary, cached, window
from vkep.ops.attention.rotary import angles, expect_turns, rotated
from vkep.ops.attention.sdpa import (
    Heads,
    Mask,
    Scoring,
    default_scale,
    fused_attention,
    merge_heads,
    per_batch,
    position_mask,
    sdpa,
    split_heads,
)
from vkep.ops.generators import positions
from vkep.ops.microsoft import MICROSOFT, outputs
from vkep.ops.normalization import row_norm
from vkep.ops.registry import operator
from vkep.sizes import whole

#: types of a quantized cache's elements, by the bits of a number
_QUANTIZED = {8: ("int8", "float8_e4m3fn"), 4: ("uint8",)}


@operator(
    "GroupQueryAttention",
    domain=MICROSOFT,
    types={
        "query key value cos_cache sin_cache attention_bias head_sink q_norm_weight k_norm_weight": SINGLE,
        "past_key past_value": (*SINGLE, "int8", "uint8", "float8_e4m3fn"),
        "k_scale v_scale": ("float32",),
        "seqlens_k": ("int32",),
        "total_sequence_length": ("int32",),
        "query_seqlens": ("int32",),
    },
)
def group_query_attention(
    b: Builder,
    query: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    past_key: Tensor | None,
    past_value: Tensor | None,
    seqlens_k: Tensor,
    total_sequence_length: Tensor,
    cos_cache: Tensor | None = None,
    sin_cache: Tensor | None = None,
    position_ids: Tensor | None = None,
    attention_bias: Tensor | None = None,
    head_sink: Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    q_norm_weight: Tensor | None = None,
    k_norm_weight: Tensor | None = None,
    query_seqlens: Tensor | None = None,
    *,
    causal: int = 1,
    do_rotary: int = 0,
    k_norm_epsilon: float | None = None,
    k_quant_type: str = "NONE",
    kv_cache_bit_width: int = 0,
    kv_num_heads: int,
    local_window_size: int = -1,
    num_heads: int,
    q_norm_epsilon: float | None = None,
    qk_norm_epsilon: float = 1e-6,
    qk_output: int = 0,
    rotary_interleaved: int = 0,
    scale: float = 0.0,
    sliding_window_cache: int = 0,
    smooth_softmax: int = -1,
    softcap: float = 0.0,
    v_quant_type: str = "NONE",
) -> list[Tensor]:
    if causal not in (0, 1) or (not causal and local_window_size > 0):
        b.invalid(
            f"causal is {causal} and local_window_size {local_window_size}; expected 0 or 1, and no window with 0"
        )
    if (q_norm_weight is None) != (k_norm_weight is None):
        b.invalid("q_norm_weight and k_norm_weight: one is missing")
    dtype = query.dtype
    wide = FLOAT32 if dtype.name == "bfloat16" else dtype  # no kernel computes with bfloat16
    q, k, v = grouped_parts(b, query, key, value, num_heads, kv_num_heads)
    if q_norm_weight is not None and k_norm_weight is not None:
        epsilons = (e if e is not None else qk_norm_epsilon for e in (q_norm_epsilon, k_norm_epsilon))
        q, k = (_normed(b, t, w, e) for t, w, e in zip((q, k), (q_norm_weight, k_norm_weight), epsilons, strict=True))
    q, k, v = (b.cast(t, wide) for t in (q, k, v))
    batch, length, size = q.shape[0], q.shape[2], q.shape[3]
    # the past of another layer
    shared = past_key is not None and past_value is not None and k.shape[2] == 0 == v.shape[2]
    new = 0 if shared else length
    for name, t in (("keys", k), ("values", v)):
        b.expect(f"{name} by head", t, (batch, kv_num_heads, new, size if t is k else v.shape[3]))
    held = past_key.dtype if past_key is not None else None
    scales = _scales(b, (k_quant_type, v_quant_type), (k_scale, v_scale), (k, v))
    coding = _coding(b, held or dtype, wide, kv_cache_bit_width, scales, (size, v.shape[3]), held is None)
    room = past_key.shape[2] if past_key is not None else 0
    if past_key is not None and past_value is not None:
        b.expect("past_value", past_value, (*past_key.shape[:3], *past_value.shape[3:]))
    for name, counts in (("seqlens_k", seqlens_k), ("query_seqlens", query_seqlens)):
        if counts is not None and (not counts.rank or counts.size != batch or not set(counts.shape) <= {1, batch}):
            b.invalid(f"{name} has shape {list(counts.shape)}, expected {[batch]}")
    lengths, step = b.reshape(seqlens_k, (batch,)), None
    if sliding_window_cache:
        if past_key is None or shared or qk_output:
            b.decline("a windowed cache without a past or new keys, or with scores as an output")
        step = window(b, lengths, query_seqlens, length, room, local_window_size)
        used, room, first = step.rows, step.rows, step.first
        attention_bias = step.columns(b, attention_bias, batch) if attention_bias is not None else None
    else:
        used = whole(b.number(total_sequence_length, "total_sequence_length"))
        if used < 1:
            b.invalid(f"total_sequence_length is {used}, expected 1 or more")
        if used > room + new:
            b.invalid(f"total_sequence_length is {used}, expected at most {room} keys of the past and {new} new ones")
        if attention_bias is not None and attention_bias.shape[-1] < used:
            b.invalid(
                f"attention_bias has shape {list(attention_bias.shape)}, "
                f"expected a last axis of {used}, the total_sequence_length, or more"
            )
        if used > room:  # the cache grows
            room = used
        b.expect_range("seqlens_k", seqlens_k, 0, used - 1)
        first = _first(b, lengths, query_seqlens, length, used, room)
    rotary = None
    if do_rotary:
        if cos_cache is None or sin_cache is None:
            b.invalid("do_rotary without tables of cos and sin")
        if position_ids is not None:
            b.expect("position_ids", position_ids, (batch, length))
            if (
                query_seqlens is None and step is None and length == used and length > 1
            ):  # of a prompt the first one counts
                steps = positions(b, length, np.int64).view((1, length), (0, 1))
                start = b.reshape(position_ids, (batch * length,)).slice(0, 0, 1)
                position_ids = b.pointwise("add", steps, b.reshape(start, (1, 1)), shape=(batch, length))
        elif step is not None:
            position_ids = step.places
        expect_turns(b, q, cos_cache, sin_cache)
        rotary = Rotary(b.cast(cos_cache, wide), b.cast(sin_cache, wide), position_ids, bool(rotary_interleaved))
    heads = Heads(batch, kv_num_heads, num_heads // kv_num_heads, length, used)
    mask = _mask(b, heads, first, lengths, bool(causal), local_window_size)
    if attention_bias is not None:
        mask.biases.append(heads.mask_view(b, b.cast(attention_bias.slice(attention_bias.rank - 1, 0, used), wide)))
    sink = b.full((num_heads,), 0, wide) if smooth_softmax == 1 and head_sink is None else head_sink  # -1 and 0 are off
    scoring = Scoring(scale or default_scale(size), softcap, sink)
    if shared:
        assert past_key is not None and past_value is not None
        if rotary is not None:
            q = _turned(b, q, first, rotary)
        present_key, present_value = (_numbers(b, t, lengths, used) for t in (past_key, past_value))
    else:
        read = _read(b, q, v, heads, mask, scoring, coding, room)
        q, present_key, present_value = cached(b, (past_key, past_value), (q, k, v), first, room, read, rotary, coding)
    if qk_output not in (0, 1, 2):
        b.invalid(f"qk_output is {qk_output}, expected 0, 1 or 2")
    done = sdpa(
        b,
        q,
        present_key.slice(2, 0, used),
        present_value.slice(2, 0, used),
        heads,
        mask,
        scale=scoring.scale,
        softcap=softcap,
        scores_stage={0: None, 1: 2, 2: 3}[qk_output],
        sink=sink,
        merged=True,
        coding=coding,
    )
    scores = done.scores
    if scores is not None and qk_output == 1:  # 0 where a query does not see a key
        seen = mask.allowed(b)
        wide_scores = b.reshape(scores, heads.shape)
        kept = where(seen, leaf(wide_scores), 0) if seen is not None else None
        scores = scores if kept is None else b.reshape(b.store(kept, wide, shape=heads.shape), scores.shape)
    if step is not None:
        present_key, present_value = step.remaining(b, present_key), step.remaining(b, present_value)
    return outputs(
        b,
        merge_heads(b, b.cast(done.y, dtype)),
        present_key,
        present_value,
        b.cast(scores, dtype) if scores is not None else None,
    )


def grouped_parts(
    b: Builder, query: Tensor, key: Tensor | None, value: Tensor | None, num_heads: int, kv_heads: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values [batch, heads, length, size]."""
    if kv_heads < 1 or num_heads % kv_heads:
        b.invalid(f"{num_heads} heads of queries and {kv_heads} of keys, expected a multiple")
    if key is not None and value is not None:
        return split_heads(b, query, num_heads), split_heads(b, key, kv_heads), split_heads(b, value, kv_heads)
    every = split_heads(b, query, num_heads + 2 * kv_heads)  # packed: queries, then keys, then values
    q = every.slice(1, 0, num_heads)
    return q, every.slice(1, num_heads, kv_heads), every.slice(1, num_heads + kv_heads, kv_heads)


def _normed(b: Builder, t: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Heads [batch, heads, length, size], each row divided by its root mean square."""
    if not (math.isfinite(epsilon) and epsilon > 0):
        b.invalid(f"the epsilon of the norm of queries or keys is {epsilon}, expected a finite positive number")
    b.expect("q_norm_weight or k_norm_weight", weight, (t.shape[3],))
    if 0 in t.shape:
        return t
    rows = b.cast(t.transpose((0, 2, 1, 3)), FLOAT32 if t.dtype.name == "bfloat16" else t.dtype)
    return row_norm(b, rows, weight, epsilon=epsilon, rms=True)[0].transpose((0, 2, 1, 3))


def _first(b: Builder, lengths: Tensor, counts: Tensor | None, length: int, used: int, room: int) -> Tensor:
    """The position of the first query of each sequence (int32 [batch]); ``lengths``: of the sequences with the new tokens, less
    1; ``counts``: of the new tokens that are no padding.
    """
    batch = lengths.size
    if counts is not None:
        b.expect_range("query_seqlens", counts, 0, length)
        tokens, new = b.reads(lengths, b.reshape(counts, (batch,)))
        reason = f"a sequence is shorter than its query_seqlens, or has no room for {length} new tokens among {room}"
        start = b.require(tokens + 1 - new, lambda v, most: (v >= 0) & (v <= most), reason, room - length)
        return b.pointwise("same", start, dtype=INT32, shape=(batch,))
    if length == used:  # a prompt begins at 0 whatever its padding
        return b.full((batch,), 0, INT32)
    if length == 1:
        return lengths
    reason = f"seqlens_k is too small for {length} new tokens"
    start = b.require(b.expr("add", lengths, 1 - length), lambda v: v >= 0, reason)
    return b.pointwise("same", start, dtype=INT32, shape=(batch,))


def _mask(b: Builder, heads: Heads, first: Tensor, lengths: Tensor, causal: bool, window: int) -> Mask:
    if not causal:
        mask = Mask()
        mask.conditions.append(b.expr("le", heads.key_index(b), per_batch(b, lengths), ctype="bool"))
        return mask
    mask = position_mask(b, heads, b.expr("same", per_batch(b, first)), True, window - 1 if window > 0 else -1)
    mask.may_hide_rows = False  # a query sees itself
    return mask


def _read(
    b: Builder, q: Tensor, v: Tensor, heads: Heads, mask: Mask, scoring: Scoring, coding: Coding | None, room: int
) -> int:
    """The rows of a cache that attention reads of each sequence, however short it is; 0 where each one's own alone are read, by
    a kernel that knows where they end.
    """
    stored = q.dtype if coding is None else coding.dtype
    widths = [w if coding is None else -(-w // coding.packs) for w in (q.shape[3], v.shape[3])]
    k, v = (Tensor.contiguous(stored, (heads.batch, heads.kv_heads, room, w)).slice(2, 0, heads.keys) for w in widths)
    bounded = mask.window is not None and mask.window.end is not None and not mask.conditions
    alone = bounded and fused_attention(b.caps, q, k, v, heads, mask, scoring, True, coding) is not None
    return 0 if alone else heads.keys


def _numbers(b: Builder, past: Tensor, lengths: Tensor, used: int) -> Tensor:
    """The past's values with those beyond a sequence's end that are not finite replaced by 0."""
    if past.dtype.kind != "float":
        return past
    place = b.reshape(positions(b, past.shape[2]), (1, 1, past.shape[2], 1))
    end = b.reshape(lengths, (lengths.size, 1, 1, 1))

    def finite(place: Expr, end: Expr, value: Expr, used: Expr) -> Expr:
        unread = (place > end) & (place < used)
        return where(unread & (fn.isnan(value) | fn.isinf(value)), 0, value)

    return b.pointwise(finite, place, end, past, used, dtype=past.dtype, shape=past.shape)


def _turned(b: Builder, q: Tensor, first: Tensor, rotary: Rotary) -> Tensor:
    """The queries, rotated by the angles of their positions."""
    batch, length, places = q.shape[0], q.shape[2], rotary.positions
    if places is None:
        steps = positions(b, length).view((1, length), (0, 1))
        places = b.pointwise("add", steps, b.reshape(first, (batch, 1)), shape=(batch, length))
    return rotated(b, q, *angles(b, rotary.cos, rotary.sin, places), rotary.interleaved)


# ---- quantized caches


@dataclass(frozen=True)
class _Scales:
    """Of keys and of values, float32 [1] or [kv heads * size]."""

    k: Tensor
    v: Tensor


def _scales(
    b: Builder, kinds: tuple[str, str], given: tuple[Tensor | None, Tensor | None], parts: tuple[Tensor, Tensor]
) -> _Scales | None:
    """The scales of a quantized cache; None for one that is not."""
    if kinds == ("NONE", "NONE"):
        return None
    made = []
    for name, kind, scale, part in zip(("k", "v"), kinds, given, parts, strict=True):
        if kind not in ("PER_TENSOR", "PER_CHANNEL") or scale is None:
            there = "no" if scale is None else "a"
            b.invalid(
                f"{name}_quant_type is {kind!r} with {there} {name}_scale, expected both caches quantized, by scales that "
                "are PER_TENSOR or PER_CHANNEL"
            )
        count = part.shape[1] * part.shape[3] if kind == "PER_CHANNEL" else 1
        if scale.size != count:
            b.invalid(f"{name}_scale has shape {list(scale.shape)}, expected {count} elements for {kind}")
        made.append(b.contiguous(b.reshape(scale, (count,))))
    return _Scales(*made)


def _coding(
    b: Builder, held: DType, wide: DType, bits: int, scales: _Scales | None, sizes: tuple[int, int], empty: bool
) -> Coding | None:
    """The encoding of a cache of type ``held``; None for the type that kernels compute with. ``empty``: there is no
    cache yet, and ``held`` is the queries' type."""
    if scales is not None:
        if bits not in _QUANTIZED:
            b.invalid(f"kv_cache_bit_width is {bits} for a quantized cache, expected {sorted(_QUANTIZED)}")
        if empty:
            held = DTYPES[_QUANTIZED[bits][0]]
        if held.name not in _QUANTIZED[bits]:
            b.invalid(f"a quantized cache of {bits} bits has type {held}, expected one of {_QUANTIZED[bits]}")
        return Coding(held, *sizes, scales.k, scales.v)
    if bits:
        b.invalid(f"kv_cache_bit_width is {bits}, and the cache is not quantized")
    if held is wide:
        return None
    if held.name != "bfloat16":
        b.decline(f"a cache of {held} for queries of {wide}, without scales")
    return Coding(held, *sizes)
