"""ONNX Runtime's attention operators that project their input themselves, or take sequences without their padding (domain
com.microsoft): Attention, QAttention, DecoderAttention, DecoderMaskedSelfAttention, PackedAttention, PackedMultiHeadAttention;
and what takes padding away and puts it back.

Semantics: ONNX Runtime, docs/ContribOperators.md.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vkep.dtypes import INT64
from vkep.ir.builder import LARGEST, Builder
from vkep.ir.tensor import Tensor
from vkep.ops.allowed import BYTES, SINGLE
from vkep.ops.attention.kv_cache import joined
from vkep.ops.attention.multi_head import add_padding, one_token
from vkep.ops.attention.sdpa import (
    Mask,
    default_scale,
    heads_of,
    merge_heads,
    per_batch,
    position_mask,
    sdpa,
    split_heads,
)
from vkep.ops.contraction import matrix_product
from vkep.ops.gather import gathered, scatter_nd
from vkep.ops.microsoft import MICROSOFT, in_float32, outputs, wants_output
from vkep.ops.quantized.products import product_sums
from vkep.ops.registry import FLOATS, operator


def _sizes(b: Builder, x: Tensor, weights: Tensor, given: Sequence[int] | None) -> list[int]:
    """Features of queries, keys and values, of which ``weights`` has a column each."""
    sizes = list(given or [weights.shape[-1] // 3] * 3)
    if len(sizes) != 3 or min(sizes) <= 0 or sizes[0] != sizes[1]:
        b.invalid(f"qkv_hidden_sizes are {sizes}, expected three, those of queries and keys equal")
    b.expect("weights", weights, (x.shape[-1], sum(sizes)))
    return sizes


def _split(b: Builder, product: Tensor, sizes: Sequence[int], num_heads: int) -> list[Tensor]:
    """Queries, keys and values [batch, heads, length, size] of [batch, length, features]."""
    starts = (0, sizes[0], sizes[0] + sizes[1])
    return [split_heads(b, product.slice(2, start, size), num_heads) for start, size in zip(starts, sizes, strict=True)]


def _attended(
    b: Builder,
    parts: list[Tensor],
    mask_index: Tensor | None,
    past: Tensor | None,
    attention_bias: Tensor | None,
    scale: float,
    filter_value: float,
    causal: bool,
) -> list[Tensor]:
    """The result, and keys and values as the next past [2, batch, heads, length, size]."""
    q, k, v = parts
    before = 0
    if past is not None:
        if past.rank != 5 or past.shape[0] != 2:
            b.invalid(f"past has shape {list(past.shape)}, expected [2, batch, heads, length, size]")
        before = past.shape[3]
        halves = [past.slice(0, i, 1) for i in range(2)]
        k, v = (joined(b, h.view(h.shape[1:], h.strides[1:]), t) for h, t in zip(halves, (k, v), strict=True))
    heads = heads_of(b, q, k)
    mask = position_mask(b, heads, before, causal)
    if mask_index is not None:
        if mask_index.rank == 1 and mask_index.size >= heads.batch:
            b.expect_range("mask_index", mask_index.slice(0, 0, heads.batch), 0, LARGEST - 1)
        add_padding(b, mask, heads, mask_index, filter_value)
    if attention_bias is not None:
        mask.biases.append(heads.mask_view(b, attention_bias))
    done = sdpa(b, q, k, v, heads, mask, scale=scale or default_scale(q.shape[3]), merged=True)
    present = None
    if wants_output(b, 1):
        present = b.empty(k.dtype, (2, *k.shape))
        for index, t in enumerate((k, v)):
            part = present.slice(0, index, 1)
            b.copy(t, out=part.view(part.shape[1:], part.strides[1:]))
    return outputs(b, merge_heads(b, done.y), present)


@operator(
    "Attention",
    domain=MICROSOFT,
    types={"x weights bias past attention_bias": SINGLE, "mask_index": ("int32",)},
)
@in_float32
def attention(
    b: Builder,
    x: Tensor,
    weights: Tensor,
    bias: Tensor | None = None,
    mask_index: Tensor | None = None,
    past: Tensor | None = None,
    attention_bias: Tensor | None = None,
    past_sequence_length: Tensor | None = None,
    *,
    do_rotary: int = 0,
    mask_filter_value: float = -10000.0,
    num_heads: int,
    past_present_share_buffer: int = 0,
    qkv_hidden_sizes: list[int] | None = None,
    rotary_embedding_dim: int = 0,
    scale: float = 0.0,
    unidirectional: int = 0,
) -> list[Tensor]:
    if do_rotary or past_present_share_buffer:
        b.decline("rotary embedding or a shared cache inside of Attention")
    sizes = _sizes(b, x, weights, qkv_hidden_sizes)
    b.expect("bias", bias, (sum(sizes),))
    product = matrix_product(b, x, weights)
    if bias is not None:
        product = b.pointwise("add", product, bias)
    parts = _split(b, product, sizes, num_heads)
    return _attended(b, parts, mask_index, past, attention_bias, scale, mask_filter_value, bool(unidirectional))


@operator(
    "QAttention",
    domain=MICROSOFT,
    types={
        "x x_zero": BYTES,
        "weights w_zero": BYTES,
        "bias x_scale w_scale past": FLOATS,
        "mask_index": ("int32",),
    },
)
def qattention(
    b: Builder,
    x: Tensor,
    weights: Tensor,
    bias: Tensor,
    x_scale: Tensor,
    w_scale: Tensor,
    mask_index: Tensor | None = None,
    x_zero: Tensor | None = None,
    w_zero: Tensor | None = None,
    past: Tensor | None = None,
    *,
    do_rotary: int = 0,
    mask_filter_value: float = -10000.0,
    num_heads: int,
    past_present_share_buffer: int = 0,
    scale: float = 0.0,
    unidirectional: int = 0,
) -> list[Tensor]:
    if do_rotary or past_present_share_buffer:
        b.decline("rotary embedding or a shared cache inside of QAttention")
    sizes = _sizes(b, x, weights, None)
    b.expect("bias", bias, (sum(sizes),))
    for what, tensor in {"input_scale": x_scale, "input_zero_point": x_zero}.items():
        b.expect(what, tensor, (), (1,))
    for what, tensor in {"weight_scale": w_scale, "weight_zero_point": w_zero}.items():
        b.expect(what, tensor, (), (1,), (sum(sizes),))
    total = product_sums(b, x, weights, x_zero, w_zero, may_round=True)
    factor = b.expr("mul", x_scale, w_scale, ctype="float")
    value = b.expr("add", b.expr("cast", total, ctype="float") * factor, bias)
    product = b.store(value, bias.dtype, shape=total.shape)
    parts = _split(b, product, sizes, num_heads)
    return _attended(b, parts, mask_index, past, None, scale, mask_filter_value, bool(unidirectional))


@operator(
    "DecoderMaskedSelfAttention",
    domain=MICROSOFT,
    types={
        "x weights bias past attention_bias": FLOATS,
        "mask_index past_sequence_length beam_width cache_indirection": ("int32",),
    },
)
def decoder_masked_self_attention(
    b: Builder,
    x: Tensor,
    weights: Tensor,
    bias: Tensor,
    mask_index: Tensor | None,
    past: Tensor,
    attention_bias: Tensor | None,
    past_sequence_length: Tensor,
    beam_width: Tensor | None = None,
    cache_indirection: Tensor | None = None,
    *,
    do_rotary: int = 0,
    mask_filter_value: float = -10000.0,
    num_heads: int,
    past_present_share_buffer: int = 0,
    scale: float = 0.0,
) -> list[Tensor]:
    """One new token of each sequence. The buffer of keys has the layout of ONNX Runtime's CUDA provider: [batch, heads,
    size / n, room, n] for n elements of 16 bytes."""
    if do_rotary or not past_present_share_buffer:
        b.decline("rotary embedding, or buffers of no room")
    if x.rank != 3 or x.shape[1] != 1 or past.rank != 5 or past.shape[0] != 2:
        b.invalid(f"an input of shape {list(x.shape)}, a past of {list(past.shape)}; expected one token, and [2, ...]")
    sizes = _sizes(b, x, weights, None)
    b.expect("bias", bias, (sum(sizes),))
    q, k, v = _split(b, b.pointwise("add", matrix_product(b, x, weights), bias), sizes, num_heads)
    each = 16 // x.dtype.itemsize
    _, batch, heads, room, size = past.shape
    b.expect("past", past, (2, *k.shape[:2], room, k.shape[3]))
    if size % each:
        b.invalid(f"heads of {size}, expected a multiple of {each}")
    keys, values = (b.reshape(past.slice(0, part, 1), past.shape[1:]) for part in range(2))
    groups = b.reshape(keys, (batch, heads, size // each, room, each))
    plain = b.reshape(groups.transpose((0, 1, 3, 2, 4)), keys.shape)
    done, present_key, present_value = one_token(
        *(b, (q, k, v), (plain, values), past_sequence_length, cache_indirection, (mask_index, mask_filter_value)),
        attention_bias,
        scale,
    )
    assert present_key is not None and present_value is not None
    present = b.empty(past.dtype, past.shape)
    laid = b.reshape(present_key, (batch, heads, room, size // each, each)).transpose((0, 1, 3, 2, 4))
    for index, t in enumerate((b.reshape(laid, keys.shape), present_value)):
        part = present.slice(0, index, 1)
        b.copy(t, out=part.view(part.shape[1:], part.strides[1:]))
    return outputs(b, merge_heads(b, done.y), present)


@operator(
    "DecoderAttention",
    domain=MICROSOFT,
    types={
        "query key q_weight kv_weight bias key_cache value_cache": FLOATS,
        "key_padding_mask static_kv use_past has_layer_state has_key_padding_mask": ("bool",),
    },
)
def decoder_attention(
    b: Builder,
    query: Tensor,
    key: Tensor,
    q_weight: Tensor,
    kv_weight: Tensor,
    bias: Tensor,
    key_padding_mask: Tensor | None,
    key_cache: Tensor | None,
    value_cache: Tensor | None,
    static_kv: Tensor,
    use_past: Tensor,
    has_layer_state: Tensor,
    has_key_padding_mask: Tensor,
    *,
    mask_filter_value: float = -10000.0,
    num_heads: int,
) -> list[Tensor]:
    """Attention with keys of the query itself or of a key (``static_kv``), and of a cache (``use_past`` and
    ``has_layer_state``); the layout of sequences is [length, batch, features]."""
    crossed, masked = (
        bool(b.number(static_kv, "static_kv")),
        bool(b.number(has_key_padding_mask, "has_key_padding_mask")),
    )
    cached = bool(b.number(use_past, "use_past")) and bool(b.number(has_layer_state, "has_layer_state"))
    if query.rank != 3 or key.rank != 3:
        b.invalid(f"a query of shape {list(query.shape)}, a key of {list(key.shape)}; expected 3 axes")
    hidden = query.shape[2]
    b.expect("q_weight", q_weight, (hidden, hidden))
    b.expect("kv_weight", kv_weight, (hidden, 2 * hidden))
    b.expect("bias", bias, (3 * hidden,))
    b.expect("key", key, (key.shape[0], *query.shape[1:]))

    def projected(t: Tensor, matrix: Tensor, first: int) -> Tensor:
        rows = b.pointwise("add", matrix_product(b, t, matrix), bias.slice(0, first, matrix.shape[1]))
        return rows.transpose((1, 0, 2))

    q = split_heads(b, projected(query, q_weight, 0), num_heads)
    if cached and (key_cache is None or value_cache is None):
        b.invalid("a cache is asked for, and missing")
    if cached and crossed:
        k, v = key_cache, value_cache
    else:
        both = projected(key if crossed else query, kv_weight, hidden)
        k, v = (split_heads(b, both.slice(2, part * hidden, hidden), num_heads) for part in range(2))
        if cached:
            k, v = joined(b, key_cache, k), joined(b, value_cache, v)
    assert k is not None and v is not None
    heads = heads_of(b, q, k)
    mask = Mask(may_hide_rows=masked)
    if masked:
        if key_padding_mask is None:
            b.invalid("key_padding_mask is asked for, and missing")
        b.expect("key_padding_mask", key_padding_mask, (heads.batch, heads.keys))
        hidden_keys = b.reshape(key_padding_mask, (heads.batch, 1, 1, 1, heads.keys))
        mask.conditions.append(b.expr("not", hidden_keys))
    done = sdpa(b, q, k, v, heads, mask, scale=default_scale(q.shape[3]))
    return outputs(b, merge_heads(b, done.y).transpose((1, 0, 2)), k, v)


# ---- sequences without their padding


def _padded(b: Builder, rows: Tensor, offsets: Tensor) -> Tensor:
    """[batch, length, width]: row i of ``rows`` [tokens, width] at ``offsets`` [batch, length] (flat), zeros at the others."""
    if rows.rank != 2 or offsets.rank != 2 or rows.shape[0] > offsets.size:
        b.invalid(
            f"rows have shape {list(rows.shape)} and offsets {list(offsets.shape)}, "
            "expected [tokens, width] and [batch, length] with room for the tokens"
        )
    tokens, width = rows.shape
    at = b.reshape(offsets, (offsets.size,)).slice(0, 0, tokens)
    wide = b.cast(b.reshape(at, (tokens, 1)), INT64)
    zeros = b.full((offsets.size, width), 0, rows.dtype)
    return b.reshape(scatter_nd(b, zeros, wide, rows), (*offsets.shape, width))


def _without_padding(b: Builder, x: Tensor, offsets: Tensor, tokens: int) -> Tensor:
    """The inverse of `_padded`."""
    at = b.reshape(offsets, (offsets.size,)).slice(0, 0, tokens)
    return gathered(b, b.reshape(x, (offsets.size, x.shape[2])), at, 0, "a token's offset", False)


def _packed(
    b: Builder,
    rows: Tensor,
    sizes: Sequence[int],
    num_heads: int,
    offsets: Tensor,
    ends: Tensor,
    bias: Tensor | None,
    scale: float,
) -> Tensor:
    """Attention of packed tokens' queries, keys and values ``rows`` [tokens, features] within their sequences."""
    q, k, v = _split(b, _padded(b, rows, offsets), sizes, num_heads)
    heads = heads_of(b, q, k)
    b.expect("cumulative_sequence_length", ends, (heads.batch + 1,))
    length = b.pointwise("sub", ends.slice(0, 1, heads.batch), ends.slice(0, 0, heads.batch))
    mask = Mask(may_hide_rows=True)
    mask.conditions.append(b.expr("lt", heads.key_index(b), per_batch(b, length), ctype="bool"))
    if bias is not None:
        mask.biases.append(heads.mask_view(b, bias))
    done = sdpa(b, q, k, v, heads, mask, scale=scale or default_scale(q.shape[3]), merged=True)
    return _without_padding(b, merge_heads(b, done.y), offsets, rows.shape[0])


