"""Attention over caches in pages (domain com.microsoft: PagedAttention), for sequences without padding.

Semantics: the operator's schema in ONNX Runtime (docs/ContribOperators.md).
"""

from __future__ import annotations

from dataclasses import dataclass

from vkep.dtypes import INT64
from vkep.ir import algebra as fn
from vkep.ir.algebra import where
from vkep.ir.builder import Builder
from vkep.ir.expr import Expr
from vkep.ir.tensor import Tensor
from vkep.ops.attention.rotary import angles, expect_turns, rotated
from vkep.ops.attention.sdpa import Mask, default_scale, heads_of, per_batch, sdpa
from vkep.ops.gather import gathered, scatter_nd
from vkep.ops.generators import positions
from vkep.ops.microsoft import MICROSOFT, in_float32, outputs
from vkep.ops.normalization import row_norm
from vkep.ops.packed import Packed
from vkep.ops.registry import operator

_HALVES = ("float16", "bfloat16")


@dataclass(frozen=True, kw_only=True)
class PagedAttributes:
    """Of PagedAttention."""

    do_rotary: int = 0
    is_causal: int = 1
    k_cache_dtype: str = ""
    k_quant_type: str = "NONE"
    kv_cache_layout: str = "SEPARATE"
    kv_num_heads: int
    local_window_size: int = -1
    num_heads: int
    qk_norm_epsilon: float = 1e-6
    rotary_interleaved: int = 0
    rotary_offset: int = 0
    scale: float = 0.0
    softcap: float = 0.0
    v_cache_dtype: str = ""
    v_head_size: int = 0
    v_quant_type: str = "NONE"


@operator(
    "PagedAttention",
    domain=MICROSOFT,
    types={
        "query key value key_cache value_cache cos_cache sin_cache head_sink q_norm k_norm": _HALVES,
        "starts past_lengths block_table slots metadata": ("int32",),
        "k_scale v_scale": ("float32",),
    },
)
def paged_attention(
    b: Builder,
    query: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    key_cache: Tensor,
    value_cache: Tensor | None,
    starts: Tensor,
    past_lengths: Tensor,
    block_table: Tensor,
    cos_cache: Tensor | None = None,
    sin_cache: Tensor | None = None,
    slots: Tensor | None = None,
    head_sink: Tensor | None = None,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    metadata: Tensor | None = None,
    *,
    a: PagedAttributes,
) -> list[Tensor]:
    """Rows of new tokens [tokens, features] of sequences between ``starts``; pages [pages, size, heads, features] hold the keys
    and values, those of sequence i in the pages ``block_table[i]``.
    """
    if query.dtype.name == "bfloat16":
        lengths = starts, past_lengths, block_table
        rest = cos_cache, sin_cache, slots, head_sink, q_norm, k_norm, k_scale, v_scale, metadata
        made: list[Tensor] = in_float32(paged_attention)(
            b, query, key, value, key_cache, value_cache, *lengths, *rest, a=a
        )
        return made
    if a.kv_cache_layout != "SEPARATE" or {a.k_quant_type, a.v_quant_type} != {"NONE"} or a.rotary_offset:
        b.decline("latent or quantized caches, or an offset of the rotary embedding")
    if value_cache is None or key_cache.rank != 4 or query.rank != 2 or block_table.rank != 2 or not query.shape[0]:
        b.invalid(
            f"queries of shape {list(query.shape)}, a cache of {list(key_cache.shape)}, pages {list(block_table.shape)}; "
            "expected one token or more, 4 axes of both caches, and 2 of the pages"
        )
    tokens, (_, page, kv_heads, size) = query.shape[0], key_cache.shape
    b.expect("value_cache", value_cache, key_cache.shape)
    if kv_heads != a.kv_num_heads or kv_heads < 1 or a.num_heads % kv_heads:
        b.invalid(
            f"{a.num_heads} heads of queries, {a.kv_num_heads} of keys, a cache of {kv_heads}; "
            "expected a multiple of those of keys, which are the cache's"
        )
    packed = Packed.of(b, starts, tokens)
    batch, most = block_table.shape
    b.expect("block_table", block_table, (packed.batch, most))
    b.expect("past_seqlens", past_lengths, (batch,))
    q, k, v = _rows(b, query, key, value, a.num_heads, kv_heads, size)
    if q_norm is not None and k_norm is not None:
        q, k = (
            row_norm(b, b.contiguous(t), w, epsilon=a.qk_norm_epsilon, rms=True)[0]
            for t, w in ((q, q_norm), (k, k_norm))
        )
    place = b.pointwise("add", gathered(b, past_lengths, packed.owner), packed.place)
    if a.do_rotary:
        if cos_cache is None or sin_cache is None:
            b.invalid("do_rotary without tables of cos and sin")
        q, k = (_turned(b, t, place, cos_cache, sin_cache, bool(a.rotary_interleaved)) for t in (q, k))
    if slots is None:
        owned = b.pointwise(_page_at, packed.owner, place, page, most, shape=(tokens,))
        found = gathered(b, b.reshape(block_table, (batch * most,)), owned)
        slots = b.pointwise(_slot_at, found, place, page)
    b.expect("slot_mapping", slots, (tokens,))
    caches = [_written(b, cache, rows, slots) for cache, rows in ((key_cache, k), (value_cache, v))]
    at = b.pointwise("max", block_table, 0)
    keys, values = (
        b.reshape(gathered(b, t, at, 0, "a page", False), (batch, most * page, kv_heads, size)).transpose((0, 2, 1, 3))
        for t in caches
    )
    # queries in rows of as many as a sequence may have
    bound = _longest(b, metadata, tokens)
    each, step = b.reshape(positions(b, batch), (batch, 1)), positions(b, bound)
    rows = packed.rows(b, b.reshape(q, (tokens, a.num_heads * size)), each, step, 0, (batch, bound))
    wide = b.reshape(rows, (batch, bound, a.num_heads, size)).transpose((0, 2, 1, 3))
    heads = heads_of(b, wide, keys)
    mask = Mask(may_hide_rows=True)
    key_at, query_at = heads.key_index(b), b.expr("add", heads.query_index(b), per_batch(b, past_lengths), ctype="int")
    ends = b.pointwise("add", past_lengths, packed.lengths)
    mask.conditions.append(b.expr("lt", key_at, per_batch(b, ends), ctype="bool"))
    if a.is_causal:
        mask.conditions.append(b.expr("le", key_at, query_at, ctype="bool"))
    if a.local_window_size > 0:
        mask.conditions.append(b.expr("gt", key_at, b.expr("sub", query_at, a.local_window_size)))
    there = b.reshape(block_table, (batch, most, 1)).expand((batch, most, page))
    mask.conditions.append(b.expr("ge", b.reshape(there, (batch, 1, 1, 1, most * page)), 0, ctype="bool"))
    factor = a.scale or default_scale(size)
    y = sdpa(b, wide, keys, values, heads, mask, scale=factor, softcap=a.softcap, sink=head_sink).y
    lines = b.reshape(y.transpose((0, 2, 1, 3)), (batch * bound, a.num_heads * size))
    line = b.pointwise(_line_at, packed.owner, packed.place, bound)
    return outputs(b, gathered(b, lines, line), *caches)


