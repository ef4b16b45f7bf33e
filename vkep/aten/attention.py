"""Attention, caches of keys and values, and rotary position embeddings.

A position that is known only when the model runs (``start_pos``) is data, not a shape: attention covers the whole cache
under a mask, so that one plan serves every position.
"""

from __future__ import annotations

from vkep.aten.builder import BOOL, INT64, GraphBuilder, Size, Val
from vkep.aten.registry import aten

_TO_HEADS = (0, 2, 1, 3)


def _attended(b: GraphBuilder, q: Val, k: Val, v: Val, mask: Val | None, scale: float | None) -> Val:
    """Attention over [batch, heads, length, size]; key heads may be shared by several query heads."""
    if mask is not None and mask.elem != BOOL:
        mask = b.cast(mask, q.elem)
    dims = [*q.dims[:-1], v.dims[-1]]
    return b.op("Attention", q, b.cast(k, q.elem), b.cast(v, q.elem), mask, scale=scale, dims=dims)


@aten("et_vk.sdpa.default")
def sdpa(b: GraphBuilder, q: Val, k: Val, v: Val, attn_mask: Val | None = None, scale: float | None = None) -> Val:
    if q.rank not in (3, 4) or k.rank != q.rank:
        b.decline(f"queries of rank {q.rank} and keys of rank {k.rank}; expected 3 or 4")
    if q.rank == 4:
        return _attended(b, q, k, v, attn_mask, scale)
    mask = attn_mask and (b.unsqueeze(attn_mask, [1]) if attn_mask.rank == 3 else attn_mask)
    q, k, v = (b.unsqueeze(t, [1]) for t in (q, k, v))
    return b.squeeze(_attended(b, q, k, v, mask, scale), [1])


def _written(b: GraphBuilder, cache: Val, value: Val, start_pos: Size) -> Val:
    """Return ``cache`` [batch, positions, heads, size] with ``value`` written from a position on."""
    batch = b.size(cache, 0)
    position = b.reshape(b.number(start_pos, INT64), [1])
    if batch != 1:
        position = b.op("Expand", position, b.ints([batch]), dims=(batch if isinstance(batch, int) else None,))
    return b.op("TensorScatter", cache, b.cast(value, cache.elem), position, axis=1, dims=cache.dims)


@aten("llama.update_cache.default", mutates=("cache",))
def update_cache(b: GraphBuilder, value: Val, cache: Val, start_pos: Size) -> list[Val]:
    """Return the updated cache, or the one-element placeholder that the exporter puts in its place."""
    written = _written(b, cache, value, start_pos)
    result = b.results[0]
    return [written if result.rank == cache.rank else b.filled(result.shape, 0, result.elem), written]


@aten("llama.custom_sdpa.default")
def custom_sdpa(
    b: GraphBuilder,
    query: Val,
    key: Val,
    value: Val,
    start_pos: Size,
    attn_mask: Val | None = None,
    drpout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
) -> Val:
    """Attention of queries [batch, length, heads, size] over caches [batch, positions, heads, size].

    Without a mask a query sees the keys up to ``start_pos + length``, and with ``is_causal`` those up to its own
    position.
    """
    if attn_mask is None:
        length, positions = b.size(query, 1), b.size(key, 1)
        rows = b.range(length, start_pos)
        if not is_causal:
            last = b.arithmetic("Sub", b.arithmetic("Add", start_pos, length), 1)
            rows = b.op("Expand", b.number(last, INT64), b.ints([length]), dims=rows.dims)
        attn_mask = b.op("LessOrEqual", b.range(positions), b.unsqueeze(rows, [1]))
    q, k, v = (b.transpose(t, _TO_HEADS) for t in (query, key, value))
    return b.transpose(_attended(b, q, k, v, attn_mask, scale), _TO_HEADS)


@aten("llama.sdpa_with_kv_cache.default", mutates=("key_cache", "value_cache"))
def sdpa_with_kv_cache(
    b: GraphBuilder,
    query: Val,
    key: Val,
    value: Val,
    key_cache: Val,
    value_cache: Val,
    start_pos: Size,
    seq_len: Size,
    attn_mask: Val | None = None,
    drpout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
) -> list[Val]:
    keys, values = _written(b, key_cache, key, start_pos), _written(b, value_cache, value, start_pos)
    out = custom_sdpa(b, query, keys, values, start_pos, attn_mask, drpout_p, is_causal, scale)
    return [out, keys, values]


