"""Cases of attention, caches, rotary embeddings, training, and integers that a run computes."""

from __future__ import annotations

import numpy as np

from tests.aten.values import Array, Case, Const, Sym, positive, truth, wave, whole

HEADS = wave(2, 4, 5, 8)  # batch, heads, length, size
QUERY, CACHE = wave(1, 3, 4, 8), wave(1, 10, 2, 8, k=1)  # batch, length, heads, size


def softmax(x: Array) -> Array:
    grown = np.exp(x - x.max(-1, keepdims=True))
    return grown / grown.sum(-1, keepdims=True)


def attention(q: Array, k: Array, v: Array, allowed: Array, scale: float | None) -> Array:
    """[batch, length, heads, size]; each key head serves several query heads."""
    group = q.shape[2] // k.shape[2]
    q, k, v = q.transpose(0, 2, 1, 3), *(np.repeat(t.transpose(0, 2, 1, 3), group, axis=1) for t in (k, v))
    scores = q @ k.swapaxes(-1, -2) * (scale or q.shape[-1] ** -0.5)
    scores = scores + (np.where(allowed, 0, -np.inf) if allowed.dtype == np.bool_ else allowed)
    return (softmax(scores) @ v).transpose(0, 2, 1, 3).astype(np.float32)


def custom_sdpa(q, k, v, start, mask, dropout, causal, scale) -> Array:  # type: ignore[no-untyped-def]
    length, positions = q.shape[1], np.arange(k.shape[1])
    if mask is None:
        last = start + np.arange(length) if causal else np.full(length, start + length - 1)
        mask = positions[None, :] <= last[:, None]
    return attention(q, k, v, mask, scale)


def written(value: Array, cache: Array, start: int) -> Array:
    cache = cache.copy()
    cache[:, start : start + value.shape[1]] = value
    return cache


def with_cache(q, k, v, keys, values, start, length, mask, dropout, causal, scale) -> Array:  # type: ignore[no-untyped-def]
    return custom_sdpa(q, written(k, keys, start), written(v, values, start), start, mask, dropout, causal, scale)


def fused_ce(logits: Array, labels: Array, count: float) -> list[Array]:
    share = (labels >= 0) / count
    chances = softmax(logits)
    safe = np.maximum(labels, 0)
    picked = chances[np.arange(len(labels)), safe]
    hot = np.eye(logits.shape[1])[safe]
    loss = np.sum(-np.log(picked) * share)
    return [np.array(loss, np.float32), ((chances - hot) * share[:, None]).astype(np.float32)]


CASES = [
    Case("et_vk.sdpa.default", (HEADS, wave(2, 4, 6, 8, k=1), wave(2, 4, 6, 8, k=2), None, None)),
    Case(
        "et_vk.sdpa.default",
        (HEADS, wave(2, 4, 6, 8, k=1), wave(2, 4, 6, 8, k=2), wave(2, 1, 5, 6), 0.3),
        label="mask",
    ),
    Case("et_vk.sdpa.default", (wave(2, 5, 8), wave(2, 6, 8, k=1), wave(2, 6, 8, k=2), None, None), label="one head"),
    *(
        Case(
            "llama.custom_sdpa.default", (QUERY, CACHE, CACHE + 1, start, mask, 0.0, causal, scale), custom_sdpa, label
        )
        for label, start, mask, causal, scale in (
            ("causal", Sym(4), None, True, None),
            ("known position", 4, None, True, 0.5),
            ("seen by all", Sym(2), None, False, None),
            ("mask", Sym(0), truth(3, 10) | (np.arange(10) < 1), False, None),
        )
    ),
    Case("llama.update_cache.default", (QUERY[:, :, :2], Const(CACHE), Sym(5)), written),
    Case("llama.update_cache.default", (wave(2, 3, 2, 8), wave(2, 10, 2, 8), Sym(5)), written, "a batch"),
    Case(
        "llama.sdpa_with_kv_cache.default",
        (
            QUERY,
            wave(1, 3, 2, 8, k=5),
            wave(1, 3, 2, 8, k=6),
            Const(CACHE),
            Const(CACHE + 1),
            Sym(4),
            Sym(3),
            None,
            0.0,
            True,
            None,
        ),
        with_cache,
    ),
    Case("et_vk.apply_rotary_emb.default", (QUERY, wave(1, 3, 2, 8), wave(3, 4, k=1), wave(3, 4, k=2))),
    Case("et_vk.apply_rotary_emb_interleaved.default", (wave(2, 3, 8), wave(3, 8, k=1))),
    Case("et_vk.apply_rotary_emb_interleaved.default", (wave(2, 3, 8), wave(1, 3, 4, 2, k=1)), label="pairs"),
    *(
        Case(
            "et_vk.apply_rotary_emb_hf.default",
            (QUERY, wave(1, 3, 2, 8), Const(wave(9, size, k=1)), Const(wave(9, size, k=2)), start),
            label=label,
        )
        for label, size, start in (("", 8, Sym(5)), ("part", 6, 2))
    ),
    # training
    Case("et_vk.fused_ce.default", (wave(5, 7), np.array([1, -100, 6, 0, 3], np.int32), 4.0), fused_ce),
    Case(
        "et_vk.adamw_step.default",
        (wave(3, 4), wave(3, 4, k=1), positive(3, 4), wave(3, 4, k=2), 0.01, 0.9, 0.99, 1e-8, 0.1, 0.5, 0.3),
    ),
    Case("et_vk.linear_dW.default", (wave(2, 3, 4), wave(2, 3, 5, k=1))),
    # integers
    Case("sym_size.int", (wave(2, 3), 1), lambda x, d: np.array(x.shape[d])),
    Case("et_vk.select_as_symint.default", (whole(4), 0, 2), lambda x, d, i: np.array(x[i])),
    *(
        Case(f"<built-in function {name}>", (Sym(7), other), lambda a, b, f=f: np.array(int(f(a, b))), label=str(other))
        for name, f in {
            "add": np.add,
            "sub": np.subtract,
            "mul": np.multiply,
            "floordiv": np.floor_divide,
            "eq": np.equal,
            "ge": np.greater_equal,
            "gt": np.greater,
            "le": np.less_equal,
            "lt": np.less,
        }.items()
        for other in (3, Sym(-2))
    ),
]
