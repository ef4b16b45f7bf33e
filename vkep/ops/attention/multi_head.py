"""ONNX Runtime's attention operators that take queries, keys and values of as many heads (domain com.microsoft:
MultiHeadAttention, DecoderMaskedMultiHeadAttention).

Semantics: ONNX Runtime, docs/ContribOperators.md.
"""

from __future__ import annotations

import numpy as np

from vkep.dtypes import FLOAT32, INT32
from vkep.ir.algebra import where
from vkep.ir.builder import Builder
from vkep.ir.expr import Expr
from vkep.ir.tensor import Tensor
from vkep.kernels.indexing.gather import GatherProblem
from vkep.ops.allowed import SINGLE
from vkep.ops.attention.kv_cache import cached, joined
from vkep.ops.attention.sdpa import (
    Attended,
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
from vkep.ops.generators import positions
from vkep.ops.microsoft import MICROSOFT, in_float32, outputs, wants_output
from vkep.ops.registry import FLOATS, operator
from vkep.sizes import whole


def _packed_parts(b: Builder, t: Tensor, heads: int, count: int) -> list[Tensor]:
    """The parts of a packed [batch, length, heads, parts, size] tensor, each [batch, heads, length, size]."""
    b.expect("the packed input", t, (*t.shape[:2], heads, count, t.shape[4]))
    parts = []
    for k in range(count):
        part = t.slice(3, k, 1)
        axes = (0, 2, 1, 4)
        parts.append(part.view([part.shape[a] for a in axes], [part.strides[a] for a in axes]))
    return parts


@operator(
    "MultiHeadAttention",
    domain=MICROSOFT,
    types={"query key value bias attention_bias past_key past_value": SINGLE},
)
@in_float32
def multi_head_attention(
    b: Builder,
    query: Tensor,
    key: Tensor | None = None,
    value: Tensor | None = None,
    bias: Tensor | None = None,
    key_padding_mask: Tensor | None = None,
    attention_bias: Tensor | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    past_sequence_length: Tensor | None = None,
    cache_indirection: Tensor | None = None,
    *,
    mask_filter_value: float = -10000.0,
    num_heads: int,
    scale: float = 0.0,
    unidirectional: int = 0,
) -> list[Tensor]:
    q, k, v = _parts(b, query, key, value, bias, num_heads)
    past = past_key.shape[2] if past_key is not None else 0
    if past_sequence_length is None:
        k, v = present_key, present_value = joined(b, past_key, k), joined(b, past_value, v)
    else:  # the past's buffers have capacity for the new rows
        if past_key is None or past_value is None:
            b.invalid("past_sequence_length without a past")
        room, past = past, whole(b.number(past_sequence_length, "past_sequence_length"))
        used = past + k.shape[2]
        if past < 0 or used > room:
            b.invalid(f"past_sequence_length is {past}: {k.shape[2]} new keys do not fit a past of {room}")
        b.expect("past_value", past_value, (*past_key.shape[:3], *past_value.shape[3:]))
        first = b.pointwise("same", past, dtype=INT32, shape=q.shape[:1])
        _, present_key, present_value = cached(b, (past_key, past_value), (q, k, v), first, room, used)
        k, v = (t.slice(2, 0, used) for t in (present_key, present_value))
        if cache_indirection is not None and q.shape[2] == 1:
            k, v = (_of_beams(b, t, cache_indirection, b.full((1,), past, INT32)) for t in (k, v))
    heads = heads_of(b, q, k)
    mask = position_mask(b, heads, past, bool(unidirectional))
    if key_padding_mask is not None:
        add_padding(b, mask, heads, key_padding_mask, mask_filter_value)
    if attention_bias is not None:
        mask.biases.append(heads.mask_view(b, attention_bias))
    done = sdpa(
        b,
        q,
        k,
        v,
        heads,
        mask,
        scale=scale or default_scale(q.shape[3]),
        scores_stage=2 if wants_output(b, 3) else None,
        merged=True,
    )
    return outputs(b, merge_heads(b, done.y), present_key, present_value, done.scores)


@operator(
    "DecoderMaskedMultiHeadAttention",
    domain=MICROSOFT,
    types={
        "query key value attention_bias past_key past_value bias": FLOATS,
        "mask_index past_sequence_length beam_width cache_indirection": ("int32",),
    },
)
def decoder_masked_multi_head_attention(
    b: Builder,
    query: Tensor,
    key: Tensor | None = None,
    value: Tensor | None = None,
    mask_index: Tensor | None = None,
    attention_bias: Tensor | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    past_sequence_length: Tensor | None = None,
    beam_width: Tensor | None = None,
    cache_indirection: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    mask_filter_value: float = -10000.0,
    num_heads: int,
    output_qk: int = 0,
    past_present_share_buffer: int = 0,
    scale: float = 0.0,
) -> list[Tensor]:
    """One new token of each sequence. The buffers of keys and values have capacity for more, in the layout of ONNX
    Runtime's CPU provider: [batch, heads, room, size]. With beams, ``cache_indirection`` has the beam whose buffer
    holds each position."""
    if query.rank != 3 or query.shape[1] != 1 or key is None or value is None:
        b.decline(f"queries of shape {list(query.shape)}; the kernels take one token, apart from its key and value")
    parts = _parts(b, query, key, value, bias, num_heads)
    if past_key is not None and not past_present_share_buffer:
        b.decline("buffers of no room")
    stage = 2 if wants_output(b, 3) and output_qk else None
    caches = None if past_key is None or past_value is None else (past_key, past_value)
    mask = mask_index, mask_filter_value
    done, *present = one_token(
        b, parts, caches, past_sequence_length, cache_indirection, mask, attention_bias, scale, stage
    )
    return outputs(b, merge_heads(b, done.y), *present, done.scores)


def one_token(
    b: Builder,
    parts: tuple[Tensor, Tensor, Tensor],
    caches: tuple[Tensor, Tensor] | None,
    past_sequence_length: Tensor | None,
    cache_indirection: Tensor | None,
    mask_index: tuple[Tensor | None, float],
    attention_bias: Tensor | None,
    scale: float,
    scores_stage: int | None = None,
) -> tuple[Attended, Tensor | None, Tensor | None]:
    """Attention of a query [batch, heads, 1, size], and the buffers of keys and values with the new ones added. Without
    buffers the given keys are all."""
    q, k, v = parts
    present_key = present_value = reach = None
    if caches is not None:
        if past_sequence_length is None or past_sequence_length.size != 1:
            b.decline("buffers without their length")
        past_key, past_value = caches
        padding = mask_index[0]
        room, batch = past_key.shape[2], q.shape[0]
        b.expect("past_value", past_value, past_key.shape)
        used = padding.shape[1] if padding is not None and padding.rank == 2 else room
        if attention_bias is not None:
            used = min(used, attention_bias.shape[-1])
        if scores_stage is not None:  # they have a column for each key
            used = min(used, whole(b.number(past_sequence_length, "past_sequence_length")) + 1)
        known = used < room
        b.expect_range("past_sequence_length", past_sequence_length, used - 1 if known else 0, used - 1)
        reach = b.reshape(past_sequence_length, (1,))
        first = b.pointwise("same", reach, dtype=INT32, shape=(batch,))
        _, present_key, present_value = cached(b, (past_key, past_value), (q, k, v), first, room, used)
        k, v = (t.slice(2, 0, used) for t in (present_key, present_value))
        if cache_indirection is not None:
            k, v = (_of_beams(b, t, cache_indirection, reach) for t in (k, v))
    heads = heads_of(b, q, k)
    mask = Mask()
    if reach is not None:
        mask.conditions.append(b.expr("le", heads.key_index(b), reach))
    if mask_index[0] is not None:
        add_padding(b, mask, heads, mask_index[0], mask_index[1])
    if attention_bias is not None:
        mask.biases.append(heads.mask_view(b, attention_bias.slice(attention_bias.rank - 1, 0, heads.keys)))
    done = sdpa(
        b, q, k, v, heads, mask, scale=scale or default_scale(q.shape[3]), scores_stage=scores_stage, merged=True
    )
    return done, present_key, present_value


def _of_beams(b: Builder, buffer: Tensor, indirection: Tensor, length: Tensor) -> Tensor:
    """Keys or values [batch, heads, keys, size] of which position t, before ``length``, is that of the beam that
    ``indirection`` [batch / beams, beams, most] says.
    """
    batch, heads, keys, size = buffer.shape
    if indirection.rank != 3 or indirection.shape[0] * indirection.shape[1] != batch or indirection.shape[2] < keys:
        b.invalid(f"cache_indirection has shape {list(indirection.shape)} for {batch} sequences of up to {keys} keys")
    beams = indirection.shape[1]
    b.expect_range("cache_indirection", indirection, 0, beams - 1)
    beam = b.reshape(indirection.slice(2, 0, keys), (batch, 1, keys))
    own = np.arange(batch, dtype=np.int32).reshape(batch, 1, 1)
    first = b.constant(own // beams * beams)
    head = b.constant(np.arange(heads, dtype=np.int32).reshape(1, heads, 1))

    def row_at(place: Expr, head: Expr, length: Expr, first: Expr, beam: Expr, own: Expr) -> Expr:
        row = where(place < length, first + beam, own)
        return (row * heads + head) * keys + place

    indices = (positions(b, keys), head, length, first, beam, b.constant(own))
    at = b.pointwise(row_at, *indices, shape=(batch, heads, keys))
    out = b.empty(buffer.dtype, buffer.shape)
    rows = batch * heads * keys
    b.compute(GatherProblem(1, rows, size, rows, buffer.dtype.name, "int32"), [b.contiguous(buffer), at], [out])
    return out


def _parts(
    b: Builder, query: Tensor, key: Tensor | None, value: Tensor | None, bias: Tensor | None, num_heads: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values [batch, heads, length, size] from any of the operator's layouts."""
    if query.rank == 5:
        if bias is not None:
            b.decline("a bias on packed queries, keys and values")
        q, k, v = _packed_parts(b, query, num_heads, 3)
        return q, k, v
    if key is None or (value is None and key.rank != 5):
        b.invalid("keys or values are missing, and queries are not packed with them")
    if key.rank == 3:
        b.expect("key", key, (*key.shape[:2], query.shape[-1]))
    starts = (0, query.shape[-1], 2 * query.shape[-1])
    if bias is not None:
        last = value.shape[-1] if value is not None and value.rank == 3 else bias.size - starts[2]
        b.expect("bias", bias, (starts[2] + last,))

    def heads_with(t: Tensor, part: int) -> Tensor:
        if bias is not None:
            t = b.pointwise("add", t, bias.slice(0, starts[part], t.shape[-1]), shape=t.shape)
        return split_heads(b, t, num_heads)

    q = heads_with(query, 0)
    if key.rank == 5:
        k, v = _packed_parts(b, key, num_heads, 2)
        return q, k, v
    assert value is not None
    if key.rank == 4:  # already [batch, heads, length, size]
        return q, key, value
    return q, heads_with(key, 1), heads_with(value, 2)


def add_padding(b: Builder, mask: Mask, heads: Heads, padding: Tensor, filter_value: float) -> None:
    """The bias of a padding mask, which is added to scores. The mask is one of: [batch, keys], [batch, queries, keys]
    or [batch, 1, most, most] of 1 and 0 (the last for queries that are the last of the keys), where what is below 0 hides
    too, as in ONNX Runtime; [batch] lengths; [2 * batch] ends, then starts; [3 * batch + 2] that begins with lengths.
    [batch or 1, 1] has no effect."""
    batch, queries, keys = heads.batch, heads.queries, heads.keys
    if padding.rank == 2 and padding.shape[1] == 1 and padding.shape[0] in (1, batch) and keys != 1:
        return
    rows = 1
    if padding.rank == 1 and padding.size in (batch, 2 * batch, 3 * batch + 2):
        counts = b.expr("lt", heads.key_index(b), per_batch(b, padding.slice(0, 0, batch)), ctype="bool")
        if padding.size == 2 * batch:
            starts = per_batch(b, padding.slice(0, batch, batch))
            counts = b.expr("and", counts, b.expr("ge", heads.key_index(b), starts, ctype="bool"))
    else:
        if padding.shape == (batch, keys):
            view = b.reshape(padding, (batch, 1, 1, 1, keys))
        elif padding.shape == (batch, queries, keys):
            rows, view = queries, b.reshape(padding, (batch, 1, 1, queries, keys))
        elif padding.rank == 4 and padding.shape[:2] == (batch, 1) and all(size >= keys for size in padding.shape[2:]):
            part = padding.slice(2, keys - queries, queries).slice(3, 0, keys)
            rows, view = queries, part.view((batch, 1, *part.shape[1:]), (part.strides[0], 0, *part.strides[1:]))
        else:
            b.decline(f"a padding mask of shape {list(padding.shape)} for {batch} sequences of {keys} keys")
        counts = b.expr("gt", view, 0)
    added = b.expr("where", counts, 0.0, filter_value, ctype="float")
    mask.biases.append(b.store(added, FLOAT32, shape=(batch, 1, 1, rows, keys)))