@operator(
    "PackedAttention",
    domain=MICROSOFT,
    types={"x weights bias attention_bias": FLOATS, "token_offset ends": ("int32",)},
)
def packed_attention(
    b: Builder,
    x: Tensor,
    weights: Tensor,
    bias: Tensor,
    token_offset: Tensor,
    ends: Tensor,
    attention_bias: Tensor | None = None,
    *,
    num_heads: int,
    qkv_hidden_sizes: list[int] | None = None,
    scale: float = 0.0,
) -> Tensor:
    sizes = _sizes(b, x, weights, qkv_hidden_sizes)
    b.expect("bias", bias, (sum(sizes),))
    rows = b.pointwise("add", matrix_product(b, x, weights), bias)
    return _packed(b, rows, sizes, num_heads, token_offset, ends, attention_bias, scale)


@operator(
    "PackedMultiHeadAttention",
    domain=MICROSOFT,
    types={"query key value bias attention_bias": FLOATS, "token_offset ends": ("int32",)},
)
def packed_multi_head_attention(
    b: Builder,
    query: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    bias: Tensor | None,
    token_offset: Tensor,
    ends: Tensor,
    attention_bias: Tensor | None = None,
    *,
    mask_filter_value: float = -10000.0,
    num_heads: int,
    scale: float = 0.0,
) -> Tensor:
    tokens = query.shape[0] if query.rank else 0
    if key is None or value is None:
        if query.rank != 4:
            b.invalid(
                f"queries of shape {list(query.shape)}, expected [tokens, heads, 3, size] where keys are with them"
            )
        width = num_heads * query.shape[3]
        b.expect("query", query, (tokens, num_heads, 3, query.shape[3]))
        parts = [b.reshape(query.slice(2, i, 1), (tokens, width)) for i in range(3)]
    else:
        parts = [query, key, value]
        for what, tensor in {"query": query, "key": key}.items():
            b.expect(what, tensor, (tokens, query.shape[-1]))
        b.expect("value", value, (tokens, value.shape[-1]))
    sizes = [t.shape[1] for t in parts]
    b.expect("bias", bias, (sum(sizes),))
    rows, start = b.empty(query.dtype, (tokens, sum(sizes))), 0
    for part in parts:
        out = rows.slice(1, start, part.shape[1])
        if bias is None:
            b.copy(part, out=out)
        else:
            b.pointwise("add", part, bias.slice(0, start, part.shape[1]), out=out)
        start += part.shape[1]
    return _packed(b, rows, sizes, num_heads, token_offset, ends, attention_bias, scale)


