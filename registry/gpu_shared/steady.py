"""Protection against interrupts, the garbage collector, exits and forks (docs/safety.md). No other module has any.

A signal handler may raise between any two bytecodes of the main thread, `PyThreadState_SetAsyncExc` in any other: also
within a ``finally``, an ``__exit__`` method written in Python, or a finalizer. Three mechanisms answer that:

- **Entries** (`steady`, `closing`, `run_steady`): public functions that change state do so in threads of this module,
  which handle no signals and which no other code can reach. The caller waits; if its wait is interrupted the work still
  completes, or ends where it calls `check_wanted`.
- **Queues** (`on_end`, `later`, `settle`): what finalizers and the garbage collector leave to be done is added by functions
  written in C, which no exception interrupts, and done by one thread for each queue.
- **Exits and forks** (`at_exit`, `in_run`, `park_at_exit`): both wait for the work in these threads.
"""

from __future__ import annotations

import _thread
import atexit
import contextvars
import functools
import gc
import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from gpu_shared.use_count import UseCount

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
Close = TypeVar("Close", bound=Callable[..., None])
logger = logging.getLogger("gpu_shared")

#: seconds that the interpreter's exit waits for work in other threads
_PATIENCE = 30.0
_FORK_PATIENCE = 2.0  #: and a fork
PATIENCE = 1.0  #: and `settle`
_STARTS = 5.0  #: and the start of a thread
_TRIES = 4  #: to start it


# ---- entries: work in separate threads


class Abandoned(BaseException):
    """Raised by `check_wanted` inside work whose caller no longer waits."""


class _Task:
    __slots__ = ("abandoned", "context", "ended", "error", "nested", "result", "work", "worker")

    def __init__(self, work: Callable[[], Any]) -> None:
        self.work = work
        self.worker: _Worker | None = None
        self.context = contextvars.copy_context()
        self.ended = _thread.allocate_lock()
        self.ended.acquire()
        self.result: Any = None
        self.error: BaseException | None = None
        self.abandoned = False
        self.nested = _here.task is not None

    def do(self) -> None:
        """Do the work in this thread."""
        try:
            self.result = self.context.run(self.work)
        except BaseException as error:
            self.error = error
        if self.abandoned:  # checked after the result is set: one of the two threads drops it
            self.result = None
        del self  # else the error's traceback and the task refer to each other


class _Worker:
    """The handle of a thread that waits for tasks. The thread ends when the handle is deleted while it is idle."""

    __slots__ = ("__weakref__", "tasks")

    def __init__(self, tasks: SimpleQueue[Any]) -> None:
        self.tasks = tasks


class _Here(threading.local):
    task: _Task | None = None

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


def start_thread(work: Callable[..., None], *arguments: Any) -> bool:
    """Start a daemon thread, and wait until it runs: before that CPython 3.11 identifies it by its creator's id, and an exception
    that `PyThreadState_SetAsyncExc` raises in the creator may end it instead. False where no thread can be started, as at
    the interpreter's exit."""
    for _ in range(_TRIES):
        running: SimpleQueue[None] = SimpleQueue()
        try:
            _thread.start_new_thread(_run, (running, work, *arguments))
        except RuntimeError as error:
            if "new thread" not in str(error):  # a signal's handler raised it
                raise
            return False
        try:
            running.get(timeout=_STARTS)
        except Empty:
            logger.debug("a thread did not start; another one is started")
        else:
            return True
    return False


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
            task.do()
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


def _worker() -> _Worker | None:
    """A thread for one task; None where none can be started."""
    while _idle:
        try:
            return _idle.pop()
        except IndexError:  # another thread took it
            continue
    made = _Worker(SimpleQueue())
    return made if start_thread(_serve, made.tasks, weakref.ref(made, made.tasks.put)) else None


