"""Calls of GroupQueryAttention, drawn from what each input and attribute may be."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from tools.fuzz.attention_calls import (
    FLOATS,
    MICROSOFT,
    Array,
    Case,
    Rng,
    a_dtype,
    floats_of,
    maybe,
    one_of,
    tables,
    without_defaults,
)


def grouped(rng: Rng) -> Case:
    """GroupQueryAttention with anything of its schema."""
    dtype = a_dtype(rng)
    new = floats_of(rng, dtype)
    kv_heads, group, size = one_of(rng, 1, 2, 3), one_of(rng, 1, 2, 4), one_of(rng, 16, 32)
    heads = kv_heads * group
    stage = one_of(rng, "prompt", "prompt in a buffer", "token", "token in a buffer", "chunk", "padded chunk", "shared")
    batch = 1 if stage == "chunk" else int(rng.integers(1, 4))
    length = 1 if "token" in stage else int(rng.integers(1, 6))
    room = {"prompt": 0, "token": 7, "prompt in a buffer": 9}.get(stage, 12)
    counts: Array | None = None
    if "prompt" in stage:
        lengths = rng.integers(1, length + 1, batch)
        lengths[0] = length
    elif stage == "token":
        lengths = rng.integers(1, room + 2, batch)
        lengths[0] = room + 1
    elif stage == "padded chunk":
        counts = np.asarray(rng.integers(0, length + 1, batch), np.int32)
        lengths = np.array([int(rng.integers(max(c, 1), room - length + c + 1)) for c in counts])
    else:
        lengths = rng.integers(max(length, 2), room + 1, batch)
    total = int(max(lengths)) if stage != "prompt" else length
    if stage == "padded chunk" and rng.random() < 0.5:
        total = room
    total = max(total, length)
    packed = stage != "shared" and rng.random() < 0.3
    fresh = 0 if stage == "shared" else length
    q, k, v = new(batch, length, heads * size), new(batch, fresh, kv_heads * size), new(batch, fresh, kv_heads * size)
    quantized = one_of(rng, None, None, (8, "int8"), (4, "uint8"), (8, "float8_e4m3fn"))
    kind = one_of(rng, "PER_TENSOR", "PER_CHANNEL")
    held = FLOATS[dtype]
    attributes: dict[str, Any] = {}
    scales: list[Array | None] = [None, None]
    width = size
    if quantized is not None:
        bits, name = quantized
        width = size * bits // 8
        held = {"int8": np.int8, "uint8": np.uint8, "float8_e4m3fn": ml_dtypes.float8_e4m3fn}[name]
        attributes = {"k_quant_type": kind, "v_quant_type": kind, "kv_cache_bit_width": bits}
        shape = (1, kv_heads, 1, size) if kind == "PER_CHANNEL" else (1,)
        most = {"int8": 30.0, "uint8": 2.0, "float8_e4m3fn": 60.0}[name]
        scales = [(rng.uniform(1.0, 2.0, shape) / most).astype(np.float32) for _ in "kv"]

    def cache() -> Array:
        if quantized is None:
            return new(batch, kv_heads, room, width)
        if quantized[1] == "float8_e4m3fn":
            return (rng.normal(0, 60, (batch, kv_heads, room, width))).astype(held)
        return rng.integers(*((-127, 128) if quantized[0] == 8 else (0, 256)), (batch, kv_heads, room, width)).astype(
            held
        )

    rotary = int(rng.random() < 0.5)
    half = size // 2 if size == 16 else one_of(rng, 8, size // 2)
    cos, sin = tables(rng, 32, half, dtype) if rotary else (None, None)
    norm = stage != "shared" and rng.random() < 0.25
    causal = 0 if stage in ("prompt", "token in a buffer") and rng.random() < 0.2 else 1
    window = -1 if not causal else one_of(rng, -1, -1, 3, 5)
    first = lengths - (length if counts is None else counts)
    places = np.maximum(np.zeros_like(first) if "prompt" in stage else first, 0)[:, None] + np.arange(length) + 2
    qk = one_of(rng, 0, 0, 0, 1, 2) if stage != "padded chunk" else 0
    attributes |= {"num_heads": heads, "kv_num_heads": kv_heads, "do_rotary": rotary}
    attributes |= without_defaults(
        {
            "rotary_interleaved": (rotary and one_of(rng, 0, 1), 0),
            "local_window_size": (window, -1),
            "softcap": (one_of(rng, 0.0, 0.0, 1.5), 0.0),
            "scale": (one_of(rng, 0.0, 0.4), 0.0),
            "smooth_softmax": (one_of(rng, -1, 0, 1), -1),
            "causal": (causal, 1),
            "qk_output": (qk, 0),
        }
    )
    inputs: dict[str, Array | None] = {
        "query": np.concatenate([q, k, v], -1) if packed else q,
        "key": None if packed else k,
        "value": None if packed else v,
        "past_key": cache() if room else None,
        "past_value": cache() if room else None,
        "seqlens_k": (lengths - 1).astype(np.int32),
        "total_sequence_length": np.array(total, np.int32),
        "cos_cache": cos,
        "sin_cache": sin,
        "position_ids": maybe(rng, lambda: places.astype(np.int64)) if rotary else None,
        "attention_bias": maybe(rng, lambda: new(one_of(rng, 1, batch), one_of(rng, 1, heads), length, total)),
        "head_sink": maybe(rng, lambda: new(heads)),
        "k_scale": scales[0],
        "v_scale": scales[1],
        "q_norm_weight": new(size) if norm else None,
        "k_norm_weight": new(size) if norm else None,
        "query_seqlens": counts,
    }
    rows = [
        slice(0, int(counts[b]) if counts is not None else int(lengths[b]) if "prompt" in stage else length)
        for b in range(batch)
    ]

    def answers(y: Array) -> Array:
        return np.concatenate([y[b, rows[b]].reshape(-1) for b in range(batch)])

    def caches(t: Array) -> Array:
        return np.concatenate([t[b, :, : lengths[b]].reshape(-1) for b in range(batch)])

    def scores(t: Array) -> Array:
        return np.concatenate([t[b, :, rows[b], : lengths[b]].reshape(-1) for b in range(batch)])

    outputs = ["y", "present_key", "present_value", *(["qk"] if qk else [])]
    return Case(
        "GroupQueryAttention",
        MICROSOFT,
        21,
        inputs,
        outputs,
        attributes,
        dtype,
        ("total_sequence_length",) if rng.random() < 0.5 else (),
        {"y": answers, "present_key": caches, "present_value": caches, "qk": scores},
    )


def windowed(rng: Rng) -> Case:
    """GroupQueryAttention with a cache that holds a window, in steps of any length."""
    dtype = a_dtype(rng)
    new = floats_of(rng, dtype)
    kv_heads, heads, bits = 2, 4, one_of(rng, 0, 0, 8, 4)
    size = 32 if bits == 4 else 16
    window = int(rng.integers(1, 6))
    room, length, padded = window + int(rng.integers(0, 4)), int(one_of(rng, 1, 1, 2, 5, 9)), rng.random() < 0.4
    prompt = not padded and rng.random() < 0.3
    batch = int(rng.integers(1, 4)) if length == 1 or padded else 1
    lengths = np.full(batch, length) if prompt else rng.integers(length, 20, batch)
    counts = rng.integers(0, length + 1, batch).astype(np.int32) if padded else None
    rotary = int(rng.random() < 0.6)
    cos, sin = tables(rng, 32, 8, dtype) if rotary else (None, None)
    attributes: dict[str, Any] = {"num_heads": heads, "kv_num_heads": kv_heads, "do_rotary": rotary}
    attributes |= {"local_window_size": window, "sliding_window_cache": 1}
    scale = np.full(1, 0.03 if bits == 8 else 0.4, np.float32) if bits else None
    if bits:
        attributes |= {"kv_cache_bit_width": bits, "k_quant_type": "PER_TENSOR", "v_quant_type": "PER_TENSOR"}
    shape = (batch, kv_heads, room, size * bits // 8 if bits else size)

    def cache() -> Array:
        if not bits:
            return new(*shape)
        low, high, kind = (-100, 101, np.int8) if bits == 8 else (0, 256, np.uint8)
        return rng.integers(low, high, shape).astype(kind)

    total = int(max(lengths))
    inputs: dict[str, Array | None] = {
        "query": new(batch, length, heads * size),
        "key": new(batch, length, kv_heads * size),
        "value": new(batch, length, kv_heads * size),
        "past_key": cache(),
        "past_value": cache(),
        "seqlens_k": (lengths - 1).astype(np.int32),
        "total_sequence_length": np.array(total, np.int32),
        "cos_cache": cos,
        "sin_cache": sin,
        "position_ids": None,
        "attention_bias": maybe(rng, lambda: new(one_of(rng, 1, batch), one_of(rng, 1, heads), length, total)),
        "head_sink": maybe(rng, lambda: new(heads)),
        "k_scale": scale,
        "v_scale": scale,
        "q_norm_weight": None,
        "k_norm_weight": None,
        "query_seqlens": counts,
    }

    def held(tokens: int) -> int:
        at_once = room - window + 1
        return tokens if tokens <= room else tokens + at_once * ((room - tokens) // at_once)

    ends = [int(n) for n in (lengths - lengths + length if counts is None else counts)]

    def answers(y: Array) -> Array:
        return np.concatenate([y[b, : ends[b]].reshape(-1) for b in range(batch)])

    def caches(t: Array) -> Array:
        return np.concatenate([t[b, :, : held(int(lengths[b]))].reshape(-1) for b in range(batch)])

    part = {"y": answers, "present_key": caches, "present_value": caches}
    outputs = ["y", "present_key", "present_value"]
    return Case("GroupQueryAttention", MICROSOFT, 21, inputs, outputs, attributes, dtype, (), part)
