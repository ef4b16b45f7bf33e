"""A service's generator without Ray: answers that are made together are those that are made alone."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import vkep
from tests.session.test_replicas import lose
from tools.waiting import LONG_S, comes_true
from vkep.errors import InvalidInputError, InvalidModelError
from vkep.generation import Generator, Sampling
from vkep.models.language import write_language
from vkep.serving.kserve import ProtocolError
from vkep.serving.openai import parse_request
from vkep.serving.writer import Writer

pytest.importorskip("tokenizers")

PROMPTS = [[65, 66, 67], [72, 101, 108, 108, 111], list(range(40, 80)), [33]]
SETTINGS = Sampling(max_tokens=5, ignore_end=True)


@pytest.fixture(scope="module")
def folder(vulkan: object, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("language")
    write_language(path)
    return path


@pytest.fixture(scope="module")
def alone(folder: Path) -> list[list[int]]:
    with Generator(folder) as generator:
        return [generator.generate(prompt, max_tokens=5, ignore_end=True).tokens for prompt in PROMPTS]


class Steps:
    """A writer, and what its steps were. After a step it waits until it may go on."""

    def __init__(self, folder: Path, of_client: int = 0) -> None:
        self.seen: list[tuple[int, int]] = []
        self.goes_on = threading.Event()
        self.goes_on.set()

        def opened() -> Generator:
            generator = Generator(folder, max_sequences=4)
            generator.text  # noqa: B018
            return generator

        def observe(answers: int, tokens: int, seconds: float) -> None:
            self.seen.append((answers, tokens))
            assert self.goes_on.wait(LONG_S)

        self.writer = Writer(opened, observe, 4, of_client)

    async def tokens(self, prompt: Any, settings: Sampling = SETTINGS) -> list[int]:
        found = [event.token async for _, event in self.writer.stream([(prompt, settings)]) if event.token is not None]
        return [token for token in found if token is not None]


@pytest.fixture(scope="module")
def steps(folder: Path) -> Iterator[Steps]:
    one = Steps(folder)
    yield one
    one.writer.close()


def test_answers_are_made_together_and_are_those_made_alone(steps: Steps, alone: list[list[int]]) -> None:
    async def main() -> list[list[int]]:
        steps.goes_on.clear()
        answers = asyncio.gather(*map(steps.tokens, PROMPTS))
        await asyncio.sleep(0)  # all have asked
        steps.goes_on.set()
        return await answers

    assert asyncio.run(main()) == alone
    assert max(tokens for _, tokens in steps.seen) == len(PROMPTS)  # a step brought each of them a token


def test_a_client_that_disconnects_ends_its_answer_only(steps: Steps, alone: list[list[int]]) -> None:
    async def leaves() -> None:
        async for _ in steps.writer.stream([(PROMPTS[0], Sampling(ignore_end=True))]):
            break

    async def main() -> list[int]:
        left = asyncio.create_task(leaves())
        found = await steps.tokens(PROMPTS[1])
        await left
        return found

    assert asyncio.run(main()) == alone[1]
    assert asyncio.run(steps.tokens(PROMPTS[2])) == alone[2]
    assert steps.writer._jobs == [] or all(job.left for job in steps.writer._jobs)


def test_a_prompt_that_is_wrong_fails_alone(steps: Steps, alone: list[list[int]]) -> None:
    async def main() -> list[Any]:
        return list(
            await asyncio.gather(
                steps.tokens([]), steps.tokens(PROMPTS[0]), steps.tokens([10**6]), return_exceptions=True
            )
        )

    empty, right, unknown = asyncio.run(main())
    assert isinstance(empty, vkep.InvalidInputError) and isinstance(unknown, vkep.InvalidInputError)
    assert right == alone[0]


def test_a_lost_device_fails_answers_in_progress_and_the_next_are_right(folder: Path, alone: list[list[int]]) -> None:
    one = Steps(folder)  # of its own: no step of an earlier answer is still to be observed, and would wait here

    async def main() -> None:
        events = one.writer.stream([(PROMPTS[0], Sampling(ignore_end=True))])  # to the end of the context
        one.goes_on.clear()
        await anext(events)
        lose(one.writer.generator.decoder.session)
        one.goes_on.set()
        with pytest.raises(vkep.DeviceLostError):
            async for _ in events:
                pass

    asyncio.run(main())
    assert asyncio.run(one.tokens(PROMPTS[1])) == alone[1]
    assert not one.writer.gone
    one.writer.close()


def test_closing_ends_answers_in_progress(folder: Path) -> None:
    one = Steps(folder)

    async def main() -> None:
        events = one.writer.stream([(PROMPTS[0], Sampling(ignore_end=True))])
        one.goes_on.clear()
        await anext(events)
        closing = asyncio.get_running_loop().run_in_executor(None, one.writer.close)
        assert comes_true(lambda: not one.writer._inbox.empty())
        one.goes_on.set()
        await closing
        with pytest.raises(ProtocolError, match="closing"):
            async for _ in events:
                pass

    asyncio.run(main())


FIELDS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "seed",
    "max_tokens",
    "stop",
    "ignore_eos",
    "prompt",
)
VALUES: tuple[Any, ...] = (
    True,
    0,
    1,
    -1,
    2.5,
    1e-320,
    1e38,
    3e38,
    10**9,
    10**18,
    10**30,
    "1",
    "",
    "a",
    "a" * 1024,
    "\ud800",
    ["a"],
    ["a"] * 16,
    ["a"] * 17,
    [10**9],
    [-1],
    [1.5],
    [[1]],
    {},
    None,
)


def test_no_value_of_a_request_changes_another_answer(folder: Path, alone: list[list[int]]) -> None:
    steps = Steps(folder)
    bodies = [
        json.dumps({"prompt": [65], "max_tokens": 3, "ignore_eos": True} | {field: value}).encode()
        for field in FIELDS
        for value in VALUES
    ]

    async def attacks(part: list[bytes]) -> int:
        refused = 0
        for body in part:
            try:
                given = parse_request(body, chat=False)
                text, prompt = steps.writer.generator.text, given.prompts[0]
                prompt = text.encode(prompt) if isinstance(prompt, str) else prompt
                await steps.tokens(prompt, steps.writer.generator.sampling(**{**given.settings, "max_tokens": 3}))
            except (ProtocolError, InvalidInputError):
                refused += 1
        return refused

    async def innocent() -> None:
        for _ in range(10):
            for prompt, expected in zip(PROMPTS, alone, strict=True):
                assert await steps.tokens(prompt) == expected

    async def main() -> int:
        *_, one, two = await asyncio.gather(innocent(), innocent(), attacks(bodies[::2]), attacks(bodies[1::2]))
        return one + two

    refused = asyncio.run(main())
    steps.writer.close()
    assert 50 < refused < len(bodies) - 30


def test_a_client_of_many_answers_leaves_room_for_others(folder: Path) -> None:
    one = Steps(folder, of_client=3)
    long = Sampling(max_tokens=60, ignore_end=True)
    ended: list[str] = []

    async def asked(client: str, settings: Sampling) -> None:
        async for _ in one.writer.stream([(PROMPTS[0], settings)], client):
            pass
        ended.append(client)

    async def main() -> None:
        many = [asyncio.ensure_future(asked("many", long)) for _ in range(8)]
        while not one.seen or one.seen[-1][0] < 3:
            await asyncio.sleep(0.01)
        await asked("other", SETTINGS)
        await asyncio.gather(*many)

    asyncio.run(main())
    one.writer.close()
    assert ended == ["other", *["many"] * 8]
    assert max(answers for answers, _ in one.seen) == 4 and one.seen[-1][0] <= 3


class FailsAt:
    """A tokenizer's text that fails for a token."""

    def __init__(self, text: Any, token: int) -> None:
        self._text, self._token = text, token

    def decode(self, tokens: Any) -> str:
        if self._token in tokens:
            raise InvalidModelError("the tokenizer fails")
        return str(self._text.decode(tokens))


def test_an_answer_whose_text_cannot_be_read_ends_alone(folder: Path, alone: list[list[int]]) -> None:
    with Generator(folder) as generator:
        generator.text  # noqa: B018
        batch = generator.batch(4)
        answers = [batch.add(prompt, SETTINGS) for prompt in PROMPTS[:3]]
        answers[1]._stream._text = FailsAt(generator.text, alone[1][2])  # type: ignore[union-attr]
        while batch.in_progress:
            batch.step()
        assert [a.tokens for a in (answers[0], answers[2])] == [alone[0], alone[2]]
        assert answers[1].reason == "error" and "the tokenizer fails" in str(answers[1].error)
        batch.close()
