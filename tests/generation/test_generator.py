"""Answers: batches, settings, texts, what ends them, and what goes wrong."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.calls import noted
from tests.generation.reference import Reference
from vkep.errors import InvalidInputError
from vkep.generation import Generator, Sampling
from vkep.generation.batch import Batch
from vkep.generation.caches import RowCaches
from vkep.generation.decoder import Decoder
from vkep.kernels.launch import is_cpu
from vkep.memory import ArenaOutOfMemory

pytestmark = pytest.mark.gpu
needs_text = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("tokenizers", "jinja2"))), reason="needs vkep[generate]"
)
GREEDY = Sampling(max_tokens=8, ignore_end=True)


def prompt(count: int, seed: int = 0) -> list[int]:
    return [int(t) for t in np.random.default_rng(seed).integers(0, 256, count)]


def test_answers_join_and_leave_a_batch(generator: Generator, theirs: Reference) -> None:
    batch = generator.batch(3)
    first = batch.add(prompt(9, 9), GREEDY)
    for _ in range(2):
        batch.step()
    second = batch.add(prompt(4, 4), GREEDY)
    for _ in range(2):
        batch.step()
    third = batch.add(prompt(17, 3), GREEDY)
    with pytest.raises(InvalidInputError, match="3 sequences are in progress"):
        batch.add(prompt(2), GREEDY)
    batch.cancel(second)
    events = [event for _ in range(12) for event in batch.step()]
    assert first.tokens == theirs.greedy(first.prompt, 8)
    assert third.tokens == theirs.greedy(third.prompt, 8)
    assert [e.token for e in events if e.answer is third] == third.tokens
    assert (first.reason, second.reason, third.reason) == ("length", "cancelled", "length")
    batch.close()


def test_a_next_turn_computes_what_is_new(
    generator: Generator, theirs: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = prompt(20, 5)
    answer = generator.generate(asked, max_tokens=6, ignore_end=True)
    fed: list[int] = []
    for name in ("on_rows", "on_leading"):
        run = getattr(Decoder, name)

        def counted(self: Decoder, ids: Any, *rest: Any, run: Any = run) -> Any:
            fed.append(ids.shape[1])
            return run(self, ids, *rest)

        monkeypatch.setattr(Decoder, name, counted)
    again = [*asked, *answer.tokens, *prompt(4, 6)]
    turn = generator.generate(again, max_tokens=4, ignore_end=True)
    assert turn.tokens == theirs.greedy(again, 4)
    assert fed == [5, 1, 1, 1]  # the last token of the answer had not been read yet


def test_a_seed_gives_the_same_tokens_whatever_else_is_in_the_batch(generator: Generator) -> None:
    settings: dict[str, Any] = {
        "temperature": 1.0,
        "top_k": 40,
        "top_p": 0.9,
        "repetition_penalty": 1.1,
        "ignore_end": True,
    }
    alone = generator.generate(prompt(7), seed=11, max_tokens=8, **settings)
    others = generator.generate([prompt(5, 1), prompt(7)], seed=11, max_tokens=8, **settings)
    assert others[1].tokens == alone.tokens
    assert generator.generate(prompt(7), seed=12, max_tokens=8, **settings).tokens != alone.tokens


def test_the_caches_grow_up_to_the_context(generator: Generator, theirs: Reference) -> None:
    asked = prompt(10, 8)
    answer = generator.generate(asked, ignore_end=True)
    assert answer.reason == "context"
    assert answer.tokens == theirs.greedy(asked, 86)


@needs_text
def test_text_comes_as_it_is_known(generator: Generator) -> None:
    settings: dict[str, Any] = {"max_tokens": 24, "temperature": 1.5, "seed": 4, "ignore_end": True}
    asked = "caf\N{LATIN SMALL LETTER E WITH ACUTE}"
    whole = generator.generate(asked, **settings)
    assert whole.text == generator.text.decode(whole.tokens)
    pieces = list(generator.stream(asked, **settings))
    assert "".join(pieces) == whole.text
    assert len(pieces) > 4
    stop = whole.text[6:8]
    stopped = generator.generate(asked, stop=[stop], **settings)
    assert stopped.text == whole.text[: whole.text.index(stop)]
    assert stopped.reason == "stop"
    token = whole.tokens[5]
    ended = generator.generate(asked, stop_tokens=[token], **settings)
    assert ended.tokens == whole.tokens[: whole.tokens.index(token)]


@needs_text
def test_a_conversation_goes_by_the_template(generator: Generator) -> None:
    messages = [{"role": "user", "content": "hi"}]
    answer = generator.chat(messages, max_tokens=3, ignore_end=True)
    assert generator.text.decode(answer.prompt) == "<user>hi\n<assistant>"
    assert answer.tokens == generator.generate(answer.prompt, max_tokens=3, ignore_end=True).tokens
    assert "".join(generator.stream_chat(messages, max_tokens=3, ignore_end=True)) == answer.text


def test_an_interrupt_leaves_all_usable(
    generator: Generator, theirs: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = generator.batch()
    answer = batch.add(prompt(6, 9), GREEDY)
    choose, calls = Batch._choose, iter(range(100))

    def interrupted(self: Batch, *arguments: Any) -> Any:
        if next(calls) in (0, 3):  # behind the prompt's run, and behind a step's
            raise KeyboardInterrupt
        return choose(self, *arguments)

    monkeypatch.setattr(Batch, "_choose", interrupted)
    interrupts = 0
    while not answer.ended:
        try:
            batch.step()
        except KeyboardInterrupt:
            interrupts += 1
    assert interrupts == 2
    assert answer.tokens == theirs.greedy(answer.prompt, 8)
    batch.close()


def test_an_answer_without_a_reader_is_cancelled(generator: Generator) -> None:
    """As after interrupts that skip a stream's own clean-up."""
    reader = generator._batch.read(prompt(4, 1), Sampling(ignore_end=True))
    answer = reader.answer
    generator._batch.step()
    assert answer.tokens and not answer.ended
    del reader
    assert generator.generate(prompt(4, 2), max_tokens=1, ignore_end=True).tokens
    assert answer.reason == "cancelled" and not generator._batch.in_progress


