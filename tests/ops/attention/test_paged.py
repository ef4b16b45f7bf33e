"""Attention over caches in pages against numpy: only ONNX Runtime's CUDA provider has it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ops.cases import Array, model_of, on_vulkan
from tests.ops.microsoft import against
from vkep.errors import VkepError

pytestmark = pytest.mark.usefixtures("vulkan")
RNG = np.random.default_rng(83)
HEADS, KV, SIZE, PAGE, PAGES = 4, 2, 8, 4, 9
STARTS, PAST = np.array([0, 1, 6, 8], np.int32), np.array([5, 0, 3], np.int32)
TOKENS, ROOM = 8, 12
TABLE = np.array([[7, 2, -1], [0, 5, -1], [4, 3, 1]], np.int32)


def normal(*shape: int) -> Array:
    return RNG.normal(0, 0.7, shape).astype(np.float16)


def _inputs(options: str) -> dict[str, Array | None]:
    """By letters: p(acked queries, keys and values), r(otary), s(lots), k (a sink), n(orms), m(etadata)."""
    parts: dict[str, Array | None] = {n: normal(TOKENS, h * SIZE) for n, h in (("q", HEADS), ("k", KV), ("v", KV))}
    if "p" in options:
        joined = np.concatenate([t for t in parts.values() if t is not None], 1)
        parts = {"q": joined, "k": None, "v": None}
    angles = RNG.uniform(0, 6, (ROOM, SIZE // 2))
    slots = np.array([40, 41, -1, 3, 2, 7, 36, 38], np.int32)
    inputs: dict[str, Array | None] = {
        **parts, "kc": normal(PAGES + 2, PAGE, KV, SIZE), "vc": normal(PAGES + 2, PAGE, KV, SIZE),
        "starts": STARTS, "past": PAST, "table": TABLE,
        "cos": np.cos(angles).astype(np.float16) if "r" in options else None,
        "sin": np.sin(angles).astype(np.float16) if "r" in options else None,
        "slots": slots if "s" in options else None, "sink": normal(HEADS) if "k" in options else None,
        "qn": normal(SIZE) if "n" in options else None, "kn": normal(SIZE) if "n" in options else None,
        "ks": None, "vs": None, "metadata": np.array([5, 12], np.int32) if "m" in options else None,
    }  # fmt: skip
    last = max(k for k, value in enumerate(inputs.values()) if value is not None)
    return dict(list(inputs.items())[: last + 1])


def _normed(x: Array, weight: Array | None) -> Array:
    return x if weight is None else x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * weight


def _expected(x: dict[str, Array], causal: bool, window: int, softcap: float) -> list[Array]:
    every = x["q"] if "k" not in x else np.concatenate([x["q"], x["k"], x["v"]], 1)
    q, k, v = (t.reshape(TOKENS, -1, SIZE) for t in np.split(every, [HEADS * SIZE, (HEADS + KV) * SIZE], 1))
    q, k = _normed(q, x.get("qn")), _normed(k, x.get("kn"))
    owner = np.searchsorted(STARTS, np.arange(TOKENS), "right") - 1
    place = PAST[owner] + np.arange(TOKENS) - STARTS[owner]
    if "cos" in x:
        turn = (x["cos"] + 1j * x["sin"])[place][:, None]
        q, k = (
            np.concatenate([pairs.real, pairs.imag], -1)
            for pairs in ((t[..., : SIZE // 2] + 1j * t[..., SIZE // 2 :]) * turn for t in (q, k))
        )
    keys, values = x["kc"].reshape(-1, KV, SIZE).copy(), x["vc"].reshape(-1, KV, SIZE).copy()
    slots = x["slots"] if "slots" in x else TABLE[owner, place // PAGE] * PAGE + place % PAGE
    for t, slot in enumerate(slots):
        if slot >= 0:
            keys[slot], values[slot] = k[t], v[t]
    out = np.zeros((TOKENS, HEADS, SIZE))
    for t in range(TOKENS):
        i = owner[t]
        where = np.arange(PAST[i] + STARTS[i + 1] - STARTS[i])
        where = where[(where <= place[t]) | (not causal)]
        where = where[where > place[t] - window] if window > 0 else where
        rows = TABLE[i, where // PAGE] * PAGE + where % PAGE
        for h in range(HEADS):
            scores = keys[rows, h // 2] @ q[t, h] / np.sqrt(SIZE)
            scores = softcap * np.tanh(scores / softcap) if softcap else scores
            weights = np.exp(scores)
            total = weights.sum() + (np.exp(x["sink"][h]) if "sink" in x else 0)
            out[t, h] = weights @ values[rows, h // 2] / total
    return [out.reshape(TOKENS, -1), keys.reshape(x["kc"].shape), values.reshape(x["vc"].shape)]


@pytest.mark.parametrize(
    ("options", "causal", "window", "softcap"),
    [
        ("", 1, -1, 0.0),
        ("pm", 1, 2, 0.0),
        ("rk", 1, -1, 1.5),
        ("rn", 0, -1, 0.0),
        ("s", 1, -1, 0.0),
        ("psm", 0, 3, 0.0),
    ],
)
def test_pages(options: str, causal: int, window: int, softcap: float) -> None:
    inputs = _inputs(options)
    attributes: dict[str, Any] = {"num_heads": HEADS, "kv_num_heads": KV, "is_causal": causal, "softcap": softcap}
    attributes |= {"local_window_size": window, "do_rotary": int("r" in options)}

    def expected(**x: Array) -> list[Array]:
        return _expected(x, bool(causal), window, softcap)

    constants = ["metadata"] if "m" in options else []
    outputs = ("y", "nk", "nv")
    against(expected, "PagedAttention", inputs, outputs=outputs, constants=constants, atol=1e-2, **attributes)


def test_pages_that_do_not_fit() -> None:
    inputs = _inputs("") | {"table": TABLE[:2]}
    model = model_of("PagedAttention", inputs, domain="com.microsoft", num_heads=HEADS, kv_num_heads=KV)
    with pytest.raises(VkepError, match=r"block_table has shape \[2, 3\], expected \[3, 3\]"):
        on_vulkan(model, inputs)
