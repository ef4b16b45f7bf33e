"""Tasks in worker processes, so that a crash or a hang costs one task and not the run."""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")


def run_tasks(
    tasks: Sequence[_Task],
    run: Callable[[_Task], _Result],
    lost: Callable[[_Task, str], _Result],
    *,
    jobs: int,
    timeout: float,
    until: float | None = None,
) -> Iterator[_Result]:
    """Results of ``run`` in ``jobs`` processes, in the order in which they come.

    A task that gives none in ``timeout`` seconds is ended, one whose process ends is not tried again: for both the result is
    ``lost(task, why)``. After ``until`` (`time.monotonic`) no task begins. Tasks, results and ``run`` go from process to
    process by pickle.
    """
    queue = list(reversed(tasks))
    workers = [_Worker(timeout, run) for _ in range(max(1, min(jobs, len(tasks))))]
    try:
        while queue or any(w.busy for w in workers):
            if until is not None and time.monotonic() > until:
                queue.clear()
            for worker in workers:
                if not worker.busy and queue:
                    worker.give(queue.pop())
            busy = [w for w in workers if w.busy]
            wait([w.pipe for w in busy], timeout=1.0)
            for worker in busy:
                task = worker.task
                found = worker.poll()
                if found is not None:
                    result, why = found
                    yield result if why is None else lost(task, why)
    finally:
        for worker in workers:
            worker.pipe.close()  # close all pipes first: a worker has copies of those that existed when it was forked
        for worker in workers:
            worker.stop()


class _Worker:
    """One process that runs tasks one after another; started again after a crash or a hang."""

    def __init__(self, timeout: float, run: Callable[[Any], Any]) -> None:
        self.timeout, self.run = timeout, run
        self.task: Any = None
        self.busy = False
        self.since = 0.0
        self._start()

    def _start(self) -> None:
        method = "fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn"
        context: Any = multiprocessing.get_context(method)
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, self.pipe, self.run), daemon=True)
        self.process.start()
        theirs.close()

    def give(self, task: Any) -> None:
        self.task, self.busy, self.since = task, True, time.monotonic()
        self.pipe.send(task)

    def poll(self) -> tuple[Any, str | None] | None:
        """The result, or the reason why there is none; None while the task runs."""
        try:
            if self.pipe.poll():
                result = self.pipe.recv()
                self.busy = False
                return result, None
        except (EOFError, ConnectionResetError):
            self.process.join(10)
            return self._lost(f"crashed: the process ended with exit code {self.process.exitcode}")
        if time.monotonic() - self.since > self.timeout:
            self.process.kill()
            self.process.join(10)
            return self._lost(f"hung: no result in {self.timeout:.0f} s")
        return None

    def _lost(self, why: str) -> tuple[None, str]:
        self.busy = False
        self.pipe.close()
        self._start()
        return None, why

    def stop(self) -> None:
        """Close the pipe. The process then ends by itself, unless it is in the middle of a task."""
        if not self.busy:
            self.process.join(10)
        if self.process.is_alive():
            self.process.kill()


def _serve(pipe: Connection, theirs: Connection, run: Callable[[Any], Any]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the parent, which closes the pipe
    theirs.close()
    while True:
        try:
            task = pipe.recv()
        except (EOFError, OSError):
            return
        result = run(task)
        try:
            pipe.send(result)
        except OSError:  # no caller waits for the result any more
            return
