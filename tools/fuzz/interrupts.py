"""Interrupts at random moments of a session's calls: nothing hangs, nothing is lost, the next call is right.

    python -m tools.fuzz.interrupts --count 100000 --seed 1 --what run

A timer's signal handler raises in the main thread while it opens, runs, binds, reads or closes: exceptions that few or many
``except`` clauses catch, each of which must arrive at the caller. One in four is followed by a second within microseconds, and
one in two tracebacks is kept for a while, with all frames. With ``--threads`` the calls run in a thread that another raises in
(`PyThreadState_SetAsyncExc`). With ``--each`` the moments are not random: calls are interrupted at each point in turn where the
interpreter looks for signals. With ``--collector`` nothing is raised: the garbage collector runs at random moments, in any
thread, and deletes objects that close sessions. A call that does not return ends the process with all stacks.
"""

from __future__ import annotations

import argparse
import itertools
import queue
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import vkep
from gpu_shared import Buffer, PipelineLayout, SharedGpuContext, steady
from gpu_shared.commands import CommandPool
from tools.fuzz.collector import Collections
from tools.fuzz.moments import (
    DYNAMIC,
    PARTS,
    PROGRAMS,
    STATIC,
    B,
    Campaign,
    Moments,
    X,
    expect,
    no_object_left,
    ones,
)
from tools.fuzz.points import Points
from tools.waiting import LONG_S, comes_true
from vkep.executorch import Program
from vkep.generation import Answer, Generator, Sampling
from vkep.models.language import write_language

PROMPTS = ([5, 6, 7], [9, 8], [4, 4, 4, 4, 11])


def ends_well(session: vkep.InferenceSession) -> None:
    graph = session._parts.graph
    # the thread of an interrupted run ends soon
    if not comes_true(lambda: not any(entry.uses.held for entry in (*graph._entries.values(), *graph._evicted))):
        raise AssertionError("an executable is in use, and nobody runs it")
    if steady._here.runs.held:
        raise AssertionError("this thread counts as running, and has ended its runs")
    for island in session.islands():
        runner: Any = getattr(island.runner, "_runner", island.runner)  # a runner with sizes wraps another one
        if any(room.lock.locked() for room in runner._rooms):
            raise AssertionError("a recording is in use, and nobody runs it")
    session.close()
    no_object_left("after close")


def runs(campaign: Campaign) -> None:
    session = vkep.InferenceSession(STATIC, save_plans=False)
    feeds = {"x": X, "b": B}
    campaign.drive(lambda: expect(session.run(None, feeds)[0]), lambda: expect(session.run(None, feeds)[0]))
    ends_well(session)


def parts(campaign: Campaign) -> None:
    session = vkep.InferenceSession(PARTS, save_plans=False)
    feeds = {"x": X, "b": B}
    campaign.drive(lambda: expect(session.run(None, feeds)[0]), lambda: expect(session.run(None, feeds)[0]))
    ends_well(session)


def shapes(campaign: Campaign) -> None:
    """Each run plans: the cache holds two executables, and sizes take turns."""
    session = vkep.InferenceSession(DYNAMIC, save_plans=False, plan_cache_size=2)
    sizes = random.Random(0)

    def attempt() -> None:
        x = np.full((sizes.randint(1, 6), 3), 2, np.float32)
        expect(session.run(None, {"x": x, "b": B})[0], x + 1)

    campaign.drive(attempt, attempt)
    ends_well(session)


def binds(campaign: Campaign) -> None:
    session = vkep.InferenceSession(STATIC, save_plans=False)
    bound = session.empty_device_tensor((2, 3))

    def attempt() -> None:
        binding = session.io_binding()
        binding.bind_input("x", session.device_tensor(X))
        binding.bind_cpu_input("b", B)
        binding.bind_output("y", bound if sizes.random() < 0.5 else None)
        session.run_with_iobinding(binding)
        expect(binding.copy_outputs_to_cpu()[0])

    sizes = random.Random(0)
    campaign.drive(attempt, attempt)
    bound.close()
    ends_well(session)


def reads(campaign: Campaign) -> None:
    """Each attempt writes other numbers: an interrupted write must not come after the next one."""
    session = vkep.InferenceSession(STATIC, save_plans=False)
    turns = itertools.cycle([X + k for k in range(5)])
    tensor = session.device_tensor(next(turns))

    def attempt() -> None:
        for numbers in (next(turns), next(turns)):
            tensor.write(numbers)
        expect(tensor.numpy(), numbers)

    campaign.drive(attempt, attempt)
    tensor.close()
    ends_well(session)