def test_without_memory_an_answer_ends_where_it_is(
    generator: Generator, theirs: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = generator.batch()
    answer = batch.add(prompt(60, 2), Sampling(ignore_end=True))
    grow = RowCaches.grow

    def full(self: RowCaches, rows: int, capacity: int) -> None:
        if capacity > 64 or rows > 1:
            raise ArenaOutOfMemory("it", asked=1, in_use=1, allocated=1, limit=1, largest_free=0, reason="full")
        grow(self, rows, capacity)

    monkeypatch.setattr(RowCaches, "grow", full)
    with pytest.raises(ArenaOutOfMemory):
        batch.add(prompt(2), GREEDY)
    while not answer.ended:
        events = batch.step()
    assert answer.reason == "memory" == events[-1].reason
    assert answer.tokens == theirs.greedy(answer.prompt, len(answer.tokens))
    assert isinstance(generator.decoder, Decoder)
    assert len(answer.tokens) == (5 if generator.decoder.by_rows else 4)  # caches that grow leave one place free
    batch.close()


def test_without_memory_for_two_runs_the_log_says_so_once(
    generator: Generator, theirs: Reference, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    batch = generator.batch()

    def full(*_: object) -> None:
        raise ArenaOutOfMemory("it", asked=1, in_use=1, allocated=1, limit=1, largest_free=0, reason="full")

    monkeypatch.setattr(batch._rows, "ahead", full)
    answers = []
    for count in (4, 5):
        answers.append(batch.add(prompt(count, count), GREEDY))
        while batch.in_progress:
            batch.step()
    [said] = [record for record in caplog.records if record.name == "vkep.generation"]
    assert "no memory for two runs" in said.getMessage() and "arena 'it'" in said.getMessage()
    for answer in answers:
        assert answer.tokens == theirs.greedy(answer.prompt, 8)
    batch.close()


def test_few_plans_serve_all_lengths(folder: Path) -> None:
    """Prompts and steps of any length, in caches that move to larger memory."""
    with Generator(folder, fallback="error") as generator:
        [session] = generator.decoder.sessions
        graph = session._parts.graph
        for count in (3, 9, 30, 17, 44, 66, 5, 12, 4, 8):
            generator.generate(prompt(count, count), max_tokens=9, ignore_end=True)
        before = graph.plan_count
        for count in (6, 7, 21, 50, 60):
            generator.generate(prompt(count, 100 + count), max_tokens=9, ignore_end=True)
        # a GPU has kernels of their own for few rows
        assert graph.plan_count == before <= (4 if is_cpu(session.context.capabilities) else 5)
        assert graph.latest is not None and len(graph.latest.program.in_place) == 2  # no cache is copied


@pytest.mark.parametrize(
    ("asked", "settings", "match"),
    [
        ([], {}, "empty"),
        ([1] * 96, {}, "has 96 tokens; the model takes 96"),
        ([1, 320], {}, "token 320 of the prompt is not among the model's 320"),
        ([1], {"top_p": 0.0}, "top_p is 0.0"),
        ([1], {"temperature": -1.0}, "temperature is -1.0"),
        ([1], {"max_tokens": 0}, "max_tokens is 0"),
    ],
)
def test_wrong_requests_are_refused(
    generator: Generator, asked: Sequence[int], settings: dict[str, Any], match: str
) -> None:
    with pytest.raises(InvalidInputError, match=match):
        generator.generate(asked, **settings)


@pytest.mark.parametrize("how", [{}, {"temperature": 1.0, "top_k": 50, "repetition_penalty": 1.2, "seed": 3}])
def test_a_step_that_was_submitted_ahead_is_left_where_answers_change(
    generator: Generator, theirs: Reference, how: dict[str, Any]
) -> None:
    """Answers join, are cancelled and end while the next step is on the device already; a second batch runs in between."""
    batch, other, alone = generator.batch(4), generator.batch(1), generator.batch(1)
    alone.runs_ahead = False
    settings = Sampling(max_tokens=12, ignore_end=True, **how)
    answers = [batch.add(prompt(5, 5), settings)]
    beside = other.add(prompt(6, 6), settings)
    for step in range(16):
        batch.step()
        if step in (3, 7):
            answers.append(batch.add(prompt(4 + step, step), settings))
        if step == 5:
            batch.cancel(batch.add(prompt(3), settings))
        if step % 3 != 1 and not beside.ended:
            other.step()
    while batch.in_progress or other.in_progress:
        batch.step()
        other.step()
    for answer in (*answers, beside):
        wanted = alone.add(answer.prompt, settings)
        while how and alone.in_progress:
            alone.step()
        assert answer.tokens == (wanted.tokens if how else theirs.greedy(answer.prompt, 12))
        alone.cancel(wanted)
    for one in (batch, other, alone):
        one.close()


def test_prompts_that_begin_alike_share_what_was_computed(
    generator: Generator, theirs: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = [int(t) for t in np.random.default_rng(8).integers(1, 250, 50)]
    prompts = [[*system, *more] for more in ([7, 8], [9], [10, 11, 12], [])]
    expected = [theirs.greedy(prompt, 6) for prompt in prompts]
    runs = noted(monkeypatch, Decoder, "_run", lambda self, ids, *rest: int(ids.shape[1]))

    def filled() -> int:
        """Tokens of prompts that were computed."""
        return sum(count for count in runs if count > 1)

    batch = generator.batch(max_sequences=4)
    answers = [batch.add(prompt, Sampling(max_tokens=6, ignore_end=True)) for prompt in prompts]  # before any is read
    while batch.in_progress:
        batch.step()
    assert [a.tokens for a in answers] == expected
    assert filled() <= 52 + 3  # parts of a single token are not counted
    runs.clear()
    late = batch.add(prompts[0], Sampling(max_tokens=6, ignore_end=True))
    batch.step()
    again = batch.add([*system, 20, 21], Sampling(max_tokens=4, ignore_end=True))  # while another one is in progress
    while batch.in_progress:
        batch.step()
    assert late.tokens == expected[0] and again.tokens == theirs.greedy([*system, 20, 21], 4)
    assert filled() <= 2
    batch.close()
