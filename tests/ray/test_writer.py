"""A service's generator without Ray: answers that are made together are those that are made alone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import vkep
from tests.session.test_replicas import lose
from tools.models.language import write_language
from tools.waiting import LONG_S, comes_true
from vkep.generation import Generator, Sampling
from vkep.ray.writer import Writer

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

    def __init__(self, folder: Path) -> None:
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

        self.writer = Writer(opened, observe)

    async def tokens(self, prompt: Any, settings: Sampling = SETTINGS) -> list[int]:
        found = [event.token async for event in self.writer.stream(prompt, settings) if event.token is not None]
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
        async for _ in steps.writer.stream(PROMPTS[0], Sampling(ignore_end=True)):
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
        events = one.writer.stream(PROMPTS[0], Sampling(ignore_end=True))  # to the end of the context
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
        events = one.writer.stream(PROMPTS[0], Sampling(ignore_end=True))
        one.goes_on.clear()
        await anext(events)
        closing = asyncio.get_running_loop().run_in_executor(None, one.writer.close)
        assert comes_true(lambda: not one.writer._inbox.empty())
        one.goes_on.set()
        await closing
        with pytest.raises(vkep.VkepError, match="closing"):
            async for _ in events:
                pass

    asyncio.run(main())
