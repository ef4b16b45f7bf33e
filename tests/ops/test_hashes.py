"""Hashes of n-grams against onnxruntime's CPU provider."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ops.cases import Array, check, model_of, on_vulkan
from tests.ops.microsoft import normal
from vkep.errors import VkepError

pytestmark = pytest.mark.usefixtures("vulkan")
RNG = np.random.default_rng(53)
MS: dict[str, Any] = {"domain": "com.microsoft", "against": "onnxruntime", "opset": 21}
N, HEADS = 3, 2
ATTRIBUTES: dict[str, Any] = {"max_ngram_size": N, "n_head_per_ngram": HEADS, "pad_id": 7}


def _inputs(dtype: Any, *shape: int, options: str = "") -> dict[str, Array | None]:
    """By letters: p(ast), o(ffsets), e(nd of sequence), s(egments)."""
    ids = RNG.integers(0, 9, shape).astype(dtype)
    return {
        "ids": ids,
        "multipliers": np.array([2654435761 % 2**31, 40503, -977, 5], dtype),
        "sizes": np.array([11, 13, 17, 19], dtype),
        "past": RNG.integers(0, 9, (shape[0], N - 1)).astype(dtype) if "p" in options else None,
        "offsets": np.array([0, 11, 24, 41], dtype) if "o" in options else None,
        "eos": np.array(3, dtype) if "e" in options else None,
        "segments": np.sort(RNG.integers(0, 3, shape).astype(np.int32), -1) if "s" in options else None,
    }


def _trimmed(inputs: dict[str, Array | None]) -> dict[str, Array | None]:
    """Without the absent inputs at the end, which ONNX Runtime's checks want left out."""
    last = max(k for k, value in enumerate(inputs.values()) if value is not None)
    return dict(list(inputs.items())[: last + 1])


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize(("options", "reset"), [("", 0), ("p", 1), ("poe", 0), ("poe", 1), ("es", 1), ("poes", 1)])
def test_n_grams(dtype: Any, options: str, reset: int) -> None:
    for length in (1, 9):
        inputs = _trimmed(_inputs(dtype, 2, length, options=options))
        check("NGramHashMapping", inputs, outputs=("y", "next"), reset_on_eos=reset, **ATTRIBUTES, **MS)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize(("options", "reset"), [("", 0), ("poe", 1), ("es", 0), ("poes", 1), ("poesq", 1)])
def test_n_grams_of_packed_sequences(dtype: Any, options: str, reset: int) -> None:
    starts = np.array([0, 1, 6, 9], np.int32)
    plain = _inputs(dtype, 9, options=options)
    if plain["past"] is not None:
        plain["past"] = RNG.integers(0, 9, (3, N - 1)).astype(dtype)
    inputs: dict[str, Array | None] = {}
    for name, value in plain.items():
        inputs[name] = value
        if name == "sizes":
            inputs["starts"] = starts
    inputs["past_segments"] = RNG.integers(0, 2, (3, N - 1)).astype(np.int32) if "q" in options else None
    names = ["y", "next", "next_segments" if "s" in options else ""]
    rest: dict[str, Any] = {}
    if "q" in options:
        inputs["captures"] = np.array([4, 2, 0], np.int32)
        names, rest = [*names, "states"], {"state_update_capacity": 3}
    while not names[-1]:
        names.pop()
    check("VarlenNGramHashMapping", _trimmed(inputs), outputs=names, reset_on_eos=reset, **rest, **ATTRIBUTES, **MS)


def test_refused() -> None:
    inputs = _trimmed(_inputs(np.int64, 2, 5))
    wrong = model_of("NGramHashMapping", inputs, domain="com.microsoft", **ATTRIBUTES | {"n_head_per_ngram": 3})
    with pytest.raises(VkepError, match=r"vocab_sizes has shape \[4\], expected \[6\]"):
        on_vulkan(wrong, inputs)


@pytest.mark.parametrize("size", [1, 2, 3, 9])
def test_ngram_repeat_block(size: int) -> None:
    ids = np.array([[1, 2, 3, 1, 2, 4, 1, 2], [5, 5, 5, 5, 5, 5, 5, 5], [0, 1, 2, 3, 4, 5, 6, 7]])
    check("NGramRepeatBlock", {"ids": ids, "scores": normal(3, 9)}, ngram_size=size, **MS)


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64, np.uint64, np.float32, np.float64])
@pytest.mark.parametrize("positive", [0, 1, 2])
def test_murmur_hash(dtype: Any, positive: int) -> None:
    x = RNG.integers(0, 1 << 63, 50).astype(dtype) if np.dtype(dtype).kind in "iu" else normal(50, dtype=dtype)
    check("MurmurHash3", {"x": x}, positive=positive, seed=42, **MS)