def _page_at(owner: Expr, place: Expr, page: Expr, most: Expr) -> Expr:
    """The element of the block table [batch, most] with the page of a sequence's position."""
    return owner * most + fn.minimum(place / page, most - 1)


def _slot_at(found: Expr, place: Expr, page: Expr) -> Expr:
    """The row of a position in the caches, of the page that is ``found``; -1 where there is none."""
    return where(found < 0, -1, found * page + place % page)


def _line_at(owner: Expr, place: Expr, bound: Expr) -> Expr:
    """The row of a position among those of all sequences, ``bound`` of each."""
    return owner * bound + fn.minimum(place, bound - 1)


def _longest(b: Builder, metadata: Tensor | None, tokens: int) -> int:
    """A bound on the new tokens of a sequence: what the input says where it is known while planning, else all tokens."""
    known = None if metadata is None else metadata.array
    said = 0 if known is None or not known.size else int(known.reshape(-1)[0])
    return min(said, tokens) if said > 0 else tokens


def _rows(
    b: Builder, query: Tensor, key: Tensor | None, value: Tensor | None, heads: int, kv_heads: int, size: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values [tokens, heads, size], from three tensors or packed in one."""
    tokens, (wide, narrow) = query.shape[0], (heads * size, kv_heads * size)
    if key is None or value is None:
        b.expect("the packed query", query, (tokens, wide + 2 * narrow))
        parts = [query.slice(1, 0, wide), query.slice(1, wide, narrow), query.slice(1, wide + narrow, narrow)]
    else:
        b.expect("query", query, (tokens, wide))
        b.expect("key", key, (tokens, narrow))
        b.expect("value", value, (tokens, narrow))
        parts = [query, key, value]
    q, k, v = (b.reshape(t, (tokens, t.shape[1] // size, size)) for t in parts)
    return q, k, v


def _turned(b: Builder, x: Tensor, place: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """Heads [tokens, heads, size], turned by the angles of the tokens' positions."""
    alone = b.reshape(x, (1, *x.shape)).transpose((0, 2, 1, 3))
    expect_turns(b, alone, cos, sin)
    ids = b.reshape(b.cast(place, INT64), (1, x.shape[0]))
    turned = rotated(b, alone, *angles(b, cos, sin, ids), interleaved)
    return b.reshape(turned.transpose((0, 2, 1, 3)), x.shape)


def _written(b: Builder, cache: Tensor, rows: Tensor, slots: Tensor) -> Tensor:
    """The cache with the rows [tokens, heads, size] at their slots; one below 0 leaves it as it is."""
    pages, page, heads, size = cache.shape
    count, width = pages * page, heads * size
    whole = b.empty(cache.dtype, (count + 1, width))  # a row behind the cache takes what is not written
    b.copy(b.reshape(cache, (count, width)), out=whole.slice(0, 0, count))
    b.copy(b.full((1, width), 0, cache.dtype), out=whole.slice(0, count, 1))
    at = b.pointwise(lambda slot, behind: where(slot < 0, behind, slot), slots, count)
    index = b.reshape(b.cast(at, INT64), (slots.size, 1))
    made = scatter_nd(b, whole, index, b.reshape(b.cast(rows, cache.dtype), (rows.shape[0], width)))
    return b.reshape(made.slice(0, 0, count), cache.shape)
