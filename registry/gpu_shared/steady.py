"""Work that no exception cuts short, and ends of objects that no exception skips.

A signal's handler may raise between any two bytecodes of the main thread, `PyThreadState_SetAsyncExc` in any other: also within
a ``finally``, a ``with`` statement's ``__exit__`` written in Python, or a finaliser. What changes shared state therefore runs in
threads of this module (`steady`), which handle no signals and which no other code reaches; the caller waits; where its wait is
cut short the work goes on to its end. What must also hold in the caller's thread uses single steps of the interpreter: a lock in
a ``with`` statement, `UseCount`, and `on_end`, whose weak reference calls a function written in C.
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
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
logger = logging.getLogger("gpu_shared")

#: seconds that the interpreter's end waits for work in other threads
_PATIENCE = 30.0
_FORK_PATIENCE = 2.0  #: and a fork


class Abandoned(BaseException):
    """Raised inside work whose caller no longer waits, by `check_wanted`."""


class UseCount:
    """Counts users of an object, each by a ``with`` statement on `hold`. A user is a view of a byte array, which cannot change
    its size meanwhile: the interpreter ends the view in one step, also where the frame that has it goes.
    """

    __slots__ = ("_bytes",)

    def __init__(self) -> None:
        self._bytes = bytearray(1)

    def hold(self) -> memoryview:
        """One user, until the view is released or gone."""
        return memoryview(self._bytes)

    @property
    def held(self) -> bool:
        """Whether there is a user."""
        try:
            self._bytes.append(0)
            self._bytes.pop()
        except BufferError:
            return True
        return False

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until there is no user; False where one is left after ``seconds``."""
        ends = None if seconds is None else time.monotonic() + seconds
        pause = 0.0001
        while self.held:
            if ends is not None and time.monotonic() > ends:
                return False
            time.sleep(pause)
            pause = min(2 * pause, 0.01)
        return True


# ---- work in threads of its own


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
        """Hand it to its worker. Who is interrupted here must abandon it: it may have begun."""
        assert self.worker is not None
        self.worker.tasks.put(self)


class _Worker:
    """The handle of a thread that waits for tasks. The thread ends when the handle goes while it is idle."""

    __slots__ = ("__weakref__", "tasks")

    def __init__(self) -> None:
        self.tasks: SimpleQueue[Any] = SimpleQueue()
        _thread.start_new_thread(_serve, (self.tasks, weakref.ref(self, self.tasks.put)))


class _Here(threading.local):
    task: _Task | None = None
    in_run = False  #: whether this thread uses what is closed only once it has let go: it must not stop before


_here = _Here()
_idle: deque[_Worker] = deque()
_working = UseCount()
_gate = threading.Lock()  #: held while the process forks: no work begins
_exiting = False


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
            if task.abandoned:  # asked after the result is there: one of both threads drops it
                task.result = None
            _here.task = None
            work, task.work = task.work, _nothing
            del work  # what it refers to goes in this thread, before the caller continues
            ended = task.ended
            if task.worker is not None:
                _idle.append(task.worker)
            del task  # before the caller goes on: its result is the caller's alone
            ended.release()


def _nothing() -> None:
    pass


def _task(work: Callable[[], Any]) -> _Task | None:
    """A task for a worker of its own; None where no worker can be started."""
    try:
        worker = _idle.pop()
    except IndexError:
        try:
            worker = _Worker()
        except RuntimeError:  # no more threads, or the interpreter ends
            return None
    return _Task(work, worker)


class Started(Generic[T]):
    """Work that runs beside the caller, who must be such work itself. `result` waits for it."""

    def __init__(self, work: Callable[[], T]) -> None:
        task = _task(work)
        if task is not None:
            task.begin()
        self._task = task or _done_here(work)

    def result(self) -> T:
        """What the work returned, or its error raised."""
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
    """``work()`` in a thread that no signal interrupts; inside such a thread, at once. Where the wait is cut short the work goes
    on, and its result is dropped: what must not be lost ends with its last reference (`on_end`).
    """
    if _here.task is not None:
        return work()
    if _exiting:
        if not _here.in_run:
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
        task.result = None  # a traceback may keep the task by its frames, and must not keep the result
        raise
    if task.error is not None:
        if not _here.in_run:
            park_at_exit()  # the error is perhaps the end's doing
        try:
            raise task.error
        finally:
            del task  # else the error's traceback and the task refer to each other
    return task.result


def steady(function: F) -> F:
    """A function whose calls run as `run_steady` says."""

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        if _here.task is not None:
            return function(*args, **options)
        return run_steady(functools.partial(function, *args, **options))

    return call  # type: ignore[return-value]


