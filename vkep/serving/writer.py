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
from typing import TYPE_CHECKING

from gpu_shared.errors import DeviceLostError
from gpu_shared.steady import collects_here
from vkep.errors import VkepError
from vkep.generation.sampling import Sampling
from vkep.memory import ArenaOutOfMemory
from vkep.serving.kserve import ProtocolError

if TYPE_CHECKING:
    from vkep.generation import Answer, Batch, Event, Generator

logger = logging.getLogger("vkep.serving")


@dataclass(eq=False)
class Job:
    """An answer that a request waits for: ``events`` receives the results of the steps, or the error that ended it, with its
    index among the answers of the request."""

    prompt: Sequence[int]
    sampling: Sampling
    loop: asyncio.AbstractEventLoop
    client: str
    index: int
    events: asyncio.Queue[tuple[int, Event | Exception]]
    answer: Answer | None = None
    left: bool = False  #: True when no reader waits any more

    @property
    def is_prompt(self) -> bool:
        """Whether the batch has not read the whole prompt."""
        return self.answer is not None and not self.answer.tokens

    def tell(self, what: Event | Exception) -> None:
        """Send an event from the writer's thread."""
        _tell([(self, what)])


def _tell(told: Sequence[tuple[Job, Event | Exception]]) -> None:
    """Send events from the writer's thread: one call for each event loop, which takes longer than all else that an event does."""
    for loop in {job.loop for job, _ in told}:
        try:
            loop.call_soon_threadsafe(_put, [one for one in told if one[0].loop is loop])
        except RuntimeError:  # the event loop has ended, and with it the readers
            for job, _ in told:
                job.left = job.left or job.loop is loop


def _put(told: Iterable[tuple[Job, Event | Exception]]) -> None:
    for job, what in told:
        job.events.put_nowait((job.index, what))


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
        self._inbox: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._waiting: list[Job] = []  # admitted, but without memory or a row so far
        self._jobs: list[Job] = []
        self.generator = open_generator()
        self._warm = threading.Event()
        self._thread = threading.Thread(target=self._run, name="vkep-writer", daemon=True)
        self._thread.start()
        self._warm.wait()

    async def stream(
        self, prompts: Sequence[tuple[Sequence[int], Sampling]], client: str = ""
    ) -> AsyncGenerator[tuple[int, Event], None]:
        """Yield the events of the answers to some prompts with their indices, of each the last with its reason; leaving the loop
        ends the answers.

        ``client``: who waits for them. Raises as `Batch.add` and `Batch.step`.
        """
        if self._closing:
            raise ProtocolError(503, "the service is closing")
        loop, events = asyncio.get_running_loop(), asyncio.Queue[tuple[int, "Event | Exception"]]()
        jobs = [Job(*prompt, loop, client, index, events) for index, prompt in enumerate(prompts)]
        for job in jobs:
            self._inbox.put(job)
        left = len(jobs)
        try:
            while left:
                index, event = await events.get()
                if isinstance(event, Exception):
                    raise event
                yield index, event
                left -= bool(event.reason)
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
                job.tell(error)
            while (late := self._inbox.get()) is not None:
                late.tell(VkepError(f"the writer has ended: {error}"))

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
            _tell([(job, e.answer.error or e) for e in events if (job := by_answer.get(e.answer)) is not None])
            self._observe(len(batch.in_progress), len(events), time.perf_counter() - started)
        for job in [*self._jobs, *self._waiting]:
            job.tell(ProtocolError(503, "the service is closing"))
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
            self._waiting = [job for job in self._waiting if not job.left]
            for job in self._jobs:
                if job.left and job.answer is not None:
                    batch.cancel(job.answer)
            self._jobs = [job for job in self._jobs if job.answer is not None and not job.answer.ended]
            while (job := self._next()) is not None and self._added(batch, job):
                self._waiting.remove(job)
            if self._jobs:
                return False

    def _next(self) -> Job | None:
        """The job that is to join the batch next, if one may."""
        if len(self._jobs) >= self._most:
            return None
        active = Counter(job.client for job in self._jobs)
        reading = {job.client for job in self._jobs if job.is_prompt}
        first: dict[str, Job] = {}
        for job in self._waiting:
            if not job.client:
                return job
            first.setdefault(job.client, job)
        may = [job for job in first.values() if active[job.client] < self._of_client and job.client not in reading]
        return min(may, key=lambda job: active[job.client], default=None)

    def _added(self, batch: Batch, job: Job) -> bool:
        """Whether the job need not wait any longer: it joined the batch, or failed."""
        if self.gone:
            job.tell(DeviceLostError("generating", hint="the device is lost for good"))
            return True
        try:
            job.answer = batch.add(job.prompt, job.sampling)
        except ArenaOutOfMemory as error:
            if self._jobs:
                return False  # until another answer ends
            job.tell(error)
            return True
        except Exception as error:
            job.tell(error)
            return True
        self._jobs.append(job)
        return True

    def _failed(self, batch: Batch, error: Exception) -> Batch:
        """End the answers in progress; returns a new batch."""
        logger.warning("a step of %d answers failed: %s", len(self._jobs), str(error))
        for job in self._jobs:
            job.tell(error)
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
