"""Beam search: the hypotheses of a search with ONNX Runtime's probabilities, computed again for each beam."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.generation.reference import Reference
from tests.generation.test_encoder_decoder import Sources, feeds_of
from vkep.errors import InvalidInputError
from vkep.generation import Generator
from vkep.generation.beams import Hypothesis
from vkep.models.language import BEGIN
from vkep.models.sources import write_sources

pytestmark = pytest.mark.gpu

Array = np.ndarray[Any, Any]
PROMPT = [72, 101, 108, 108, 111]


def expected(logits: Any, beams: int, most: int, penalty: float, ends: set[int]) -> list[tuple[float, list[int]]]:
    """A search as transformers describes it; ``logits(tokens)`` are those of the next token."""

    def next_of(tokens: list[int]) -> Array:
        row = logits(tokens).astype(np.float64)
        return row - np.log(np.exp(row - row.max()).sum()) - row.max()

    going: list[tuple[float, list[int]]] = [(0.0, [])]
    found: list[tuple[float, list[int]]] = []
    for length in range(1, most + 1):
        every = [(t + float(v), [*tokens, k]) for t, tokens in going for k, v in enumerate(next_of(tokens))]
        best = sorted(every, key=lambda one: -one[0])[: max(2, 1 + len(ends)) * beams]
        found += [(t / length**penalty, s[:-1]) for t, s in best[:beams] if s[-1] in ends]
        found = sorted(found, key=lambda one: -one[0])[:beams]
        going = [one for one in best if one[1][-1] not in ends][:beams]
        if len(found) == beams and found[-1][0] >= going[0][0] / length**penalty:
            return found
    return sorted([*found, *((t / most**penalty, s) for t, s in going)], key=lambda one: -one[0])[:beams]


def agree(ours: list[Hypothesis], theirs: list[tuple[float, list[int]]]) -> None:
    assert [one.tokens for one in ours] == [tokens for _, tokens in theirs[: len(ours)]]
    np.testing.assert_allclose([one.score for one in ours], [s for s, _ in theirs[: len(ours)]], rtol=1e-4)


@pytest.mark.parametrize(("beams", "penalty", "ends"), [(3, 1.0, 0), (4, 0.5, 40), (2, 2.0, 80)])
def test_the_best_answers(generator: Generator, theirs: Reference, beams: int, penalty: float, ends: int) -> None:
    stop = set(range(100, 100 + ends))
    ours = generator.search(
        PROMPT, beams=beams, count=beams, max_tokens=6, length_penalty=penalty, stop_tokens=list(stop), ignore_end=True
    )
    agree(ours, expected(lambda tokens: theirs.logits(PROMPT, [*tokens, 0])[-1], beams, 6, penalty, stop))
    again = generator.search(PROMPT, beams=1, max_tokens=6, ignore_end=True)
    assert again[0].tokens == generator.generate(PROMPT, max_tokens=6, ignore_end=True).tokens


@pytest.mark.parametrize("kind", ["t5", "whisper"])
def test_an_encoder_s_source(kind: str, tmp_path: Path) -> None:
    write_sources(tmp_path, kind)
    rng = np.random.default_rng(3)
    source: Any = [5, 9, 77, 40] if kind == "t5" else rng.normal(0, 0.1, 16000).astype(np.float32)
    with Generator(tmp_path, fallback="error") as generator:
        ours = generator.search(source, start=[BEGIN], beams=3, count=2, max_tokens=5, ignore_end=True)
    agree(ours, expected(Sources(tmp_path, feeds_of(tmp_path, source)).logits, 3, 5, 1.0, set()))


def test_wrong_numbers(generator: Generator) -> None:
    cases: list[dict[str, Any]] = [{"beams": 0}, {"beams": 65}, {"count": 5}, {"max_tokens": 0}]
    for wrong in cases:
        with pytest.raises(InvalidInputError, match="expected 1 to 64 beams"):
            generator.search(PROMPT, **wrong)