@operator("RestorePadding", domain=MICROSOFT, types={"x": FLOATS, "token_offset": ("int32",)})
def restore_padding(b: Builder, x: Tensor, token_offset: Tensor) -> Tensor:
    return _padded(b, x, token_offset)


@operator("RemovePadding", domain=MICROSOFT, types={"x": FLOATS, "counts": ("int32",)})
def remove_padding(b: Builder, x: Tensor, counts: Tensor) -> list[Tensor]:
    """The number of tokens depends on the counts' content: where those are computed, the node is planned once they are
    known."""
    if x.rank != 3:
        b.invalid(f"the input has shape {list(x.shape)}, expected [batch, length, width]")
    batch, length = x.shape[:2]
    b.expect("sequence_token_count", counts, (batch,))
    known = b.value(counts, "sequence_token_count")
    if known.size and not 0 <= known.min() <= known.max() <= length:
        b.invalid(f"sequence_token_count is {known.tolist()}, expected 0 to {length}, the length of the sequences")
    real = np.arange(length) < known[:, None]
    offsets = np.concatenate([np.flatnonzero(real), np.flatnonzero(~real)]).astype(np.int32).reshape(batch, length)
    ends = np.concatenate([[0], np.cumsum(known)]).astype(np.int32)
    at = b.constant(offsets)
    rows = _without_padding(b, x, at, int(known.sum()))
    return outputs(b, rows, at, b.constant(ends), b.constant(known.max(initial=0).astype(np.int32).reshape(1)))