class Started(Generic[T]):
    """Work that runs concurrently with its caller, which must be such work itself. `result` waits for it."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._task = task = _Task(work)
        task.worker = _worker()
        if task.worker is not None:
            task.worker.tasks.put(task)
        else:
            task.do()
            task.ended.release()

    def result(self) -> T:
        """The work's result, or its error raised."""
        with self._task.ended:
            pass
        if self._task.error is not None:
            raise self._task.error
        return self._task.result


def run_steady(work: Callable[[], T]) -> T:
    """Call ``work()`` in a thread that no signal interrupts; inside such a thread, directly. If the wait is interrupted
    the work continues, and its result is dropped: a result that must not be lost must free itself with its last
    reference (`on_end`)."""
    if _here.task is not None:
        return work()
    if _exiting:
        park_at_exit()
        return work()
    task = _Task(work)
    task.worker = _worker()
    if task.worker is None:
        return work()
    try:
        task.worker.tasks.put(task)
        with task.ended:
            pass
    except BaseException:
        task.abandoned = True
        task.result = None  # a traceback may keep the task alive by its frames, and must not keep the result alive
        raise
    if task.error is not None:
        park_at_exit()  # the error may be caused by the exit
        try:
            raise task.error
        finally:
            del task  # else the error's traceback and the task refer to each other
    return task.result


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
    _here.task = _Task(_nothing)


def check_wanted() -> None:
    """Raise `Abandoned` where no caller waits for the work: it was interrupted, or the interpreter exits."""
    task = _here.task
    if task is not None and (task.abandoned or _exiting):
        raise Abandoned


# ---- queues: what finalizers and the garbage collector leave


class Queue:
    """Work that one thread does, in order. To add work takes no lock. Exits and forks wait for it."""

    def __init__(self) -> None:
        self.due: deque[Callable[[], object]] = deque()
        self.bell: SimpleQueue[Any] = SimpleQueue()  #: wakes the thread
        self._doing = 0  # the identifier of the thread that does the work; 0: none
        self._draining = threading.RLock()
        self._started = False
        _queues[self] = None

    @property
    def idle(self) -> bool:
        """Whether no other thread has yet to do work: there is none, or this thread does it."""
        return self._doing == threading.get_ident() or not (self.due or self._doing)

    def put(self, work: Callable[[], object]) -> None:
        """Add work. An error is logged."""
        self.due.append(work)
        if _exited:
            self.drain()
        else:
            self.start()
            self.bell.put(None)

    def start(self) -> None:
        """Start the thread, unless it was started."""
        if not (self._started or _exiting):
            self._started = start_thread(self._serve)  # where it cannot be started, `wait` or the exit does the work

    def _serve(self) -> None:
        join_work()
        while True:
            self.bell.get()
            with _gate:
                hold = _working.hold()
            with hold:
                if _exiting:  # `_exit` does the rest
                    return
                self.drain()

    def drain(self, block: bool = True) -> None:
        """Do the work in this thread; without ``block`` leave it to a thread that does it."""
        if not self._draining.acquire(blocking=block):
            return
        outer, self._doing = self._doing, threading.get_ident()
        try:
            while self.due:
                try:
                    self.due.popleft()()
                except Exception:
                    logger.exception("in work that no caller waits for")
        finally:
            self._doing = outer
            self._draining.release()

    def wait(self, seconds: float | None = None, *, here: bool = False) -> bool:
        """Wait until the work is done, at most so long (`PATIENCE`): the caller may hold a lock that it needs. Returns whether it
        is done. Inside that work, during a fork and at the interpreter's exit it does not wait. ``here``, for an entry that holds
        no lock: do the work in this thread, where no other does it."""
        if here and self.due and self._doing != threading.get_ident():
            self.drain(block=False)
        ends, pause = time.monotonic() + (PATIENCE if seconds is None else seconds), 2e-5
        while self.due or self._doing:
            if self._doing == threading.get_ident() or _forking or _exiting or time.monotonic() > ends:
                return False
            self.start()
            if not self._started:
                run_steady(self.drain)
            time.sleep(pause)
            pause = min(2 * pause, 1e-3)
        return True