def check_wanted() -> None:
    """Raise `Abandoned` where nobody waits for the work that calls it: its caller was interrupted, or the interpreter ends."""
    task = _here.task
    if task is not None and (task.abandoned or _exiting):
        raise Abandoned


# ---- ends of objects

_ends: dict[int, End] = {}  #: those that have not run, oldest first
_due: deque[End] = deque()  #: their owners have gone
_bell: SimpleQueue[Any] = SimpleQueue()
_ending = threading.RLock()
_ender_started = False


class End(weakref.ref[Any]):
    """What is done when an object goes, or when this is called: once. Made by `on_end`."""

    work: Callable[[], None]
    at_exit: bool
    ring: weakref.ref[Any]

    def __call__(self) -> None:
        """Do it now, in this thread, unless it is done."""
        if _ends.pop(id(self), None) is not None:
            work, self.work = self.work, _nothing
            work()

    @property
    def alive(self) -> bool:
        """Whether it is still to be done."""
        return id(self) in _ends

    def detach(self) -> None:
        """Never do it."""
        _ends.pop(id(self), None)


def on_end(owner: object, work: Callable[..., None], *arguments: Any, at_exit: bool = True) -> End:
    """Do ``work(*arguments)`` when the last reference to ``owner`` goes, soon after, in another thread; with ``at_exit`` also at
    the interpreter's end, the newest first. ``work`` must not refer to the owner.
    """
    global _ender_started
    ring = weakref.ref(
        owner, _bell.put
    )  # the newest reference is called first: what is due is noted before the bell rings
    end = End(owner, _due.append)
    end.work, end.at_exit, end.ring = functools.partial(work, *arguments), at_exit, ring
    _ends[id(end)] = end
    if not _ender_started:
        _ender_started = True
        try:
            _thread.start_new_thread(_end_what_is_due, (_bell,))
        except RuntimeError:  # no more threads, or the interpreter ends: whoever calls `settle` does its work
            logger.debug("no thread to end what nobody refers to any more")
    return end


def _end_what_is_due(bell: SimpleQueue[Any]) -> None:
    _here.task = _Task(_nothing, None)  # what it calls runs here
    while True:
        bell.get()
        with _working.hold():
            settle()


def settle() -> None:
    """Do what is to be done for objects that have gone, and wait where another thread is at it. Hold no lock."""
    if _here.task is None:
        if _due:
            run_steady(settle)
        with _ending:
            return
    with _ending:
        while _due:
            end = _due.popleft()
            try:
                end()
            except Exception:
                logger.exception("ending what nobody refers to any more")


# ---- the interpreter's end, and forks

_last: list[Callable[[], None]] = []


def at_exit(work: Callable[[], None]) -> None:
    """Have ``work()`` called at the interpreter's end, after all that `on_end` promises."""
    _last.append(work)


def set_in_run(value: bool) -> None:
    """Say that this thread uses what others wait for until it lets go, or no more."""
    _here.in_run = value


def park_at_exit() -> None:
    """Never return where a daemon thread calls at the interpreter's end: what it would use is gone, and so will the thread be."""
    if not _exiting and threading.main_thread().is_alive():
        return
    thread = threading.current_thread()
    if thread.daemon and not isinstance(thread, threading._DummyThread):  # others may be waited for by who made them
        forever = _thread.allocate_lock()
        forever.acquire()
        forever.acquire()


@atexit.register
def _exit() -> None:
    """End everything while Python still runs: the drivers' own exit handlers would find threads inside them."""
    global _exiting
    _exiting = True
    if not _working.wait(_PATIENCE):
        logger.warning("the interpreter ends while work on the GPU has not ended for %.0f s", _PATIENCE)
        return
    for end in [end for end in reversed(_ends.values()) if end.at_exit]:
        try:
            end()
        except Exception:
            logger.exception("at the interpreter's end")
    for work in _last:
        work()


def _after_fork_in_child() -> None:
    """The child has none of the threads, and what was to end is the parent's."""
    global _here, _working, _gate, _bell, _ending, _ender_started
    _here, _working, _gate = _Here(), UseCount(), threading.Lock()
    _bell, _ending, _ender_started = SimpleQueue(), threading.RLock(), False
    _idle.clear()
    _due.clear()
    _ends.clear()


def _before_fork() -> None:
    """The driver's state is copied as it is: wait until no work is within it."""
    if _here.task is None:
        _gate.acquire()
        _working.wait(_FORK_PATIENCE)


def _after_fork_in_parent() -> None:
    if _here.task is None:
        _gate.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
