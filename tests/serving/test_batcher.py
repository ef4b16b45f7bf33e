"""Which requests share a run, and when it starts."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Sequence
from typing import Any

import pytest

from tests.ray.virtual import VirtualLoop
from tests.ray.virtual import played as played_to_its_end
from vkep.serving.batcher import _QUIET_S, Batcher


class Runs:
    """Runs that last until they are let go; each item is a text, and its answer is that text in capitals."""

    def __init__(self, rows: int, wait_s: float, runs: int) -> None:
        self.started: list[list[str]] = []
        self.batcher = Batcher(self._run, rows, wait_s, runs)
        self._goes: list[asyncio.Event] = []

    async def _run(self, items: list[str]) -> Sequence[Any]:
        self.started.append(items)
        self._goes.append(asyncio.Event())
        await self._goes[-1].wait()
        if "raise" in items:
            raise OSError("all")
        return [ValueError(item) if item == "bad" else item.upper() for item in items]

    def end(self, index: int) -> None:
        """Let a run end."""
        self._goes[index].set()

    def ask(self, item: str, key: str = "", rows: int = 1) -> asyncio.Task[Any]:
        return asyncio.ensure_future(self.batcher(item, key, rows))


def played(main: Coroutine[Any, Any, None], loop: VirtualLoop | None = None) -> None:
    """Run it for up to 20 s of the loop's time, which take no time."""
    played_to_its_end(asyncio.wait_for(main, 20), loop)


def now() -> float:
    return asyncio.get_running_loop().time()


async def turns() -> None:
    """Let all that can go on do so."""
    for _ in range(10):
        await asyncio.sleep(0)


def test_requests_that_arrive_during_runs_form_a_batch_when_one_ends() -> None:
    async def main() -> None:
        runs = Runs(rows=4, wait_s=0, runs=1)
        first = runs.ask("a")
        await turns()
        others = [runs.ask(item) for item in "bcdef"]
        await asyncio.sleep(0.02)  # they are due, and no run is free
        assert runs.started == [["a"]]
        runs.end(0)
        await turns()
        assert runs.started == [["a"], ["b", "c", "d", "e"]]
        runs.end(1)
        await turns()
        runs.end(2)
        assert [await one for one in (first, *others)] == list("ABCDEF") and runs.started[2] == ["f"]

    played(main())


def test_a_full_run_does_not_wait_and_another_waits_its_time() -> None:
    async def main() -> None:
        runs = Runs(rows=4, wait_s=0.05, runs=8)
        full = [runs.ask("a", rows=3), runs.ask("b", rows=1)]
        await turns()
        assert runs.started == [["a", "b"]] and now() == 0
        with runs.batcher.arriving():  # another request's body
            late = [runs.ask("c", rows=3), runs.ask("d", rows=2)]  # do not fit into one run
            await turns()
            assert runs.started[1:] == [["c"]]
            await asyncio.sleep(0.049)
            assert len(runs.started) == 2
            await asyncio.sleep(0.002)
        assert runs.started[2:] == [["d"]]
        for index in range(3):
            runs.end(index)
        assert [await one for one in (*full, *late)] == list("ABCD")

    played(main())


@pytest.mark.parametrize("arriving", [False, True])
def test_a_run_does_not_wait_where_no_request_is_arriving(arriving: bool) -> None:
    async def main() -> None:
        runs = Runs(rows=4, wait_s=2, runs=1)
        waits = 2 if arriving else _QUIET_S
        with runs.batcher.arriving() if arriving else contextlib.nullcontext():
            first = runs.ask("a")
            await asyncio.sleep(waits - 0.0008)
            assert not runs.started
            await asyncio.sleep(0.001)
            assert runs.started
        runs.end(0)
        assert await first == "A"

    played(main())


class MillisecondsLoop(VirtualLoop):
    """An event loop whose timers count milliseconds, and are no timers where none is left, as uvloop's."""

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> Any:  # type: ignore[override]
        left = round((when - self.time()) * 1000)
        if left <= 0:
            return self.call_soon(callback, *args, context=context)
        return super().call_at(self.time() + left / 1000, callback, *args, context=context)


@pytest.mark.parametrize("wait_s", [0.0004, 0.0006, 0.0011])
def test_timers_that_count_milliseconds(wait_s: float) -> None:
    loop = MillisecondsLoop()

    async def main() -> None:
        runs = Runs(rows=1000, wait_s=wait_s, runs=8)
        asked = [runs.ask("a", "1"), runs.ask("b", "2")]
        while len(runs.started) < 2 and not any(one.done() for one in asked):
            await turns()
            loop.spend(0.00005)
            asked.append(runs.ask(f"c{len(asked)}", "3"))  # makes the batcher look at its timer
        assert runs.started[:2] == [["a"], ["b"]] and abs(now() - wait_s) <= 0.0006
        while not all(one.done() for one in asked):
            for index in range(len(runs.started)):
                runs.end(index)
            await asyncio.sleep(0.001)
        assert [one.result() for one in asked[:2]] == ["A", "B"]

    played(main(), loop)


def test_only_requests_of_one_key_share_a_run_and_the_oldest_goes_first() -> None:
    async def main() -> None:
        runs = Runs(rows=8, wait_s=0, runs=1)
        asked = [runs.ask("first", "z")]
        await turns()
        asked += [runs.ask(item, key) for item, key in (("a", "2"), ("b", "1"), ("c", "2"), ("d", "1"))]
        for index in range(3):
            await turns()
            runs.end(index)
        await asyncio.gather(*asked)
        assert runs.started == [["first"], ["a", "c"], ["b", "d"]]

    played(main())


def test_failures_and_requests_that_were_given_up() -> None:
    async def main() -> None:
        runs = Runs(rows=8, wait_s=0, runs=1)
        first = runs.ask("first")
        await turns()
        asked = [runs.ask(item) for item in ("a", "bad", "b")]
        await turns()
        runs.end(0)
        await turns()
        gone, also, left = runs.ask("gone"), runs.ask("raise"), runs.ask("c")
        await turns()
        gone.cancel()
        asked[2].cancel()
        await turns()
        runs.end(1)
        assert await first == "FIRST" and await asked[0] == "A"
        with pytest.raises(ValueError, match="bad"):
            await asked[1]
        await turns()
        assert runs.started[2] == ["raise", "c"]
        runs.end(2)
        for one in (also, left):
            with pytest.raises(OSError, match="all"):
                await one
        alone = runs.ask("alone")  # the run that raised is free again
        await turns()
        runs.end(3)
        assert await alone == "ALONE"

    played(main())


def test_a_request_that_was_given_up_is_not_kept_until_a_run_is_free() -> None:
    async def main() -> None:
        runs = Runs(rows=8, wait_s=0, runs=1)
        first = runs.ask("first")
        await turns()
        gone, left = runs.ask("gone", rows=7), runs.ask("left")
        await turns()
        gone.cancel()
        await turns()
        [queue] = runs.batcher._queues.values()
        assert [one.item for one in queue.waiting] == ["left"] and queue.rows == 1
        left.cancel()
        await turns()
        assert not runs.batcher._queues
        runs.end(0)
        assert await first == "FIRST"

    played(main())


def test_a_run_that_is_cancelled_answers_its_requests() -> None:
    async def main() -> None:
        async def run(items: list[str]) -> Sequence[Any]:
            if items == ["cancelled"]:
                raise asyncio.CancelledError
            return items

        batcher = Batcher(run, 1, 0, 1)
        with pytest.raises(RuntimeError, match="CancelledError"):
            await batcher("cancelled", "", 1)
        assert await batcher("next", "", 1) == "next"

    played(main())