def retires(campaign: Campaign) -> None:
    """Runs that find objects to destroy, which were closed while a run before them used the device."""
    session = vkep.InferenceSession(STATIC, save_plans=False)
    bound = session.empty_device_tensor((2, 3))
    binding = session.io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_cpu_input("b", B)
    binding.bind_output("y", bound)

    def attempt() -> None:
        session.run_with_iobinding(binding)
        device = session.context.device
        Buffer(device, 64, "upload").close()
        expect(session.run(None, {"x": X, "b": B})[0])
        if device.reaper.lock._is_owned():  # type: ignore[attr-defined]  # public in no version
            raise AssertionError("the lock of the objects to destroy is held by a thread that left it")

    campaign.drive(attempt, attempt)
    bound.close()
    campaign.forget()
    ends_well(session)


def asynchronous(campaign: Campaign) -> None:
    session = vkep.InferenceSession(STATIC, save_plans=False)

    def attempt() -> None:
        answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        session.run_async(None, {"x": X, "b": B}, lambda *answer: answers.put(answer), None)
        results, _, error = answers.get(timeout=LONG_S)
        if error:
            raise AssertionError(error)
        expect(results[0])

    campaign.drive(attempt, attempt)
    ends_well(session)


def opens(campaign: Campaign) -> None:
    def attempt() -> None:
        vkep.InferenceSession(DYNAMIC if turn.random() < 0.5 else STATIC, token="opens", save_plans=False).close()

    def check() -> None:
        with vkep.InferenceSession(STATIC, token="opens", save_plans=False) as session:
            expect(session.run(None, {"x": X, "b": B})[0])
        campaign.forget()
        no_object_left("after opening")

    turn = random.Random(0)
    campaign.drive(attempt, check)


def closes(campaign: Campaign) -> None:
    with vkep.InferenceSession(STATIC, token="closes", save_plans=False) as other:
        waiting: list[vkep.InferenceSession] = []

        def ready() -> vkep.InferenceSession:
            session = vkep.InferenceSession(STATIC, token="closes", save_plans=False)
            session.run(None, {"x": X, "b": B})
            return session

        def attempt() -> None:
            if waiting:
                waiting[-1].close()

        def check() -> None:
            for session in waiting:
                session.close()
            waiting.clear()
            campaign.forget()
            expect(other.run(None, {"x": X, "b": B})[0])
            no_object_left("after closing", live)

        for _ in range(2):  # the second run records another copy where memory is staged: the addresses have been sent
            other.run(None, {"x": X, "b": B})
        live = vkep.live_counts()
        once = campaign._once

        def with_a_session(attempt: Callable[[], Any], typical: float) -> None:
            waiting.append(ready())
            once(attempt, max(typical, 1e-3))

        campaign._once = with_a_session  # type: ignore[method-assign]
        campaign.drive(attempt, check)
    no_object_left("after closing")


def contexts(campaign: Campaign) -> None:
    """Creating a shared context with a session on it, and closing both."""
    selector = {"gpu_shared_context_token": "contexts"}

    def attempt() -> None:
        with SharedGpuContext.create(selector) as context:
            vkep.InferenceSession(STATIC, context=context, save_plans=False).close()

    def check() -> None:
        attempt()
        campaign.forget()
        no_object_left("after closing contexts")

    campaign.drive(attempt, check)


def handles(campaign: Campaign) -> None:
    """Creating objects of a context's device; each is closed or dropped."""
    turn = random.Random(0)
    with SharedGpuContext.create({"gpu_shared_context_token": "handles"}) as context:
        device = context.device
        live = vkep.live_counts()

        def attempt() -> None:
            buffer, pool = Buffer(device, 64, "upload"), CommandPool(device)
            made = [buffer, PipelineLayout(device, 8), pool, pool.allocate()]
            assert buffer.mapped is not None
            view = np.frombuffer(buffer.mapped, np.uint8)
            view[:] = 7
            if turn.random() < 0.5:
                for one in made:
                    one.close()
            expect(view, np.full(64, 7))

        def check() -> None:
            campaign.forget()
            no_object_left("after closing and dropping objects", live, device)

        campaign.drive(attempt, check)
    no_object_left("after the context")


def executes(campaign: Campaign) -> None:
    """Runs of a .pte program's methods."""
    with Program.load(PROGRAMS / "vulkan.pte", token="programs") as program:
        methods = [program.load_method(name) for name in sorted(program.method_names)]
        feeds = [ones(method) for method in methods]
        right = [method.execute(given) for method, given in zip(methods, feeds, strict=True)]

        def attempt() -> None:
            for method, given, expected in zip(methods, feeds, right, strict=True):
                for found, one in zip(method.execute(given), expected, strict=True):
                    expect(found, one)

        campaign.drive(attempt, attempt)
    no_object_left("after the program")


