"""Work that no asynchronous exception interrupts, and finalizers that no exception skips.

A signal handler may raise between any two bytecodes of the main thread, `PyThreadState_SetAsyncExc` in any other: also
within a ``finally``, an ``__exit__`` method written in Python, or a finalizer. Code that changes shared state therefore
runs in threads of this module (`steady`), which handle no signals and which no other code can reach. The caller waits;
if its wait is interrupted the work still completes. Code that must hold in the caller's thread uses atomic steps of the
interpreter: a lock in a ``with`` statement, `UseCount`, and `on_end`, whose weak reference calls a function written in
C.
"""

from __future__ import annotations

import _thread
import atexit
import contextvars
import functools
import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from gpu_shared.signals import pass_on_signals
from gpu_shared.use_count import UseCount

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
logger = logging.getLogger("gpu_shared")

#: seconds that the interpreter's exit waits for work in other threads
_PATIENCE = 30.0
_FORK_PATIENCE = 2.0  #: and a fork
CLOSE_PATIENCE = 1.0  #: and a ``close``, for the finalizers of what it dropped
_STARTS = 5.0  #: and the start of a thread
_TRIES = 4  #: to start it


class Abandoned(BaseException):
    """Raised by `check_wanted` inside work whose caller no longer waits."""


# ---- work in separate threads


class _Task:
    __slots__ = ("abandoned", "context", "ended", "error", "nested", "result", "work", "worker")

    def __init__(self, work: Callable[[], Any], worker: _Worker | None) -> None:
        self.work, self.worker = work, worker
        self.context = contextvars.copy_context()
        self.ended = _thread.allocate_lock()
        self.ended.acquire()
        self.result: Any = None
        self.error: BaseException | None = None
        self.abandoned = False
        self.nested = _here.task is not None

    def begin(self) -> None:
        """Pass it to its worker. A caller that is interrupted here must abandon it: it may have begun."""
        assert self.worker is not None
        self.worker.tasks.put(self)


class _Worker:
    """The handle of a thread that waits for tasks. The thread ends when the handle is deleted while it is idle."""

    __slots__ = ("__weakref__", "tasks")

    def __init__(self) -> None:
        self.tasks: SimpleQueue[Any] = SimpleQueue()
        _start(_serve, self.tasks, weakref.ref(self, self.tasks.put))


class _Here(threading.local):
    task: _Task | None = None
    ending = False  #: whether it runs finalizers

    def __init__(self) -> None:
        #: of objects that are closed only after this thread releases them: it must not stop before
        self.runs = UseCount()


_here = _Here()
_idle: deque[_Worker] = deque()
_working = UseCount()
_gate = threading.Lock()  #: held during a fork: no work begins
_forking = False  #: a fork waits for the work that has begun
_exiting = False  #: no other work begins; what is due waits for `_exit`
_exited = False  #: no thread does what is due any more
_last: list[Callable[[], None]] = []  #: see `at_exit`


def _start(work: Callable[..., None], *arguments: Any) -> None:
    """Start a thread, and wait until it runs. Before that CPython 3.11 identifies it by its creator's id: an exception that
    `PyThreadState_SetAsyncExc` raises in the creator may end it instead."""
    for _ in range(_TRIES):
        running: SimpleQueue[None] = SimpleQueue()
        _thread.start_new_thread(_run, (running, work, *arguments))
        try:
            return running.get(timeout=_STARTS)
        except Empty:
            logger.debug("a thread did not start; another one is started")
    raise RuntimeError("can't start new thread")


def _run(running: SimpleQueue[None], work: Callable[..., None], *arguments: Any) -> None:
    running.put(None)
    del running
    work(*arguments)


def _serve(tasks: SimpleQueue[Any], _handle: weakref.ref[_Worker]) -> None:
    while isinstance(task := tasks.get(), _Task):
        if task.nested:
            hold = _working.hold()
        else:
            with _gate:
                hold = _working.hold()
        with hold:
            _here.task = task
            try:
                task.result = task.context.run(task.work)
            except BaseException as error:
                task.error = error
            if task.abandoned:  # checked after the result is set: one of the two threads drops it
                task.result = None
            _here.task = None
            work, task.work = task.work, _nothing
            del work  # the objects that it refers to are deleted in this thread, before the caller continues
            ended = task.ended
            if task.worker is not None:
                _idle.append(task.worker)
            del task  # before the caller continues: its result belongs to the caller alone
            ended.release()


def idle_threads() -> int:
    """How many threads wait for work."""
    return len(_idle)


def _nothing() -> None:
    pass


def _task(work: Callable[[], Any]) -> _Task | None:
    """A task for a separate worker; None where no worker can be started."""
    while True:
        try:
            return _Task(work, _idle.pop() if _idle else _Worker())
        except (IndexError, RuntimeError) as error:
            pass_on_signals(error)
            if isinstance(error, RuntimeError):  # no more threads, or the interpreter exits
                return None


