"""Penalties, numbers added to logits, logarithms of probabilities and grammars, of answers that are made together."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from vkep.errors import InvalidInputError
from vkep.generation import Generator, Sampling
from vkep.generation.biases import Bias
from vkep.generation.grammar import Grammars, of_schema
from vkep.generation.sampling import MOST_LOGPROBS
from vkep.models.language import END, write_language

pytest.importorskip("tokenizers")

SCHEMA = {
    "type": "object",
    "properties": {"kind": {"enum": ["cat", "dog"]}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["kind", "age"],
    "additionalProperties": False,
}
PROMPT = [72, 101, 108, 108, 111]


@pytest.fixture(scope="module")
def generator(vulkan: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Generator]:
    path = tmp_path_factory.mktemp("language")
    write_language(path)
    with Generator(path, max_sequences=4) as made:
        made.text  # noqa: B018
        yield made


def logits_of(generator: Generator, tokens: list[int]) -> np.ndarray[Any, Any]:
    """The logits of the next token, from a run of the whole sequence in a batch of its own."""
    batch = generator.batch(1)
    made = batch._rows.feed(batch._rows.take(tokens, []), tokens)
    found = made.logits.numpy()[0, -1].astype(np.float64)
    batch.close()
    return found


def test_logprobs_are_those_of_the_models_own_probabilities(generator: Generator) -> None:
    answer = generator.generate(PROMPT, max_tokens=5, ignore_end=True, logprobs=4, temperature=0.9, seed=1, top_k=40)
    assert len(answer.logprobs) == len(answer.tokens) == 5
    for at, one in enumerate(answer.logprobs):
        logits = logits_of(generator, [*PROMPT, *answer.tokens[:at]])
        logs = logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()
        best = np.argsort(-logs)[:4].tolist()
        assert one.token == answer.tokens[at] and list(one.top) == best
        np.testing.assert_allclose([one.value, *one.top.values()], logs[[one.token, *best]], atol=2e-4)


def test_logarithms_change_no_answer_of_a_batch(generator: Generator) -> None:
    alone = generator.generate(PROMPT, max_tokens=6, ignore_end=True)
    batch = generator.batch(3)
    plain = Sampling(max_tokens=6, ignore_end=True)
    answers = [batch.add(PROMPT, s) for s in (plain, Sampling(max_tokens=3, logprobs=MOST_LOGPROBS), plain)]
    while batch.in_progress:
        batch.step()
    batch.close()
    assert answers[0].tokens == answers[2].tokens == alone.tokens and not answers[0].logprobs
    assert [len(one.top) for one in answers[1].logprobs] == [MOST_LOGPROBS] * 3


def test_penalties_and_numbers_are_added_to_the_logits(generator: Generator) -> None:
    settings: dict[str, Any] = {
        "logit_bias": {65: 40.0, 66: 39.5, 67: -100.0},
        "frequency_penalty": 0.75,
        "presence_penalty": 0.5,
    }
    answer = generator.generate(PROMPT, max_tokens=8, ignore_end=True, **settings)
    expected: list[int] = []
    for _ in range(8):
        logits = logits_of(generator, [*PROMPT, *expected])
        for token, value in settings["logit_bias"].items():
            logits[token] += value
        for token in set(expected):
            logits[token] -= 0.75 * expected.count(token) + 0.5
        expected.append(int(logits.argmax()))
    assert answer.tokens == expected and len(set(expected)) > 1


@pytest.mark.parametrize("presence", [-1.0, 0.0, 0.5])
@pytest.mark.parametrize("frequency", [-0.5, 0.0, 0.5])
def test_penalties_of_tokens_that_occurred(presence: float, frequency: float) -> None:
    bias = Bias(Sampling(presence_penalty=presence, frequency_penalty=frequency), None)
    for token in (3, 5, 3, 3):
        bias.took(token)
    expected = np.zeros(8)
    expected[[3, 5]] = -(presence + frequency * np.array([3, 1]))
    np.testing.assert_allclose(bias.row(8), expected)


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_answers_follow_a_schema(generator: Generator, temperature: float) -> None:
    pytest.importorskip("llguidance")
    batch = generator.batch(4)
    plain = Sampling(max_tokens=6, ignore_end=True)
    bound = [
        Sampling(grammar=of_schema(SCHEMA), temperature=temperature, seed=s, max_tokens=60, ignore_end=True)
        for s in (1, 2)
    ]
    answers = [batch.add(PROMPT, settings) for settings in (plain, *bound)]
    while batch.in_progress:
        batch.step()
    batch.close()
    for answer in answers[1:]:
        found = json.loads(answer.text)
        assert found.keys() == {"kind", "age"} and found["kind"] in ("cat", "dog") and 0 <= found["age"] < 100
        assert answer.reason == "stop" and END not in answer.tokens
    assert answers[0].tokens == generator.generate(PROMPT, max_tokens=6, ignore_end=True).tokens


@pytest.mark.parametrize("grammar", ['start: %json {"type": "none"}', "start: (", "x" * 200_000, 'start: %json {"a'])
def test_grammars_that_cannot_be_used_are_refused(generator: Generator, grammar: str) -> None:
    pytest.importorskip("llguidance")
    with pytest.raises(InvalidInputError, match="grammar"):
        generator.generate(PROMPT, grammar=grammar)


def test_a_grammar_that_reaches_a_limit_ends_its_own_answer(generator: Generator, monkeypatch: Any) -> None:
    pytest.importorskip("llguidance")
    begin = Grammars.begin

    class Failing:
        def __init__(self, grammar: Any) -> None:
            self._grammar, self._left, self.ended = grammar, 3, False

        def mask(self, vocabulary: int) -> np.ndarray[Any, Any]:
            self._left -= 1
            return self._grammar.mask(vocabulary) if self._left > 0 else np.zeros(vocabulary, np.bool_)

        def take(self, token: int) -> None:
            self._grammar.take(token)

    monkeypatch.setattr(Grammars, "begin", lambda self, grammar: Failing(begin(self, grammar)))
    batch = generator.batch(2)
    plain = batch.add(PROMPT, Sampling(max_tokens=6, ignore_end=True))
    bound = batch.add(PROMPT, Sampling(grammar=of_schema(SCHEMA), max_tokens=60))
    while batch.in_progress:
        batch.step()
    batch.close()
    assert bound.reason == "error" and "no token that may follow" in str(bound.error)
    assert plain.tokens == generator.generate(PROMPT, max_tokens=6, ignore_end=True).tokens


@pytest.mark.parametrize(
    "settings",
    [
        {"logit_bias": {"65": 1}},
        {"logit_bias": {-1: 1}},
        {"logit_bias": {1: 10**400}},
        {"logit_bias": {1: float("nan")}},
        {"logit_bias": dict.fromkeys(range(5000), 1)},
        {"logit_bias": [1]},
        {"frequency_penalty": 1e9},
        {"presence_penalty": "1"},
        {"logprobs": 21},
        {"logprobs": True},
        {"grammar": 1},
    ],
)
def test_settings_of_other_kinds_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match=next(iter(settings))):
        Sampling(**settings)
