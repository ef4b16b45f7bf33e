"""Copies of the host's: what several threads copy is what one would, and no result's memory is written while anyone holds it."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vkep.memory import host_copy
from vkep.memory.host_copy import ResultArrays, copy


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


def test_several_threads_take_part(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[int] = set()
    together = threading.Barrier(3, timeout=20)
    copyto = np.copyto

    def noted(target: Any, source: Any) -> None:
        if threading.get_ident() not in seen:
            seen.add(threading.get_ident())
            together.wait()  # until all three have a piece
        copyto(target, source)

    monkeypatch.setattr(host_copy.np, "copyto", noted)
    source, target = np.arange(240, dtype=np.uint8), np.zeros(240, np.uint8)
    copy(target, source)
    assert len(seen) == 3
    np.testing.assert_array_equal(target, source)


def test_what_goes_wrong_is_told_once_nobody_writes_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    writing = threading.Semaphore(0)
    done: list[int] = []
    copyto = np.copyto
    caller = threading.get_ident()

    def broken(target: Any, source: Any) -> None:
        if threading.get_ident() == caller:
            assert writing.acquire(timeout=20)  # a helper is in the middle of a piece
            raise KeyboardInterrupt
        writing.release()
        time.sleep(0.05)  # the caller has raised by then
        copyto(target, source)
        done.append(1)

    monkeypatch.setattr(host_copy.np, "copyto", broken)
    with pytest.raises(KeyboardInterrupt):
        copy(np.zeros(2400, np.uint8), np.ones(2400, np.uint8))
    count = len(done)
    time.sleep(0.2)
    assert count and len(done) == count


def test_what_fails_in_a_helper_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    caller = threading.get_ident()
    tried = threading.Event()

    def broken(target: Any, source: Any) -> None:
        if threading.get_ident() == caller:
            assert tried.wait(20)
            return
        tried.set()
        raise MemoryError("in a helper")

    monkeypatch.setattr(host_copy.np, "copyto", broken)
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
    deadline = time.monotonic() + 20
    while kept() is not None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert kept() is None


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
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.strip()) == (0, "at the end True"), done.stderr


# ---- results


def test_memory_comes_back_with_the_last_view() -> None:
    arrays = ResultArrays((10, 10), np.dtype(np.float32))
    first = arrays.empty()
    assert first.shape == (10, 10) and first.dtype == np.float32 and first.flags.writeable and first.flags.c_contiguous
    row, address = first[3], first.ctypes.data
    first[:] = 7
    del first
    second = arrays.empty()
    assert second.ctypes.data != address, "a row of the first is still held"
    assert (row == 7).all()
    del row
    third = arrays.empty()
    assert third.ctypes.data == address
    del second, third
    assert len(arrays._spare) == 1, "one is kept, not both"


def test_short_results_are_arrays_of_their_own() -> None:
    arrays = ResultArrays((3,), np.dtype(np.float32))
    assert arrays.empty().base is None
    assert ResultArrays((0, 4), np.dtype(np.float32)).empty().shape == (0, 4)


def test_results_outlive_what_made_them() -> None:
    arrays = ResultArrays((50,), np.dtype(ml_dtypes.bfloat16))
    kept = arrays.empty()
    kept[:] = 3
    del arrays
    gc.collect()
    assert (kept == 3).all() and kept.dtype == ml_dtypes.bfloat16
