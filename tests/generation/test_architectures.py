"""Architectures of the day with random weights: the greedy tokens are those of ONNX Runtime's CPU provider."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.devices import as_a_gpu
from tests.generation.reference import Reference
from vkep.dtypes import DTYPES
from vkep.generation import Generator
from vkep.generation.decoder import Decoder
from vkep.ir.program import IslandStep
from vkep.models.language import ARCHITECTURES, OPTIMUM, write_language

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


@pytest.mark.wide
def test_a_step_as_on_a_gpu(tmp_path: Path) -> None:
    """Norms, the rotation and the caches' rows are parts of products, and gate and up are one dispatch."""
    language = write_language(tmp_path, "llama", "int4", layers=1)
    theirs = Reference(tmp_path / "model.onnx", language.kv_heads, language.size)
    prompt = list(range(40, 50))
    with as_a_gpu(), Generator(tmp_path, fallback="error", save_plans=False) as generator:
        answer = generator.generate(prompt, max_tokens=8, ignore_end=True)
        latest = generator.decoder.session._parts.graph.latest
        assert latest is not None
        plans = [step.plan for step in latest.program.steps if isinstance(step, IslandStep)]
    assert answer.tokens == theirs.greedy(prompt, 8)
    shaders = [plan.pipelines[d.pipeline].shader for plan in plans for d in plan.dispatches]
    for form in ("TURNED", "PAIRED"):
        assert sum(form in dict(shader.defines) for shader in shaders) == language.layers
    assert not {"norm.comp", "cache_update.comp"} & {shader.source for shader in shaders}


@pytest.mark.wide
def test_several_sequences_as_on_a_gpu(tmp_path: Path) -> None:
    """Attention computes the norms of queries and keys, their rotation and the caches' rows."""
    language = write_language(tmp_path, "qwen3", layers=1)
    theirs = Reference(tmp_path / "model.onnx", language.kv_heads, language.size)
    prompts = [list(range(40, 43)), list(range(60, 70))]
    with as_a_gpu(), Generator(tmp_path, fallback="error", save_plans=False) as generator:
        answers = generator.generate(prompts, max_tokens=6, ignore_end=True)
        latest = generator.decoder.session._parts.graph.latest
        assert latest is not None
        plans = [step.plan for step in latest.program.steps if isinstance(step, IslandStep)]
    assert [a.tokens for a in answers] == [theirs.greedy(p, 6) for p in prompts]
    shaders = [plan.pipelines[d.pipeline].shader for plan in plans for d in plan.dispatches]
    assert sum("UPDATES" in dict(shader.defines) for shader in shaders) == language.layers
    assert "cache_update.comp" not in {shader.source for shader in shaders}


@pytest.mark.parametrize("bits", [8, 4])
def test_quantized_caches(bits: int, tmp_path: Path) -> None:
    """Prompts at once, in rows of caches of 8 and 4 bits that grow."""
    language = write_language(tmp_path, "qwen3", cache_bits=bits)
    theirs = Reference(tmp_path / "model.onnx", language.kv_heads, language.size)
    prompts = [list(range(40, 43)), list(range(60, 118))]
    with Generator(tmp_path, fallback="error") as generator:
        answers = generator.generate(prompts, max_tokens=12, ignore_end=True)
        assert isinstance(generator.decoder, Decoder)
        [spec, *_] = generator.decoder.specs
    assert (spec.heads, spec.size) == (language.kv_heads, language.size * bits // 8 // DTYPES[spec.dtype].itemsize)
    assert [a.tokens for a in answers] == [theirs.greedy(p, 12) for p in prompts]
