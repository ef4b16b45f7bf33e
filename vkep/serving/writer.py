"""A service's generator: a thread that steps a batch of answers, which join and leave as requests arrive and end.

Independent of Ray. Requests that no row of the batch is free for wait here. The next one is the first of the client that has the
fewest answers in progress. A client has one unread prompt in the batch, so that another's waits for no queue of prompts.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from gpu_shared.errors import DeviceLostError
from gpu_shared.steady import collects_here
from vkep.errors import VkepError
from vkep.generation.sampling import Sampling
from vkep.memory import ArenaOutOfMemory
from vkep.serving.kserve import ProtocolError

if TYPE_CHECKING:
    from vkep.generation import Answer, Batch, Event, Generator

logger = logging.getLogger("vkep.serving")
Result = TypeVar("Result")
_Made = TypeVar("_Made", covariant=True)


class Work(Protocol[_Made]):
    """What a request asks of a batch: an answer, or several one after the other. The writer's thread calls the methods."""

    def begin(self, batch: Batch) -> Answer:
        """Begin the next answer. Raises as `Batch.add`."""

    def results(self, event: Event) -> Sequence[_Made]:
        """What the request gets from an event of the answer. Raises what ends the work."""

    def ended(self, answer: Answer) -> bool:
        """Whether nothing follows an answer that has ended."""

    def release(self) -> None:
        """Free what the work holds: nothing more is asked of it."""


@dataclass(frozen=True)
class Prompt:
    """`Work` for the answer to a prompt, whose events are the results."""

    tokens: Sequence[int]
    sampling: Sampling

    def begin(self, batch: Batch) -> Answer:
        """As `Work` says."""
        return batch.add(self.tokens, self.sampling)

    def results(self, event: Event) -> Sequence[Event]:
        """As `Work` says."""
        if event.answer.error is not None:
            raise event.answer.error
        return [event]

    def ended(self, answer: Answer) -> bool:
        """As `Work` says."""
        return True

    def release(self) -> None:
        """As `Work` says."""


@dataclass(eq=False)
class Job(Generic[Result]):
    """Work that a request waits for: ``events`` receives its results, whether nothing follows, or the error that ended it, with
    its index among those of the request."""

    work: Work[Result]
    loop: asyncio.AbstractEventLoop
    client: str
    index: int
    events: asyncio.Queue[tuple[int, Sequence[Result] | Exception, bool]]
    answer: Answer | None = None
    left: bool = False  #: True when no reader waits any more

    @property
    def is_prompt(self) -> bool:
        """Whether the batch has not read the whole prompt."""
        return self.answer is not None and not self.answer.tokens

    def fail(self, error: Exception) -> None:
        """Send the error that ends the work from the writer's thread."""
        self.work.release()
        _tell([(self, error, True)])

    def taken(self, event: Event) -> tuple[Job[Result], Sequence[Result] | Exception, bool]:
        """What is sent for an event of the answer."""
        try:
            made: Sequence[Result] | Exception = self.work.results(event)
            last = bool(event.reason) and self.work.ended(event.answer)
        except Exception as error:
            made, last = error, True
        if last:
            self.work.release()
        elif event.reason:
            self.answer = None  # another one follows
        return self, made, last


def _tell(told: Sequence[tuple[Job[Any], Any, bool]]) -> None:
    """Send events from the writer's thread: one call for each event loop, which takes longer than all else that an event does."""
    for loop in {job.loop for job, *_ in told}:
        try:
            loop.call_soon_threadsafe(_put, [one for one in told if one[0].loop is loop])
        except RuntimeError:  # the event loop has ended, and with it the readers
            for job, *_ in told:
                job.left = job.left or job.loop is loop


def _put(told: Iterable[tuple[Job[Any], Any, bool]]) -> None:
    for job, what, last in told:
        job.events.put_nowait((job.index, what, last))