_queues: dict[Queue, None] = {}
#: finalizers; and what the collector would close, which may wait for other threads
_finalizers, _closes = Queue(), Queue()
_ends: dict[int, End] = {}  #: the finalizers that have not run, oldest first
_of_parents: list[End] = []  #: of the processes that this one was forked from: what they refer to must not end here


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
    # the newest reference is called first: it adds the work to the queue before the other one wakes the thread
    ring = weakref.ref(owner, _finalizers.bell.put)
    end = End(owner, _finalizers.due.append)
    end.work, end.at_exit, end.ring = functools.partial(work, *arguments), at_exit, ring
    _ends[id(end)] = end
    _finalizers.start()
    return end


def later(work: Callable[[], object]) -> None:
    """Call ``work()`` soon, in the thread that runs the finalizers, after those that are pending, for callers that must not wait
    for a lock. An error is logged."""
    _finalizers.put(work)


def settle(seconds: float | None = None, *, here: bool = False) -> bool:
    """Wait for the finalizers of deleted objects, as `Queue.wait`."""
    return _finalizers.wait(seconds, here=here)


# The collector's callbacks must be functions written in C: it drops what a signal handler raises in one written in Python.
# It passes both of them the same dict, which no later collection has while they refer to it.
_collection = BaseException()  #: ``args``: the phase of the last collection ("start" or "stop"), and its dict
_collecting = threading.local()  #: ``start``: the dict of the last collection that began in this thread
gc.callbacks[:0] = [_collection.__init__, _collecting.__setattr__]  # type: ignore[misc]


def collects_here() -> bool:
    """Whether the garbage collector runs in this thread. It may run between any two bytecodes, and calls ``__del__`` methods of
    users, and destructors of ONNX Runtime's objects: the code that it interrupted may hold any lock, or be in the middle of
    a change."""
    last = _collection.args
    return len(last) == 2 and last[0] == "start" and getattr(_collecting, "start", None) is last[1]


def closing(close: Close) -> Close:
    """Decorates a function that closes something and returns nothing: as `steady`. Where the garbage collector calls it, it
    returns at once, another thread does the work soon after, and an error is logged."""
    call_steady = steady(close)

    @functools.wraps(close)
    def call(*arguments: Any, **options: Any) -> None:
        if collects_here():
            _closes.put(functools.partial(close, *arguments, **options))
        else:
            call_steady(*arguments, **options)

    call.is_closing = True  # type: ignore[attr-defined]  # for tests
    return call  # type: ignore[return-value]


# ---- the interpreter's exit, and forks


def at_exit(work: Callable[[], None]) -> None:
    """Call ``work()`` at the interpreter's exit, after all finalizers of `on_end`."""
    _last.append(work)


def in_run() -> memoryview:
    """This thread uses objects that others wait for, until the result's ``with`` statement ends: `park_at_exit` lets it go on."""
    return _here.runs.hold()


def park_at_exit() -> None:
    """Block forever in a daemon thread at the interpreter's exit: the objects that it would use are deleted, and the
    thread will be terminated."""
    # thread pools take no work from the exit's first step on, when the main thread is still alive
    if not (_exiting or getattr(threading, "_SHUTTING_DOWN", False)) and threading.main_thread().is_alive():
        return
    thread = threading.current_thread()
    # the thread that created it may wait for another thread
    if thread.daemon and not isinstance(thread, threading._DummyThread) and not _here.runs.held:
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
    while any(queue.due for queue in _queues):
        for queue in _queues:
            queue.drain()


def _after_fork_in_child() -> None:
    """The child has none of the threads, and the pending finalizers belong to the parent."""
    global _here, _working, _gate, _forking
    _here, _working, _gate, _forking = _Here(), UseCount(), threading.Lock(), False
    _idle.clear()
    for queue in _queues:  # the parent's objects keep adding to the old ones
        queue.__init__()  # type: ignore[misc]
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
