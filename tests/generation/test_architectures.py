"""Architectures of the day with random weights: the greedy tokens are those of ONNX Runtime's CPU provider."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.generation.reference import Reference
from tools.models.language import ARCHITECTURES, OPTIMUM, write_language
from vkep.generation import Generator

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", sorted(ARCHITECTURES))
def test_the_same_tokens(name: str, tmp_path: Path) -> None:
    language = write_language(tmp_path, name)
    heads = language.heads if name in OPTIMUM else language.kv_heads
    theirs = Reference(tmp_path / "model.onnx", heads, language.size)
    rng = np.random.default_rng(1)
    prompts = [[int(t) for t in rng.integers(0, 256, count)] for count in (3, 20)]
    with Generator(tmp_path, fallback="error") as generator:
        answers = generator.generate(prompts, max_tokens=10, ignore_end=True)
    assert [a.tokens for a in answers] == [theirs.greedy(p, 10) for p in prompts]
    assert all(a.reason == "length" for a in answers)


@pytest.mark.parametrize("bits", [8, 4])
def test_quantized_caches(bits: int, tmp_path: Path) -> None:
    """Prompts at once, in rows of caches of 8 and 4 bits that grow."""
    language = write_language(tmp_path, "qwen3", cache_bits=bits)
    theirs = Reference(tmp_path / "model.onnx", language.kv_heads, language.size)
    prompts = [list(range(40, 43)), list(range(60, 118))]
    with Generator(tmp_path, fallback="error") as generator:
        answers = generator.generate(prompts, max_tokens=12, ignore_end=True)
        [spec, *_] = generator.decoder.specs
    assert spec.bytes_of_token == language.kv_heads * language.size * bits // 8
    assert [a.tokens for a in answers] == [theirs.greedy(p, 12) for p in prompts]
