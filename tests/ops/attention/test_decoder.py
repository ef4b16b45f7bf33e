"""Attention by patterns, over caches and flags, against numpy: onnxruntime's CPU provider has none of these, or wants its
buffers shared.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ops.cases import Array, model_of, on_vulkan
from tests.ops.microsoft import against
from vkep.errors import VkepError

pytestmark = pytest.mark.usefixtures("vulkan")
RNG = np.random.default_rng(73)
HEADS, SIZE = 2, 8
HIDDEN = HEADS * SIZE


def normal(*shape: int) -> Array:
    return RNG.normal(0, 0.5, shape).astype(np.float32)


def heads_of(x: Array, heads: int = HEADS) -> Array:
    """[batch, length, heads * size] as [batch, heads, length, size]."""
    return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)


def attended(q: Array, k: Array, v: Array, seen: Array) -> Array:
    """[batch, length, features], by the keys that are seen."""
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
    scores = np.where(seen, q @ k.swapaxes(2, 3) / np.sqrt(q.shape[3]), -np.inf)
    weights = np.exp(scores - np.max(scores, 3, keepdims=True, initial=-1e30))
    y = (weights / np.maximum(weights.sum(3, keepdims=True), 1e-30)) @ v
    return y.swapaxes(1, 2).reshape(q.shape[0], q.shape[2], -1)


@pytest.mark.parametrize("crossed", [False, True])
@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_flags_of_decoder_attention(crossed: bool, cached: bool, masked: bool) -> None:
    steps, batch, encoded, before = 3, 2, 5, 4
    keys = before if crossed and cached else encoded if crossed else steps + (before if cached else 0)
    flag = {n: np.array([v]) for n, v in (("s", crossed), ("u", cached), ("l", True), ("m", masked))}
    inputs: dict[str, Array | None] = {
        "q": normal(steps, batch, HIDDEN), "k": normal(encoded, batch, HIDDEN), "wq": normal(HIDDEN, HIDDEN),
        "wkv": normal(HIDDEN, 2 * HIDDEN), "bias": normal(3 * HIDDEN),
        "mask": RNG.random((batch, keys)) < 0.4 if masked else None,
        "kc": normal(batch, HEADS, before, SIZE) if cached else None,
        "vc": normal(batch, HEADS, before, SIZE) if cached else None, **flag,
    }  # fmt: skip

    def expected(**x: Array) -> list[Array]:
        q = heads_of((x["q"] @ x["wq"] + x["bias"][:HIDDEN]).swapaxes(0, 1))
        both = ((x["k"] if crossed else x["q"]) @ x["wkv"] + x["bias"][HIDDEN:]).swapaxes(0, 1)
        k, v = (heads_of(part) for part in np.split(both, 2, 2))
        if cached:
            k, v = (x[n] if crossed else np.concatenate([x[n], t], 2) for n, t in (("kc", k), ("vc", v)))
        seen = ~x["mask"][:, None, None] if masked else np.array(True)
        return [attended(q, k, v, seen).swapaxes(0, 1), k, v]

    constants = list(flag)
    against(expected, "DecoderAttention", inputs, outputs=("y", "nk", "nv"), num_heads=HEADS, constants=constants)


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("window", [1, 3])
def test_longformer(apart: bool, window: int) -> None:
    batch, length = 2, 8
    matrices = (3, HIDDEN, HIDDEN) if apart else (HIDDEN, 3 * HIDDEN)
    mask = np.zeros((batch, length), np.float32)
    mask[1, 6:] = -10000
    inputs: dict[str, Array | None] = {
        "x": normal(batch, length, HIDDEN), "w": normal(*matrices), "b": normal((5 if apart else 3) * HIDDEN),
        "mask": mask, "gw": normal(*matrices), "gb": normal((1 if apart else 3) * HIDDEN),
        "flags": np.array([[1, 0, 0, 0, 0, 0, 1, 0], [0] * 8], np.int32),
    }  # fmt: skip

    def expected(x: Array, w: Array, b: Array, mask: Array, gw: Array, gb: Array, flags: Array) -> Array:
        def parts(w: Array, biases: list[Array]) -> list[Array]:
            each = w if apart else np.split(w, 3, 1)
            return [heads_of(x @ m + added) for m, added in zip(each, biases, strict=True)]

        own = np.split(b, len(b) // HIDDEN)
        other = [gb, own[3], own[4]] if apart else np.split(gb, 3)
        kept = (mask >= 0)[:, None, None] & (mask >= 0)[:, None, :, None]
        near = np.abs(np.arange(length)[:, None] - np.arange(length)) <= window
        q, k, v = parts(w, own[:3])
        local = attended(q, k, v, kept & (near | (flags != 0)[:, None, None]))
        q, k, v = parts(gw, other)
        return np.where(flags[..., None] != 0, attended(q, k, v, kept), local)

    against(expected, "LongformerAttention", inputs, num_heads=HEADS, window=window)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_buffer_of_keys_in_groups(dtype: Any) -> None:
    batch, room, past, each = 2, 6, 3, 16 // np.dtype(dtype).itemsize
    inputs: dict[str, Array | None] = {
        "x": normal(batch, 1, HIDDEN).astype(dtype), "w": normal(HIDDEN, 3 * HIDDEN).astype(dtype),
        "b": normal(3 * HIDDEN).astype(dtype), "mask": np.ones((batch, past + 1), np.int32),
        "past": normal(2, batch, HEADS, room, SIZE).astype(dtype), "bias": None, "length": np.array([past], np.int32),
    }  # fmt: skip

    def expected(x: Array, w: Array, b: Array, mask: Array, past: Array, length: Array) -> list[Array]:
        q, k, v = (heads_of(part) for part in np.split(x @ w + b, 3, 2))
        at = int(length[0])
        groups = past[0].reshape(batch, HEADS, SIZE // each, room, each).copy()
        keys = groups.transpose(0, 1, 3, 2, 4).reshape(batch, HEADS, room, SIZE)
        values = past[1].copy()
        keys[:, :, at], values[:, :, at] = k[:, :, 0], v[:, :, 0]
        y = attended(q, keys[:, :, : at + 1], values[:, :, : at + 1], np.array(True))
        laid = keys.reshape(batch, HEADS, room, SIZE // each, each).transpose(0, 1, 3, 2, 4)
        return [y, np.stack([laid.reshape(past[0].shape), values])]

    atol = 1e-5 if dtype == np.float32 else 1e-2
    rest: dict[str, Any] = {"num_heads": HEADS, "past_present_share_buffer": 1, "atol": atol}
    against(expected, "DecoderMaskedSelfAttention", inputs, outputs=("y", "next"), **rest)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("length", "used"), [(8, 8), (1, 7), (2, 8)])
@pytest.mark.parametrize("rotary", [False, True])
def test_sparse_blocks(packed: bool, length: int, used: int, rotary: bool) -> None:
    batch, heads, kv_heads, room, block = 2, 4, 2, 12, 2
    layouts = RNG.random((2, room // block, room // block)) < 0.5
    layouts |= np.eye(room // block, dtype=bool)
    layouts &= np.tri(room // block, dtype=bool)
    rows = np.pad(layouts.sum(2).cumsum(1), ((0, 0), (1, 0))).astype(np.int32)
    columns = np.full((2, rows[:, -1].max()), -1, np.int32)
    for layout, row in enumerate(columns):
        row[: rows[layout, -1]] = np.nonzero(layouts[layout])[1]
    lengths = np.array([used, used - 1] if length < used else [used, used], np.int32)
    parts = {n: normal(batch, length, h * SIZE) for n, h in (("q", heads), ("k", kv_heads), ("v", kv_heads))}
    joined = {"q": np.concatenate(list(parts.values()), 2), "k": None, "v": None}
    angles = RNG.uniform(0, 6, (room, SIZE // 2))
    inputs: dict[str, Array | None] = {
        **(joined if packed else parts),
        "pk": normal(batch, kv_heads, room, SIZE), "pv": normal(batch, kv_heads, room, SIZE),
        "rows": rows, "columns": columns, "total": np.array(used, np.int32), "lengths": lengths,
        "cos": np.cos(angles).astype(np.float32) if rotary else None,
        "sin": np.sin(angles).astype(np.float32) if rotary else None,
    }  # fmt: skip

    def turned(x: Array, places: Array) -> Array:
        if not rotary:
            return x
        turn = np.exp(1j * angles[places])[:, None]
        pairs = (x[..., : SIZE // 2] + 1j * x[..., SIZE // 2 :]) * turn
        return np.concatenate([pairs.real, pairs.imag], -1)

    def expected(**x: Array) -> list[Array]:
        first = lengths - length
        places = first[:, None] + np.arange(length)
        q, k, v = (
            heads_of(parts[n].astype(np.float64), h) for n, h in (("q", heads), ("k", kv_heads), ("v", kv_heads))
        )
        q, k = turned(q, places), turned(k, places)
        keys, values = x["pk"].copy(), x["pv"].copy()
        for i, at in enumerate(first):
            keys[i, :, at : at + length], values[i, :, at : at + length] = k[i], v[i]
        key = np.arange(used)
        seen = np.empty((batch, heads, length, used), bool)
        for i, h in np.ndindex(batch, heads):
            whole = layouts[h % 2][places[i][:, None] // block, key // block]
            seen[i, h] = whole & (key <= places[i][:, None])
        return [attended(q, keys[:, :, :used], values[:, :, :used], seen), keys, values]

    attributes: dict[str, Any] = {"num_heads": heads, "kv_num_heads": kv_heads, "sparse_block_size": block}
    outputs = ("y", "nk", "nv")
    constants = ["rows", "columns", "total"]
    against(
        expected, "SparseAttention", inputs, outputs=outputs, constants=constants, do_rotary=int(rotary), **attributes
    )


def test_blocks_that_do_not_fit() -> None:
    inputs: dict[str, Array | None] = {
        "q": normal(1, 2, 16), "k": normal(1, 2, 16), "v": normal(1, 2, 16), "pk": normal(1, 2, 4, 8),
        "pv": normal(1, 2, 4, 8), "rows": np.array([[0, 1, 3]], np.int32), "columns": np.array([[0, 0, 5]], np.int32),
        "total": np.array(2, np.int32), "lengths": np.array([2], np.int32),
    }  # fmt: skip
    attributes: dict[str, Any] = {"num_heads": 2, "kv_num_heads": 2, "sparse_block_size": 2}
    constants = ["rows", "columns", "total"]
    model = model_of(
        "SparseAttention", inputs, outputs=("y", "a", "b"), constants=constants, domain="com.microsoft", **attributes
    )
    with pytest.raises(VkepError, match=r"block_col_indices has \[0, 5\] in row 1, expected 0 to 1"):
        on_vulkan(model, inputs)
