"""Copies on the host: several threads copy what one would, and no thread writes after a copy has ended."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import warnings
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tools.waiting import comes_true
from vkep.memory import host_copy
from vkep.memory.host_copy import copy


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three threads, whatever the machine has, and pieces that small arrays are cut into."""
    monkeypatch.setattr(host_copy, "THREADS", 3)
    monkeypatch.setattr(host_copy, "LEAST", 64)
    monkeypatch.setattr(host_copy, "_PIECE", 24)
    monkeypatch.setattr(host_copy, "_helpers", host_copy._Helpers())


@settings(max_examples=100)
@given(
    shape=st.lists(st.integers(0, 9), max_size=3),
    dtype=st.sampled_from([np.float32, np.bool_, np.int64, ml_dtypes.bfloat16, np.float16]),
    turned=st.booleans(),
    seed=st.integers(0, 99),
)
def test_copies_are_those_of_numpy(shape: list[int], dtype: Any, turned: bool, seed: int) -> None:
    source = np.random.default_rng(seed).integers(0, 2, shape).astype(dtype)
    if turned:
        source = source.T
    target = np.full(source.shape, 1, dtype)
    copy(target, source)
    np.testing.assert_array_equal(target, source)


def test_a_copy_into_a_view_leaves_the_rest_alone() -> None:
    whole = np.zeros((8, 40), np.float32)
    copy(whole[2:6], np.ones((4, 40), np.float32))
    assert whole.sum() == 4 * 40
    copy(whole[:, ::2], np.full((8, 20), 2, np.float32))
    assert (whole[:, ::2] == 2).all() and (whole[0, 1::2] == 0).all()


def test_another_dtype_is_converted() -> None:
    target = np.zeros(100, np.float32)
    copy(target, np.arange(100, dtype=np.int32))
    np.testing.assert_array_equal(target, np.arange(100))


def test_matrices_and_masked_arrays() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PendingDeprecationWarning)
        matrix = np.matrix(np.arange(400.0).reshape(20, 20))
    target = np.zeros((20, 20))
    copy(target, matrix)
    np.testing.assert_array_equal(target, np.arange(400.0).reshape(20, 20))
    copy(target, np.ma.masked_less(np.ones((20, 20)), 0))
    assert (target == 1).all()


def test_overlapping_memory() -> None:
    whole = np.arange(1000, dtype=np.int32)
    copy(whole[7:907], whole[:900])
    np.testing.assert_array_equal(whole[7:907], np.arange(900))


def test_other_shapes_and_objects_are_numpys_affair() -> None:
    with pytest.raises(ValueError, match="broadcast"):
        copy(np.zeros(100), np.zeros(99))
    target = np.zeros((3, 100))
    copy(target, np.arange(100.0))
    assert (target == np.arange(100.0)).all()
    words, texts = np.array(["a", None] * 50, object), np.empty(100, object)
    copy(texts, words)
    assert texts.tolist() == words.tolist()


