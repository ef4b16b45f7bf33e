"""Prompt lookup: several tokens in one run, and the tokens are those without it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.calls import noted
from vkep.errors import InvalidInputError
from vkep.generation import Batch, Generator
from vkep.generation.decoder import Decoder
from vkep.generation.draft import Draft
from vkep.models.language import write_language
from vkep.models.sources import write_sources

pytestmark = pytest.mark.gpu


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of tokens of each run of a decoder."""
    return noted(monkeypatch, Decoder, "_run", lambda self, ids, *rest: int(ids.shape[1]))


def test_the_tokens_are_those_without(generator: Generator, folder: Path, runs: list[int]) -> None:
    settings: dict[str, Any] = {"max_tokens": 16, "ignore_end": True}
    prompts = [[5, 60, 7], [7, 8, 9, 7, 8, 9, 7, 8]]
    expected = [generator.generate(prompt, **settings).tokens for prompt in prompts]
    # what a random model says is its own: an answer in the prompt is one to look up
    prompts.append([*prompts[0], *expected[0], *prompts[0]])
    expected.append(generator.generate(prompts[-1], **settings).tokens)
    with Generator(folder, fallback="error", lookup=5) as guessing:
        for prompt, tokens in zip(prompts, expected, strict=True):
            runs.clear()
            answer = guessing.generate(prompt, max_tokens=len(tokens), ignore_end=True)
            assert answer.tokens == tokens and answer.reason == "length"
            assert max(runs[1:], default=0) <= 6
        together = guessing.generate(prompts, **settings)  # nothing is guessed
        assert [answer.tokens for answer in together] == expected
        sampled: dict[str, Any] = {"temperature": 1.0, "seed": 3, "max_tokens": 12}
        assert guessing.generate(prompts[1], **sampled).tokens == generator.generate(prompts[1], **sampled).tokens


@pytest.mark.parametrize("right", [4, 2, 0])
def test_right_guesses_save_runs(
    generator: Generator, folder: Path, runs: list[int], monkeypatch: pytest.MonkeyPatch, right: int
) -> None:
    expected = generator.generate([65, 66], max_tokens=16, ignore_end=True).tokens
    monkeypatch.setattr(
        Batch,
        "_guess",
        lambda _, answer: [
            token if k < right else (token + 1) % 256 for k, token in enumerate(expected[len(answer.tokens) :][:4])
        ],
    )
    with Generator(folder, fallback="error", lookup=4) as guessing:
        runs.clear()
        assert guessing.generate([65, 66], max_tokens=16, ignore_end=True).tokens == expected
        assert len(runs) == 1 + -(-15 // (right + 1))  # a run makes the right tokens, and one more


def test_a_draft_model(generator: Generator, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model itself as a draft is always right, another one rarely; the tokens are the same."""
    guesses = noted(monkeypatch, Batch, "_test", lambda _, answer, guess: len(guess))
    write_language(tmp_path, folder.name, context=48, layers=2)
    prompts = [[5, 60, 7], list(range(40, 80))]
    for prompt in prompts:
        expected = generator.generate(prompt, max_tokens=16, ignore_end=True).tokens
        for draft in (folder, tmp_path):
            with Generator(folder, fallback="error", draft=draft, draft_tokens=3) as guessing:
                for _ in range(2):  # the second time the draft's caches hold what was said
                    guesses.clear()
                    answer = guessing.generate(prompt, max_tokens=16, ignore_end=True)
                    assert answer.tokens == expected
                    if draft == folder:
                        assert guesses == [3, 3, 3, 2]  # each run makes these and one more
                sampled: dict[str, Any] = {"temperature": 1.0, "seed": 3, "max_tokens": 8}
                drawn = guessing.generate(prompt, **sampled)
                assert drawn.tokens == guessing.generate(prompt, **sampled).tokens
                assert len(drawn.tokens) == 8 or drawn.reason == "stop"
                together = guessing.generate([prompt, [7]], max_tokens=5, ignore_end=True)
                assert together[0].tokens == expected[:5]


def test_a_draft_without_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise MemoryError("no room")

    with (
        Generator(folder, fallback="error", draft=folder) as guessing,
        Generator(folder, fallback="error") as generator,
    ):
        monkeypatch.setattr(Draft, "guess", full)
        expected = generator.generate([5, 60, 7], max_tokens=6, ignore_end=True).tokens
        assert guessing.generate([5, 60, 7], max_tokens=6, ignore_end=True).tokens == expected


def test_a_draft_of_another_kind(folder: Path, tmp_path: Path) -> None:
    write_sources(tmp_path, "t5")
    for first, second in ((folder, tmp_path), (tmp_path, folder)):
        with pytest.raises(InvalidInputError, match="a model with an encoder"):
            Generator(first, draft=second)
    with pytest.raises(InvalidInputError, match="draft_tokens is 0"):
        Generator(folder, draft=folder, draft_tokens=0)


@pytest.mark.parametrize("lookup", [-1, 65])
def test_wrong_numbers(folder: Path, lookup: int) -> None:
    with pytest.raises(InvalidInputError, match="expected 0 to 64"):
        Generator(folder, lookup=lookup)