# ---- rotary embeddings


def _turned(b: GraphBuilder, x: tuple[Val, Val], cos: tuple[Val, Val], sin: tuple[Val, Val]) -> tuple[Val, Val]:
    """Rotate pairs: ``(x0 cos0 - x1 sin0, x1 cos1 + x0 sin1)``."""
    first = b.op("Sub", b.op("Mul", x[0], cos[0]), b.op("Mul", x[1], sin[0]))
    return first, b.op("Add", b.op("Mul", x[1], cos[1]), b.op("Mul", x[0], sin[1]))


def _interleaved(b: GraphBuilder, x: Val, cos: Val, sin: Val) -> Val:
    """Neighbours of the last axis are a pair; ``cos`` and ``sin`` broadcast against [..., size / 2]."""
    size = b.fixed(x, x.rank - 1)
    if size % 2:
        b.decline(f"heads of {size} elements")
    lead = [b.size(x, k) for k in range(x.rank - 1)]
    pairs = b.reshape(x, [*lead, size // 2, 2])
    parts = [b.slice(pairs, x.rank, k, k + 1) for k in range(2)]
    cos, sin = (b.unsqueeze(b.cast(t, x.elem), [t.rank]) for t in (cos, sin))
    turned = _turned(b, (parts[0], parts[1]), (cos, cos), (sin, sin))
    joined = b.op("Concat", *turned, axis=x.rank, dims=[*x.dims[:-1], size // 2, 2])
    return b.reshape(joined, [*lead, size])


@aten("et_vk.apply_rotary_emb.default")
def apply_rotary_emb(b: GraphBuilder, xq: Val, xk: Val, freqs_cos: Val, freqs_sin: Val) -> list[Val]:
    """[batch, length, heads, size] with frequencies [length, size / 2], or [length, heads, size / 2]."""
    if freqs_cos.rank == 2:
        freqs_cos, freqs_sin = b.unsqueeze(freqs_cos, [1]), b.unsqueeze(freqs_sin, [1])
    return [_interleaved(b, x, freqs_cos, freqs_sin) for x in (xq, xk)]


@aten("et_vk.apply_rotary_emb_interleaved.default")
def apply_rotary_emb_interleaved(b: GraphBuilder, x: Val, freqs_cis: Val) -> Val:
    """[batch, length, size] with pairs (cos, sin) for each pair of elements."""
    pairs = b.reshape(freqs_cis, [b.size(x, 1), b.fixed(x, 2) // 2, 2])
    cos, sin = (b.squeeze(b.slice(pairs, 2, k, k + 1), [2]) for k in range(2))
    return _interleaved(b, x, cos, sin)


@aten("et_vk.apply_rotary_emb_hf.default")
def apply_rotary_emb_hf(
    b: GraphBuilder, xq: Val, xk: Val, freqs_cos: Val, freqs_sin: Val, start_pos: Size
) -> list[Val]:
    """The two halves of the rotated part form the pairs; frequencies [positions, rotated size] are read from a position
    on."""
    rows = b.range(b.size(xq, 1), start_pos)
    turned_size = freqs_cos.shape[1]
    half = turned_size // 2
    tables = []
    for table in (freqs_cos, freqs_sin):
        read = b.op("Gather", table, rows, axis=0, dims=[*rows.dims, turned_size])
        read = b.unsqueeze(b.cast(read, xq.elem), [1])
        tables.append((b.slice(read, 2, 0, half), b.slice(read, 2, half, turned_size)))

    def turned(x: Val) -> Val:
        last, size = x.rank - 1, b.fixed(x, x.rank - 1)
        parts = list(_turned(b, (b.slice(x, last, 0, half), b.slice(x, last, half, turned_size)), *tables))
        if size != turned_size:
            parts.append(b.slice(x, last, turned_size, 2**63 - 1))
        return b.op("Concat", *parts, axis=last, dims=x.dims)

    return [turned(x) for x in (xq, xk)]