class Started(Generic[T]):
    """Work that runs concurrently with its caller, which must be such work itself. `result` waits for it."""

    def __init__(self, work: Callable[[], T]) -> None:
        task = _task(work)
        if task is not None:
            task.begin()
        self._task = task or _done_here(work)

    def result(self) -> T:
        """The work's result, or its error raised."""
        with self._task.ended:
            pass
        if self._task.error is not None:
            raise self._task.error
        return self._task.result


def _done_here(work: Callable[[], Any]) -> _Task:
    task = _Task(work, None)
    try:
        task.result = work()
    except BaseException as error:
        task.error = error
    task.ended.release()
    return task


def run_steady(work: Callable[[], T]) -> T:
    """Call ``work()`` in a thread that no signal interrupts; inside such a thread, directly. If the wait is interrupted
    the work continues, and its result is dropped: a result that must not be lost must free itself with its last
    reference (`on_end`)."""
    if _here.task is not None:
        return work()
    if _exiting:
        if not _here.runs.held:
            park_at_exit()
        return work()
    task = _task(work)
    if task is None:
        return work()
    try:
        task.begin()
        with task.ended:
            pass
    except BaseException:
        task.abandoned = True
        task.result = None  # a traceback may keep the task alive by its frames, and must not keep the result alive
        raise
    if task.error is not None:
        if not _here.runs.held:
            park_at_exit()  # the error may be caused by the exit
        try:
            raise task.error
        finally:
            del task  # else the error's traceback and the task refer to each other
    return task.result


def begin_steady(work: Callable[[], object]) -> None:
    """Call ``work()`` in such a thread, without waiting for it; inside such a thread, directly. It may be left out where no
    thread can be started, and at the interpreter's exit. An error is logged."""
    if _here.task is not None:
        _logged(work)
        return
    task = None if _exiting else _task(functools.partial(_logged, work))
    if task is not None:
        task.begin()


def _logged(work: Callable[[], object]) -> None:
    try:
        work()
    except Exception:
        logger.exception("in work that no caller waits for")


def steady(function: F) -> F:
    """Decorates a function so that its calls run by `run_steady`."""

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        if _here.task is not None:
            return function(*args, **options)
        return run_steady(functools.partial(function, *args, **options))

    return call  # type: ignore[return-value]


def join_work() -> None:
    """The calls of this thread, of a pool that such work waits for, run in it: a fork waits for that work, and holds up other."""
    _here.task = _Task(_nothing, None)


def check_wanted() -> None:
    """Raise `Abandoned` where no caller waits for the work: it was interrupted, or the interpreter exits."""
    task = _here.task
    if task is not None and (task.abandoned or _exiting):
        raise Abandoned


# ---- finalizers

_ends: dict[int, End] = {}  #: those that have not run, oldest first
_due: deque[Callable[[], object]] = deque()  #: those whose owners are deleted, and work for `end_later`
_of_parents: list[End] = []  #: of the processes that this one was forked from: what they refer to must not end here
_ending = threading.RLock()
_finalizing = UseCount()  #: held while finalizers run
_closes: deque[Callable[[], object]] = deque()  #: work for `close_later`


class _Server:
    """A thread that calls a function whenever its bell has rung."""

    __slots__ = ("_started", "_work", "bell")

    def __init__(self, work: Callable[[], None]) -> None:
        self.bell: SimpleQueue[Any] = SimpleQueue()
        self._work, self._started = work, False

    def start(self) -> None:
        """Start the thread, unless it was started."""
        if not (self._started or _exiting):
            try:
                _start(_serve_bell, self.bell, self._work)
                self._started = True
            except RuntimeError as error:  # no more threads: the caller of `settle` finalizes
                pass_on_signals(error)


def _serve_bell(bell: SimpleQueue[Any], work: Callable[[], None]) -> None:
    join_work()
    while True:
        bell.get()
        with _gate:
            hold = _working.hold()
        with hold:
            if _exiting:  # `_exit` does the rest
                return
            work()


class End(weakref.ref[Any]):
    """A finalizer, which runs once: when its owner is deleted, or when this object is called. Created by `on_end`."""

    work: Callable[[], None]
    at_exit: bool
    ring: weakref.ref[Any]

    def __call__(self) -> None:
        """Run it now, in this thread, unless it has run."""
        work = self.detach()
        if work is not None:
            work()

    @property
    def alive(self) -> bool:
        """Whether it has not run yet."""
        return id(self) in _ends

    @property
    def due(self) -> bool:
        """Whether its owner is deleted."""
        return super().__call__() is None

    def detach(self) -> Callable[[], None] | None:
        """Cancel it; returns its work, or None where it has run or was cancelled."""
        if _ends.pop(id(self), None) is None:
            return None
        work, self.work = self.work, _nothing
        return work


