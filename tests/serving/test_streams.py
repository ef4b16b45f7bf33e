"""Streams of requests without Ray: order, how many are in progress, failures and callers that disconnect."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.ray.virtual import played
from vkep.serving.streams import in_order


async def counted(count: int, read: list[int]) -> AsyncIterator[int]:
    for at in range(count):
        read.append(at)
        yield at


class Answers:
    """Answers the later requests first, and counts those in progress."""

    def __init__(self, fails: int = -1, endless: int = 1000) -> None:
        self.now = self.most = self.cancelled = 0
        self._fails, self._endless = fails, endless

    async def __call__(self, request: int) -> int:
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await asyncio.sleep(0.001 * (5 - request % 5) if request < self._endless else 600)
            if request == self._fails:
                raise KeyError(request)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.now -= 1
        return request * 10


async def taken(count: int, answers: Answers, most: int, leave: int = -1) -> tuple[list[int], list[int]]:
    read: list[int] = []
    found: list[int] = []
    stream = in_order(counted(count, read), answers, most)
    try:
        async for answer in stream:
            found.append(answer)
            if len(found) == leave:
                break
    finally:
        await stream.aclose()
        await asyncio.sleep(0)
    return found, read


def test_answers_keep_the_order_and_few_are_in_progress() -> None:
    answers = Answers()
    found, _ = played(taken(20, answers, 4))
    assert found == [at * 10 for at in range(20)] and answers.most == 4
    assert played(taken(0, answers, 4)) == ([], [])


def test_a_caller_that_disconnects_ends_its_requests() -> None:
    answers = Answers(endless=3)
    found, read = played(taken(1000, answers, 4, leave=3))
    assert len(found) == 3 and len(read) < 12 and answers.now == 0 and answers.cancelled


def test_a_failure_is_raised_at_its_turn() -> None:
    answers = Answers(fails=2)
    with pytest.raises(KeyError):
        played(taken(10, answers, 4))
    assert answers.now == 0