def loads(campaign: Campaign) -> None:
    """Opening, running and closing a .pte program."""

    def attempt() -> None:
        with Program.load(PROGRAMS / "vulkan.pte", token="programs") as program:
            method = program.load_method(min(program.method_names))
            method.execute(ones(method))

    def check() -> None:
        attempt()
        campaign.forget()
        no_object_left("after loading")

    campaign.drive(attempt, check)


@contextmanager
def _generator(name: str) -> Iterator[Generator]:
    with tempfile.TemporaryDirectory() as folder:
        write_language(Path(folder), name, context=96, layers=1)
        with Generator(folder, save_plans=False, max_sequences=len(PROMPTS)) as generator:
            yield generator
    no_object_left("after the generator")


def steps(campaign: Campaign) -> None:
    """Steps of a batch: each answer becomes what it is without interrupts."""
    sampling = [Sampling(max_tokens=4 + k, ignore_end=True, temperature=0.9 * (k == 1), seed=k) for k in range(3)]
    given = list(zip(PROMPTS, sampling, strict=True))
    with _generator("llama") as generator, closing(generator.batch()) as batch:
        followed = [batch.add(*one) for one in given]

        def complete(answer: Answer) -> tuple[list[int], str, str]:
            return answer.tokens, answer.text, answer.reason

        while batch.in_progress:
            batch.step()
        right = {tuple(answer.prompt): complete(answer) for answer in followed}

        def attempt() -> None:
            followed[:] = {*followed, *batch.in_progress}
            for answer in [answer for answer in followed if answer.ended]:
                if complete(answer) != right[tuple(answer.prompt)]:
                    raise AssertionError(f"interrupted steps made {answer}")
                followed.remove(answer)
            if not batch.in_progress:
                for one in given:
                    batch.add(*one)
            batch.step()

        campaign.drive(attempt, attempt)


def generates(campaign: Campaign) -> None:
    """Answers of a generator, whole and streamed."""
    turn = random.Random(0)
    options: dict[str, Any] = {"max_tokens": 3, "ignore_end": True}
    with _generator("gpt2") as generator:
        right = [generator.generate(prompt, **options).text for prompt in PROMPTS]

        def attempt() -> None:
            k = turn.randrange(len(PROMPTS))
            if turn.random() < 0.5:
                text = generator.generate(PROMPTS[k], **options).text
            else:
                text = "".join(generator.stream(PROMPTS[k], **options))
            if text != right[k]:
                raise AssertionError(f"got {text!r} after an interrupt, expected {right[k]!r}")

        def check() -> None:
            campaign.forget()
            attempt()
            if generator._batch.in_progress:
                raise AssertionError(f"answers that nobody reads are in progress: {generator._batch.in_progress}")

        campaign.drive(attempt, check)


WHAT = {
    f.__name__: f
    for f in (
        *(runs, parts, shapes, binds, reads, retires, asynchronous),
        *(opens, closes, contexts, handles, executes, loads, steps, generates),
    )
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0 where no check failed. Raises where one did; a call that hangs ends the process."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=1000, help="interrupts of each kind")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--what", nargs="*", default=list(WHAT), choices=list(WHAT))
    parser.add_argument("--threads", action="store_true", help="raise in another thread than the main one")
    parser.add_argument(
        "--each", type=int, metavar="STEP", help="interrupt at each STEP-th point, up to COUNT interrupts"
    )
    parser.add_argument("--collector", action="store_true", help="run the garbage collector instead of raising")
    given = parser.parse_args(arguments)
    if given.collector and (given.threads or given.each is not None):
        parser.error("--collector raises nothing: it goes with neither --threads nor --each")
    for what in given.what:
        if given.collector:
            moments: Moments = Collections(given.seed)
        else:
            moments = Moments(given.seed) if given.each is None else Points(given.seed, given.each)
        began = time.monotonic()

        def work(what: str = what, moments: Moments = moments) -> None:
            with moments.in_this_thread() if given.threads else moments.in_main():
                try:
                    WHAT[what](Campaign(moments, given.count))
                except BaseException:
                    moments.disarm()
                    print(f"{what}: {moments.last()}", file=sys.stderr)
                    raise

        failed: list[BaseException] = []
        if given.threads:

            def guarded(work: Callable[[], None] = work, failed: list[BaseException] = failed) -> None:
                try:
                    work()
                except BaseException as error:
                    failed.append(error)

            thread = threading.Thread(target=guarded)
            thread.start()
            thread.join()
        else:
            work()
        if failed:
            raise failed[0]
        kind = "collections" if given.collector else "interrupts"
        print(f"{what}: {moments.count} {kind}, {time.monotonic() - began:.1f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