def on_end(owner: object, work: Callable[..., None], *arguments: Any, at_exit: bool = True) -> End:
    """Call ``work(*arguments)`` when the last reference to ``owner`` is deleted, soon after, in another thread; with
    ``at_exit`` also at the interpreter's exit, the newest first. ``work`` must not refer to the owner."""
    # the newest reference is called first: it adds the work to the queue before the other one wakes the worker
    ring = weakref.ref(owner, _ender.bell.put)
    end = End(owner, _due.append)
    end.work, end.at_exit, end.ring = functools.partial(work, *arguments), at_exit, ring
    _ends[id(end)] = end
    _ender.start()
    return end


def end_later(work: Callable[[], object]) -> None:
    """Call ``work()`` soon, in the thread that runs the finalizers, after those that are pending, for callers that must not wait
    for a lock. An error is logged."""
    _do_later(work, _due, _ender)


def close_later(work: Callable[[], object]) -> None:
    """As `end_later`, for work that may wait for other threads: finalizers and `settle` do not wait for it."""
    _do_later(work, _closes, _closer)


def _do_later(work: Callable[[], object], queue: deque[Callable[[], object]], server: _Server) -> None:
    if _exited:
        _logged(work)
        return
    queue.append(work)
    server.start()
    server.bell.put(None)


def _close_waiting() -> None:
    while _closes:
        _logged(_closes.popleft())


def settle() -> None:
    """Run the pending finalizers of deleted objects, or wait for a thread that is running them. Hold no lock."""
    if _here.task is None:
        if _due:
            run_steady(settle)
        with _ending:
            return
    _end_due()


def settle_within(seconds: float | None = None) -> bool:
    """Wait for pending finalizers, at most so long (`CLOSE_PATIENCE`); for a caller that may hold locks which they need. Returns
    whether they have ended. Inside a finalizer, during a fork and at the interpreter's exit it does not wait."""
    if _due:
        _ender.start()  # in a forked child, whose objects ring the parent's bell
        _ender.bell.put(None)
    ends = time.monotonic() + (CLOSE_PATIENCE if seconds is None else seconds)
    while _due or _finalizing.held:
        if _here.ending or _forking or _exiting or time.monotonic() > ends:
            return False
        time.sleep(0.001)
    return True


def _end_due() -> None:
    with _ending, _finalizing.hold():
        outer, _here.ending = _here.ending, True
        try:
            while _due:
                end = _due.popleft()
                try:
                    end()
                except Exception:
                    logger.exception("finalizing unreferenced objects")
        finally:
            _here.ending = outer


_ender, _closer = _Server(settle), _Server(_close_waiting)


# ---- the interpreter's exit, and forks


def at_exit(work: Callable[[], None]) -> None:
    """Call ``work()`` at the interpreter's exit, after all finalizers of `on_end`."""
    _last.append(work)


def in_run() -> memoryview:
    """This thread uses objects that others wait for, until the result's ``with`` statement ends."""
    return _here.runs.hold()


def park_at_exit() -> None:
    """Block forever in a daemon thread at the interpreter's exit: the objects that it would use are deleted, and the
    thread will be terminated."""
    # thread pools take no work from the exit's first step on, when the main thread is still alive
    if not (_exiting or getattr(threading, "_SHUTTING_DOWN", False)) and threading.main_thread().is_alive():
        return
    thread = threading.current_thread()
    # the thread that created it may wait for another thread
    if thread.daemon and not isinstance(thread, threading._DummyThread):
        SimpleQueue[None]().get()  # which stays empty


weakref.finalize(threading.main_thread(), int)  # registers weakref's exit handler first, so that `_exit` runs before it


@atexit.register
def _exit() -> None:
    """Run all finalizers while Python still runs: the drivers' own exit handlers would find threads inside the
    driver."""
    global _exiting, _exited
    _exiting = True
    if not _working.wait(_PATIENCE):
        _exited = True
        logger.warning("the interpreter ends while work on the GPU has not ended for %.0f s", _PATIENCE)
        return
    _do_what_is_due()
    for end in [end for end in reversed(_ends.values()) if end.at_exit]:
        try:
            end()
        except Exception:
            logger.exception("at the interpreter's end")
    _do_what_is_due()
    for work in _last:
        work()
    _exited = True
    _do_what_is_due()


def _do_what_is_due() -> None:
    _close_waiting()
    _end_due()


def _after_fork_in_child() -> None:
    """The child has none of the threads, and the pending finalizers belong to the parent."""
    global _here, _working, _gate, _forking, _ending, _finalizing, _ender, _closer
    _here, _working, _gate, _forking = _Here(), UseCount(), threading.Lock(), False
    _ending, _finalizing = threading.RLock(), UseCount()
    _ender, _closer = _Server(settle), _Server(_close_waiting)
    _idle.clear()
    _due.clear()
    _closes.clear()
    _of_parents.extend(_ends.values())
    _ends.clear()


def _before_fork() -> None:
    """The fork copies the driver's state as it is: wait until no work is inside the driver."""
    global _forking
    if _here.task is None:
        _gate.acquire()
        _forking = True
        _working.wait(_FORK_PATIENCE)


def _after_fork_in_parent() -> None:
    global _forking
    if _here.task is None:
        _forking = False
        _gate.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
