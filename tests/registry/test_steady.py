"""Work that no interrupt cuts short, counts that none skips, ends that come with the last reference."""

from __future__ import annotations

import _thread
import contextvars
import functools
import gc
import os
import signal
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from gpu_shared import steady
from gpu_shared.steady import Abandoned, Queue, check_wanted, on_end, run_steady, settle
from gpu_shared.use_count import UseCount
from tests.processes import python
from tools.waiting import LONG_S, comes_true


class Owner:
    """What `on_end` watches."""

    me: Owner | None = None


needs_signals = pytest.mark.skipif(sys.platform == "win32", reason="a signal to a thread")


def _interrupted(work: Callable[[Callable[[], None]], Any]) -> None:
    """Call ``work`` with a function that interrupts this thread: it receives one interrupt, and the function returns then."""
    told: list[int] = []

    def handler(number: int, _frame: object) -> None:
        if not told:
            told.append(number)
            raise KeyboardInterrupt

    def interrupt() -> None:
        while not told:  # a signal that comes just before a thread waits for a lock does not wake it
            if sys.platform != "win32":
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR2)
            time.sleep(0.01)

    if sys.platform != "win32":
        signal.signal(signal.SIGUSR2, handler)  # it stays, for a last signal that comes late
    with pytest.raises(KeyboardInterrupt):
        work(interrupt)


def test_the_caller_gets_the_result_and_the_error_with_both_stacks() -> None:
    variable = contextvars.ContextVar[int]("variable")
    variable.set(3)
    assert (
        run_steady(lambda: (variable.get(), threading.get_ident() != main)) == (3, True)
        if (main := threading.get_ident())
        else None
    )

    def fail() -> None:
        raise ValueError("inside")

    with pytest.raises(ValueError, match="inside") as caught:
        run_steady(fail)
    assert [entry.name for entry in caught.traceback][-1] == "fail"
    error = weakref.ref(caught.value) if hasattr(caught.value, "__weakref__") else None
    assert error is None or error() is caught.value


def test_inside_such_work_all_runs_in_one_thread() -> None:
    assert run_steady(lambda: run_steady(threading.get_ident) == threading.get_ident())


@needs_signals
def test_interrupted_work_goes_on_and_its_result_goes() -> None:
    may_end, ended, watch = threading.Event(), threading.Event(), []

    def work(interrupt: Callable[[], None]) -> Owner:
        interrupt()
        assert may_end.wait(LONG_S)
        owner = Owner()
        watch.append(weakref.ref(owner))
        ended.set()
        return owner

    _interrupted(lambda interrupt: run_steady(lambda: work(interrupt)))  # the interrupt arrives before the work ends
    assert not ended.is_set()
    may_end.set()
    assert ended.wait(LONG_S)
    assert comes_true(lambda: watch[0]() is None)


@needs_signals
def test_abandoned_work_may_ask() -> None:
    said: list[type[BaseException]] = []
    done = threading.Event()

    def work(interrupt: Callable[[], None]) -> None:
        interrupt()
        try:
            while True:
                time.sleep(0.01)
                check_wanted()
        except BaseException as error:
            said.append(type(error))
            done.set()
            raise

    _interrupted(lambda interrupt: run_steady(lambda: work(interrupt)))
    assert done.wait(LONG_S) and said == [Abandoned]


def test_threads_are_kept_for_later_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steady, "_idle", deque())  # to which a thread of another test may come
    run_steady(threading.get_ident)
    assert run_steady(threading.get_ident) == run_steady(threading.get_ident)
    before = threading.active_count()
    for _ in range(50):
        run_steady(threading.get_ident)
    assert threading.active_count() <= before + 1


def test_queued_work_is_done_in_order_by_one_other_thread(caplog: pytest.LogCaptureFixture) -> None:
    """An error reaches no caller, and stops nothing."""
    done: list[tuple[int, int]] = []
    numbers = Queue()

    def work(number: int) -> None:
        assert not numbers.wait(60)  # inside such work it does not wait
        done.append((number, threading.get_ident()))
        raise ValueError("wrong")

    for number in range(3):
        numbers.put(functools.partial(work, number))
    assert numbers.wait(LONG_S) and numbers.idle
    (thread,) = {ident for _, ident in done}
    assert [number for number, _ in done] == [0, 1, 2] and thread != threading.get_ident()
    assert caplog.text.count("in work that no caller waits for") == 3


def test_an_entry_may_do_queued_work_itself() -> None:
    """Unless another thread does it, for which it waits then."""
    numbers, done, may_end = Queue(), list[int](), threading.Event()

    def entry() -> tuple[bool, int]:
        numbers.due.append(lambda: done.append(threading.get_ident()))  # as a finalizer, whose bell comes later
        return numbers.wait(LONG_S, here=True), threading.get_ident()

    ended, thread = run_steady(entry)
    assert ended and done == [thread]
    numbers.put(may_end.wait)
    assert comes_true(lambda: not numbers.due)
    threading.Timer(0.05, may_end.set).start()
    assert run_steady(entry)[0] and len(done) == 2