def test_several_threads_take_part(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[int] = set()
    together = threading.Barrier(3, timeout=120)
    copyto = np.copyto

    def noted(target: Any, source: Any) -> None:
        if threading.get_ident() not in seen:
            seen.add(threading.get_ident())
            together.wait()  # until all three have a piece
        copyto(target, source)

    monkeypatch.setattr(np, "copyto", noted)
    source, target = np.arange(240, dtype=np.uint8), np.zeros(240, np.uint8)
    copy(target, source)
    assert len(seen) == 3
    np.testing.assert_array_equal(target, source)


def test_an_error_is_raised_when_no_thread_writes_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    writing, raises = threading.Semaphore(0), threading.Event()
    done: list[int] = []
    copyto = np.copyto
    caller = threading.get_ident()

    def broken(target: Any, source: Any) -> None:
        if threading.get_ident() == caller:
            assert writing.acquire(timeout=120)  # a helper is in the middle of a piece
            raises.set()
            raise KeyboardInterrupt
        writing.release()
        assert raises.wait(120)  # pieces are left for the caller
        time.sleep(0.05)  # most likely the caller has raised by then
        copyto(target, source)
        done.append(1)

    monkeypatch.setattr(np, "copyto", broken)
    with pytest.raises(KeyboardInterrupt):
        copy(np.zeros(2400, np.uint8), np.ones(2400, np.uint8))
    count = len(done)
    time.sleep(0.2)
    assert count and len(done) == count


@pytest.mark.parametrize("where", ["asking", "waiting"])
def test_an_interrupt_waits_for_the_helpers(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """Ctrl-C comes while the caller asks for help, or twice while it waits for those that came."""
    source, target = np.ones(2400, np.uint8), np.zeros(2400, np.uint8)
    shared = host_copy._SharedCopy(target, source)
    writing, caller, copyto, done = threading.Semaphore(0), threading.get_ident(), np.copyto, []
    begun: list[bool] = []
    interrupted_all = threading.Event()

    def slow(to: Any, data: Any) -> None:
        if threading.get_ident() == caller:
            assert begun or writing.acquire(timeout=120)  # a helper is at it when the caller begins
            begun.append(True)
        else:
            writing.release()
            assert interrupted_all.wait(120)
            time.sleep(0.05)
        copyto(to, data)
        done.append(1)

    monkeypatch.setattr(np, "copyto", slow)
    interrupts = [KeyboardInterrupt("first"), KeyboardInterrupt("second")]
    if where == "asking":
        ask = host_copy._Helpers.ask

        def interrupted(self: Any, *given: Any) -> None:
            ask(self, *given)
            assert writing.acquire(timeout=120)  # they are at it
            interrupted_all.set()
            raise interrupts.pop(0)

        monkeypatch.setattr(host_copy._Helpers, "ask", interrupted)
    else:

        class Bell:
            def __init__(self, bell: Any) -> None:
                self.get = lambda timeout: bell.get(timeout=timeout) if not interrupts else self.interrupt()
                self.put = bell.put

            def interrupt(self) -> None:
                error = interrupts.pop(0)
                if not interrupts:
                    interrupted_all.set()
                raise error

        monkeypatch.setattr(shared, "_bell", Bell(shared._bell))
        monkeypatch.setattr(shared, "_starts", iter([0, 24, 48]))  # one for each: the caller ends first
    with pytest.raises(KeyboardInterrupt):
        shared.run()
    count = len(done)
    time.sleep(0.2)
    assert count and len(done) == count


def test_errors_of_a_helper_thread_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    caller = threading.get_ident()
    tried = threading.Event()

    def broken(target: Any, source: Any) -> None:
        if threading.get_ident() == caller:
            assert tried.wait(120)
            return
        tried.set()
        raise MemoryError("in a helper")

    monkeypatch.setattr(np, "copyto", broken)
    with pytest.raises(MemoryError, match="in a helper"):
        copy(np.zeros(240, np.uint8), np.ones(240, np.uint8))
    monkeypatch.undo()
    target = np.zeros(240, np.uint8)
    copy(target, np.ones(240, np.uint8))
    assert target.all()


def test_helpers_that_wait_hold_no_memory() -> None:
    source, target = np.ones(4800, np.uint8), np.zeros(4800, np.uint8)
    for _ in range(20):
        copy(target, source)
    kept = weakref.ref(source)
    del source
    assert comes_true(lambda: kept() is None)


def test_many_copies_at_once() -> None:
    sources = [np.full(5000, i, np.uint8) for i in range(32)]
    targets = [np.zeros_like(s) for s in sources]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(copy, targets, sources))
    for target, source in zip(targets, sources, strict=True):
        np.testing.assert_array_equal(target, source)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_copies_with_threads_of_its_own() -> None:
    script = """
import os, sys, numpy as np
from vkep.memory import host_copy
host_copy.THREADS, host_copy.LEAST, host_copy._PIECE = 3, 64, 24
source = np.arange(200, dtype=np.uint8)
def right():
    target = np.zeros_like(source)
    host_copy.copy(target, source)
    return (target == source).all()
assert right()
child = os.fork()
if not child:
    os._exit(0 if right() else 3)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
import atexit
atexit.register(lambda: print("at the end", right()))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stdout.strip()) == (0, "at the end True"), done.stderr