class Writer:
    """Generates answers to prompts in one batch. `stream` may be called from any event loop; close it at the end.

    A step that fails ends the answers in progress with its error; where the device was lost the generator is opened
    again.
    """

    def __init__(
        self,
        open_generator: Callable[[], Generator],
        observe: Callable[[int, int, float], None],
        most: int,
        of_client: int = 0,
    ) -> None:
        """``most``: answers at once; others wait. ``of_client``: how many of them a client may have; 0: all.
        ``observe(answers, tokens, seconds)`` is called after each step. Raises as ``open_generator``."""
        self._open, self._observe, self._most, self._of_client = open_generator, observe, most, of_client or most
        self.gone = False  #: the generator could not be opened again
        self._closing = False
        self._inbox: queue.SimpleQueue[Job[Any] | None] = queue.SimpleQueue()
        self._waiting: list[Job[Any]] = []  # admitted, but without memory or a row so far
        self._jobs: list[Job[Any]] = []
        self.generator = open_generator()
        self._warm = threading.Event()
        self._thread = threading.Thread(target=self._run, name="vkep-writer", daemon=True)
        self._thread.start()
        self._warm.wait()

    def stream(
        self, prompts: Sequence[tuple[Sequence[int], Sampling]], client: str = ""
    ) -> AsyncGenerator[tuple[int, Event], None]:
        """Yield the events of the answers to some prompts, as `run`; of each answer the last event has its reason."""
        return self.run([Prompt(*prompt) for prompt in prompts], client)

    async def run(self, works: Sequence[Work[Result]], client: str = "") -> AsyncGenerator[tuple[int, Result], None]:
        """Yield the results of some works with their indices as they are made; leaving the loop ends the works.

        ``client``: who waits for them. Raises as `Batch.add` and `Batch.step`.
        """
        if self._closing:
            raise ProtocolError(503, "the service is closing")
        loop, events = asyncio.get_running_loop(), asyncio.Queue[tuple[int, "Sequence[Result] | Exception", bool]]()
        jobs = [Job(work, loop, client, index, events) for index, work in enumerate(works)]
        for job in jobs:
            self._inbox.put(job)
        left = len(jobs)
        try:
            while left:
                index, found, last = await events.get()
                if isinstance(found, Exception):
                    raise found
                left -= last
                for one in found:
                    yield index, one
        finally:
            for job in jobs:
                job.left = True

    def close(self) -> None:
        """End the answers in progress and close the generator; soon after, where the garbage collector calls."""
        self._closing = True
        self._inbox.put(None)
        if not collects_here():
            self._thread.join()

    # ---- the thread

    def _run(self) -> None:
        batch = self.generator.batch()
        try:
            _warm_up(batch, self._most)
        except Exception as error:  # a model that reads other prompts
            for answer in batch.in_progress:
                batch.cancel(answer)
            logger.info("the first answers are made without a warm-up: %s", str(error))
        self._warm.set()
        try:
            self._write(batch)
        except Exception as error:
            logger.exception("the writer ends")
            self.gone = True  # the service's health check reports it
            for job in [*self._jobs, *self._waiting]:
                job.fail(error)
            while (late := self._inbox.get()) is not None:
                late.fail(VkepError(f"the writer has ended: {error}"))

    def _write(self, batch: Batch) -> None:
        while True:
            closing = self._admit(batch)
            if closing:
                break
            started = time.perf_counter()
            try:
                events = batch.step()
            except Exception as error:
                batch = self._failed(batch, error)
                continue
            by_answer = {job.answer: job for job in self._jobs}
            told = [job.taken(event) for event in events if (job := by_answer.get(event.answer)) is not None]
            self._waiting[:0] = [job for job in self._jobs if job.answer is None]
            self._jobs = [job for job in self._jobs if job.answer is not None]
            _tell([one for one in told if one[1] or one[2]])
            self._observe(len(batch.in_progress), len(events), time.perf_counter() - started)
        for job in [*self._jobs, *self._waiting]:
            job.fail(ProtocolError(503, "the service is closing"))
        batch.close()
        self.generator.close()

    def _admit(self, batch: Batch) -> bool:
        """Take new jobs, once there is something to do. Returns whether to close."""
        while True:
            idle = not self._jobs and not self._waiting
            try:
                job = self._inbox.get(block=idle)
                if job is None:
                    return True
                self._waiting.append(job)
                continue
            except queue.Empty:
                pass
            for job in [*self._waiting, *self._jobs]:
                if job.left:
                    job.work.release()
                    if job.answer is not None:
                        batch.cancel(job.answer)
            self._waiting = [job for job in self._waiting if not job.left]
            self._jobs = [job for job in self._jobs if job.answer is not None and not job.answer.ended]
            while (job := self._next()) is not None and self._added(batch, job):
                self._waiting.remove(job)
            if self._jobs:
                return False

    def _next(self) -> Job[Any] | None:
        """The job that is to join the batch next, if one may."""
        if len(self._jobs) >= self._most:
            return None
        active = Counter(job.client for job in self._jobs)
        reading = {job.client for job in self._jobs if job.is_prompt}
        first: dict[str, Job[Any]] = {}
        for job in self._waiting:
            if not job.client:
                return job
            first.setdefault(job.client, job)
        may = [job for job in first.values() if active[job.client] < self._of_client and job.client not in reading]
        return min(may, key=lambda job: active[job.client], default=None)

    def _added(self, batch: Batch, job: Job[Any]) -> bool:
        """Whether the job need not wait any longer: it joined the batch, or failed."""
        if self.gone:
            job.fail(DeviceLostError("generating", hint="the device is lost for good"))
            return True
        try:
            job.answer = job.work.begin(batch)
        except ArenaOutOfMemory as error:
            if self._jobs:
                return False  # until another answer ends
            job.fail(error)
            return True
        except Exception as error:
            job.fail(error)
            return True
        self._jobs.append(job)
        return True

    def _failed(self, batch: Batch, error: Exception) -> Batch:
        """End the answers in progress; returns a new batch."""
        logger.warning("a step of %d answers failed: %s", len(self._jobs), str(error))
        for job in self._jobs:
            job.fail(error)
            if job.answer is not None:
                batch.cancel(job.answer)
        self._jobs = []
        if not isinstance(error, DeviceLostError):
            return batch
        batch.close()
        self.generator.close()
        try:
            self.generator = self._open()
        except Exception:
            logger.exception("the generator could not be opened again")
            self.gone = True
            return batch
        return self.generator.batch()


def _warm_up(batch: Batch, most: int) -> None:
    """Make answers with each graph that chooses tokens, alone and together: its first use would hold up the answers of all."""
    kinds = (Sampling(), Sampling(temperature=1.0), Sampling(repetition_penalty=1.5), Sampling(logprobs=1))
    for each in (*((kind,) for kind in kinds), kinds[:most]):
        for sampling in each:
            batch.add([0], replace(sampling, max_tokens=2, ignore_end=True))
        while batch.in_progress:
            batch.step()
