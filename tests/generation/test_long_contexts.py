"""Prompts of thousands of tokens: the tokens of ONNX Runtime's CPU provider, few plans, and bounded memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.generation.reference import Reference
from vkep.generation import Generator
from vkep.models.language import ARCHITECTURES, write_language

pytestmark = pytest.mark.gpu


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["llama", "mistral", "gptoss"])
def test_a_prompt_of_8192_tokens(kind: str, tmp_path: Path) -> None:
    language = ARCHITECTURES[kind]
    write_language(tmp_path, kind, context=32768, layers=1)
    theirs = Reference(tmp_path / "model.onnx", language.kv_heads, language.size)
    prompt = [int(t) for t in np.random.default_rng(1).integers(1, 250, 8192)]
    with Generator(tmp_path, fallback="error", max_sequences=1) as generator:
        session = generator.decoder.session
        assert generator.generate(prompt, max_tokens=4, ignore_end=True).tokens == theirs.greedy(prompt, 4)
        for count in (8000, 5000, 3000):
            part = [1, *prompt[:count]]
            assert generator.generate(part, max_tokens=2, ignore_end=True).tokens == theirs.greedy(part, 2)
        assert session._parts.graph.plan_count <= 6
        assert session.memory().arena.bytes_in_use < 256 << 20  # the scores of 4 heads at once would take 1 GiB