def test_a_thread_that_does_not_start_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception for the thread that creates it may end it before it runs (`PyThreadState_SetAsyncExc`, CPython 3.11)."""
    start, asked = _thread.start_new_thread, []

    def started(*given: Any) -> int:
        asked.append(given)
        return 0 if len(asked) == 1 else start(*given)

    monkeypatch.setattr(steady, "_STARTS", 0.01)
    monkeypatch.setattr(steady, "_idle", deque())
    monkeypatch.setattr(_thread, "start_new_thread", started)
    assert steady.run_steady(lambda: 3) == 3
    assert len(asked) > 1


@needs_signals
def test_an_error_of_a_signals_handler_is_no_missing_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work would be done in this thread, which handles signals, and the error would be lost."""
    done: list[int] = []

    def handler(*_: object) -> None:
        raise RuntimeError("of the handler")

    monkeypatch.setattr(steady, "_idle", deque())
    monkeypatch.setattr(_thread, "start_new_thread", lambda *_: signal.raise_signal(signal.SIGUSR1))
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(RuntimeError, match="of the handler"):
            run_steady(lambda: done.append(1))
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert not done


def test_without_threads_the_caller_does_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(steady, "_idle", deque())
    monkeypatch.setattr(_thread, "start_new_thread", refused)
    assert run_steady(threading.get_ident) == threading.get_ident()
    assert steady.Started(threading.get_ident).result() == threading.get_ident()
    numbers, done = Queue(), list[int]()
    numbers.put(lambda: done.append(threading.get_ident()))
    assert numbers.wait() and done == [threading.get_ident()]


def test_a_count_ends_with_the_statement_and_with_the_last_reference() -> None:
    count = UseCount()
    held = [count.held]
    with count.hold():
        held.append(count.held)
        with count.hold():
            pass
        held.append(count.held)
        assert not count.wait(0.01)
    held.append(count.held)
    assert count.wait()
    hold = count.hold()
    held.append(count.held)
    del hold
    held.append(count.held)
    assert held == [False, True, True, False, True, False]


def test_ends_come_once() -> None:
    done: list[str] = []
    owner = Owner()
    end = on_end(owner, done.append, "a")
    end()
    end()
    assert done == ["a"]
    del owner
    settle()
    assert done == ["a"]


def test_unreferenced_objects_are_ended_soon_in_another_thread() -> None:
    done: list[int] = []
    owner = Owner()
    on_end(owner, lambda: done.append(threading.get_ident()))
    del owner
    settle()
    assert len(done) == 1 and done[0] != threading.get_ident()
    owner = Owner()
    on_end(owner, lambda: done.append(0))
    del owner
    assert comes_true(lambda: done[1:] == [0])  # without a request


def test_a_finalizer_does_not_wait_for_those_that_come_after_it() -> None:
    waited: list[bool] = []
    done: list[str] = []
    first, second = Owner(), Owner()
    on_end(second, done.append, "second")

    def work(held: list[Owner]) -> None:
        held.clear()  # the second one is due
        began = time.monotonic()
        waited.append(settle(60))
        waited.append(time.monotonic() - began > 30)

    on_end(first, work, [second])
    del first, second
    settle()
    assert waited == [False, False] and done == ["second"]
    assert settle(60)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="POSIX")
def test_a_forked_child_does_not_wait_for_its_parents_finalizers() -> None:
    done = python(
        """
        import os, time
        from gpu_shared.steady import on_end, settle
        class Owner: pass
        owner = Owner()
        on_end(owner, print, "of the parent")
        child = os.fork()
        if child == 0:
            del owner
            began = time.monotonic()
            settle(60)
            os._exit(time.monotonic() - began > 30)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        """
    )
    assert (done.returncode, done.stdout) == (0, "of the parent\n"), done.stderr


def test_nothing_waits_for_finalizers_when_the_interpreter_has_ended() -> None:
    done = python(
        """
        import time
        from gpu_shared.steady import on_end, settle
        class Owner: pass
        class Last:
            def __del__(self, settle=settle, monotonic=time.monotonic, print=print):
                began = monotonic()
                self.owner = None
                print(settle(60), monotonic() - began > 30)
        last = Last()
        last.owner = Owner()
        on_end(last.owner, print, at_exit=False)
        """
    )
    assert (done.returncode, done.stdout) == (0, "False False\n"), done.stderr


def test_ends_of_a_cycle_and_detached_ones() -> None:
    done: list[str] = []
    owner, other = Owner(), Owner()
    owner.me = owner
    on_end(owner, done.append, "cycle")
    on_end(other, done.append, "detached").detach()
    del owner, other
    gc.collect()
    settle()
    assert done == ["cycle"]


def test_an_error_at_an_end_is_said_and_stops_no_other(caplog: pytest.LogCaptureFixture) -> None:
    done: list[str] = []

    def fail() -> None:
        raise ValueError("at the end")

    one, two = Owner(), Owner()
    on_end(one, fail)
    on_end(two, done.append, "two")
    del one, two
    settle()
    assert done == ["two"] and "in work that no caller waits for" in caplog.text
