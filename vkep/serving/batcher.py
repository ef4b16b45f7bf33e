"""Requests that share runs: those that wait while all runs are in progress go together once one ends. asyncio alone.

Serve's own batching (`ray.serve.batch`) ends a batch when its time is over, also while no run can start. So the batches of a
busy replica were no larger than those of an idle one, and waited for each other.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")

#: uvloop's timers, which Serve uses, count milliseconds: they end up to half of one early
_EARLY_S = 0.0005
#: a list does not wait where no request came for so long and none is arriving
_QUIET_S = 0.001


@dataclass(frozen=True, eq=False)
class _Request(Generic[Item]):
    """A request, the rows that it adds to a run, and the time of the loop's clock from which it waits for no others."""

    item: Item
    rows: int
    due: float
    answer: asyncio.Future[Any]


@dataclass
class _Queue(Generic[Item]):
    """Requests that may share runs, in order of arrival, and their rows."""

    waiting: deque[_Request[Item]] = field(default_factory=deque)
    rows: int = 0

    @property
    def due(self) -> float:
        return self.waiting[0].due

    def add(self, request: _Request[Item]) -> None:
        self.waiting.append(request)
        self.rows += request.rows

    def remove(self, request: _Request[Item]) -> None:
        self.waiting.remove(request)
        self.rows -= request.rows

    def take(self, most: int) -> list[_Request[Item]]:
        """The first requests, of up to ``most`` rows or one, without those that were given up."""
        taken: list[_Request[Item]] = []
        rows = 0
        while self.waiting and (not taken or rows + self.waiting[0].rows <= most):
            one = self.waiting.popleft()
            self.rows -= one.rows
            if not one.answer.done():
                taken.append(one)
                rows += one.rows
        return taken


class Batcher(Generic[Item]):
    """Calls ``run`` with lists of requests of one key and up to ``rows`` rows, for up to ``runs`` lists at once.

    ``run`` gives a result or an exception for each. While a run is free a list starts when it is full, when its first
    request has waited ``wait_s``, or when no request came for a millisecond and none is arriving; of several that may start,
    the one whose first request came first. For one event loop.
    """

    def __init__(
        self, run: Callable[[list[Item]], Awaitable[Sequence[Any]]], rows: int, wait_s: float, runs: int
    ) -> None:
        self._run, self._rows, self._wait, self._free = run, rows, wait_s, runs
        self._queues: dict[Hashable, _Queue[Item]] = {}  # none is empty
        self._timer: tuple[float, asyncio.Handle] | None = None  # not every handle of uvloop has the time
        self._tasks: set[asyncio.Task[None]] = set()
        self._arriving = 0
        self._last = 0.0  # when the latest request came

    @contextlib.contextmanager
    def arriving(self) -> Iterator[None]:
        """A ``with`` block around the arrival of a request's body, before the request itself."""
        self._arriving += 1
        try:
            yield
        finally:
            self._arriving -= 1

    def _due(self, queue: _Queue[Item]) -> float:
        """The time from which a list of this queue waits for no others."""
        return queue.due if self._arriving else min(queue.due, self._last + _QUIET_S)

    async def __call__(self, item: Item, key: Hashable, rows: int) -> Any:
        """The result for a request. Raises the exception that ``run`` gives for it, or raises."""
        loop = asyncio.get_running_loop()
        self._last = loop.time()
        request = _Request(item, rows, self._last + self._wait, loop.create_future())
        self._queues.setdefault(key, _Queue()).add(request)
        self._start()
        try:
            return await request.answer
        except asyncio.CancelledError:  # the client gave up: its item is not kept until a run is free
            queue = self._queues.get(key)
            if queue is not None and request in queue.waiting:
                queue.remove(request)
                if not queue.waiting:
                    del self._queues[key]
            raise

    def _start(self) -> None:
        """Start what may start, and see to it that this is called when the next list is due."""
        loop = asyncio.get_running_loop()
        while self._free and self._queues:
            now = loop.time()
            ready = [
                (q.due, key)
                for key, q in self._queues.items()
                if q.rows >= self._rows or self._due(q) <= now + _EARLY_S
            ]
            if not ready:
                due = min(self._due(queue) for queue in self._queues.values())
                if self._timer is None or self._timer[0] > due:
                    self._stop_timer()
                    self._timer = due, loop.call_at(due, self._ring)
                return
            _, key = min(ready, key=lambda one: one[0])
            taken = self._queues[key].take(self._rows)
            if not self._queues[key].waiting:
                del self._queues[key]
            if taken:
                self._free -= 1
                task = loop.create_task(self._answer(taken))
                self._tasks.add(task)  # a loop refers to its tasks weakly
                task.add_done_callback(self._tasks.discard)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer[1].cancel()
            self._timer = None

    def _ring(self) -> None:
        self._timer = None
        self._start()

    async def _answer(self, taken: list[_Request[Item]]) -> None:
        try:
            results = await self._run([one.item for one in taken])
        except Exception as error:
            results = [error] * len(taken)
        except BaseException as error:  # cancelled, or abandoned
            for one in taken:
                if not one.answer.done():
                    one.answer.set_exception(RuntimeError(f"the run was ended by {error!r}"))
            raise
        finally:
            self._free += 1
            self._start()  # before the answers are sent
        for one, result in zip(taken, results, strict=True):
            if one.answer.done():
                continue
            if isinstance(result, Exception):
                one.answer.set_exception(result)
            else:
                one.answer.set_result(result)
