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
