"""GroupQueryAttention in numpy, from the operator's documentation, and onnx's evaluator: for what no CPU provider computes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from tools.fuzz.attention_calls import Case

Array = np.ndarray[Any, Any]


def by_onnx(case: Case) -> list[Array]:
    """The outputs of onnx's reference evaluator, floats in float32."""
    from onnx.reference import ReferenceEvaluator

    return list(ReferenceEvaluator(case.model(wide=True)).run(None, case.feeds(wide=True)))


def coded(x: Array, scale: Array, dtype: Any) -> Array:
    """Numbers divided by their scale, in the form in which a cache of ``dtype`` stores them (uint8: two of 4 bits per
    element)."""
    y = x / scale
    if dtype == np.int8:
        return np.clip(np.rint(y), -128, 127).astype(np.int8)
    if dtype == np.uint8:
        n = np.clip(np.rint(y), -8, 7).astype(np.int32) + 8
        n = np.concatenate([n, np.full((*n.shape[:-1], n.shape[-1] % 2), 8, np.int32)], -1)
        return (n[..., ::2] | n[..., 1::2] << 4).astype(np.uint8)
    return np.clip(y, -448, 448).astype(dtype)


def numbers(codes: Array, scale: Array, size: int) -> Array:
    """The inverse of `coded`, ``size`` numbers in a row."""
    if codes.dtype == np.uint8:
        wide = np.stack([codes & 15, codes >> 4], -1).reshape(*codes.shape[:-1], -1)
        return (wide[..., :size].astype(np.float64) - 8) * scale
    return codes.astype(np.float64) * scale


def _turned(x: Array, cos: Array, sin: Array, places: Array, interleaved: bool) -> Array:
    half = cos.shape[1]
    c, s = cos[places][None], sin[places][None]
    y = x.copy()
    first = slice(0, 2 * half, 2) if interleaved else slice(0, half)
    second = slice(1, 2 * half, 2) if interleaved else slice(half, 2 * half)
    y[..., first] = x[..., first] * c - x[..., second] * s
    y[..., second] = x[..., second] * c + x[..., first] * s
    return y


def _normed(x: Array, weight: Array, epsilon: float) -> Array:
    return x / np.sqrt(np.mean(x**2, -1, keepdims=True) + epsilon) * weight


def grouped(case: Case) -> list[Array]:
    """GroupQueryAttention of a case, in float64; undefined values are 0."""
    given: dict[str, Any] = dict(case.inputs)
    at = case.attributes
    wide: dict[str, Any] = {
        n: v.astype(np.float64) if v is not None and v.dtype.kind not in "iu" else v for n, v in given.items()
    }
    heads, kv_heads = at["num_heads"], at["kv_num_heads"]
    query, past_key, past_value = wide["query"], given["past_key"], given["past_value"]
    batch, length = query.shape[:2]

    def split(x: Array, count: int) -> Array:
        return x.reshape(*x.shape[:2], count, x.shape[2] // count).transpose(0, 2, 1, 3)

    if wide["key"] is None:
        every = split(query, heads + 2 * kv_heads)
        q, k, v = every[:, :heads], every[:, heads : heads + kv_heads], every[:, heads + kv_heads :]
    else:
        q, k, v = split(query, heads), split(wide["key"], kv_heads), split(wide["value"], kv_heads)
    size, fresh = q.shape[-1], k.shape[2]
    if wide["q_norm_weight"] is not None:
        q, k = (_normed(t, wide[f"{n}_norm_weight"], at.get("qk_norm_epsilon", 1e-6)) for n, t in (("q", q), ("k", k)))
    total = int(given["total_sequence_length"].item())
    room = max(total, past_key.shape[2] if past_key is not None else 0)
    kind, bits = at.get("k_quant_type", "NONE"), at.get("kv_cache_bit_width", 0)
    held = past_key.dtype if past_key is not None else {8: np.int8, 4: np.uint8}.get(bits, query.dtype)
    scales = [
        None if kind == "NONE" else wide[n].reshape((kv_heads, 1, size) if kind == "PER_CHANNEL" else (1, 1, 1))
        for n in ("k_scale", "v_scale")
    ]
    width = -(-size // 2) if bits == 4 else size
    caches = [np.zeros((batch, kv_heads, room, width), held if kind != "NONE" else np.float64) for _ in "kv"]
    for cache, past in zip(caches, (past_key, past_value), strict=True):
        if past is not None:
            cache[:, :, : past.shape[2]] = past
    y = np.zeros((batch, length, heads, size))
    scores = np.zeros((batch, heads, length, total))
    window, cap = at.get("local_window_size", -1), at.get("softcap", 0.0)
    for b in range(batch):
        end = int(given["seqlens_k"].reshape(-1)[b]) + 1
        counts = given["query_seqlens"]
        count = length if counts is None else int(counts.reshape(-1)[b])
        first = end - count if counts is not None else 0 if length == total else end - length
        places = first + np.arange(length)
        if given["position_ids"] is not None:
            ids = given["position_ids"]
            places = ids[0, 0] + np.arange(length) if counts is None and length == total and length > 1 else ids[b]
        qb, kb = q[b], k[b]
        if at.get("do_rotary"):
            tables = wide["cos_cache"], wide["sin_cache"], places, bool(at.get("rotary_interleaved"))
            qb = _turned(qb, *tables)
            kb = _turned(kb, *tables) if fresh else kb
        for cache, new, scale in zip(caches, (kb, v[b]), scales, strict=True):
            if fresh:
                rows = new[:, :count] if scale is None else coded(new[:, :count], scale, held)
                cache[b, :, first : first + count] = rows[:, : room - first]
        keys, values = (
            c[b, :, :end] if s is None else numbers(c[b, :, :end], s, size) for c, s in zip(caches, scales, strict=True)
        )
        for h in range(heads):
            kv = h // (heads // kv_heads)
            s = qb[h] @ keys[kv].T * (at.get("scale", 0.0) or 1 / math.sqrt(size))
            s = cap * np.tanh(s / cap) if cap else s
            if wide["attention_bias"] is not None:
                bias = wide["attention_bias"]
                s = s + bias[b if bias.shape[0] > 1 else 0, h if bias.shape[1] > 1 else 0, :, :end]
            distance = np.arange(end)[None] - (first + np.arange(length))[:, None]
            seen = np.ones_like(distance, bool) if not at.get("causal", 1) else distance <= 0
            seen &= distance > -window if window > 0 else True
            s = np.where(seen, s, -np.inf)
            sink = at.get("smooth_softmax", -1) == 1 or wide["head_sink"] is not None
            extra = (0.0 if wide["head_sink"] is None else wide["head_sink"][h]) if sink else -np.inf
            most = np.maximum(s.max(-1, keepdims=True), extra)
            most = np.where(np.isfinite(most), most, 0)
            power = np.exp(s - most)
            sums = power.sum(-1, keepdims=True) + np.exp(extra - most)
            share = power / np.where(sums == 0, 1, sums)
            y[b, :, h] = share @ values[kv]
            scores[b, h, :, :end] = share if at.get("qk_output") == 2 else np.where(seen, s, 0)
    made = [y.reshape(batch, length, heads * size), *caches]
    return made + ([scores] if at.get("qk_output") else [])
