"""Memory of results: none is written while it is held, and what is kept has bounds."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from vkep.memory import results
from vkep.memory.results import ResultMemory

FLOAT = np.dtype(np.float32)


@pytest.fixture(autouse=True)
def short_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "LEAST", 64)


def place(array: Any) -> int:
    return int(array.ctypes.data)


def test_memory_comes_back_with_the_last_view() -> None:
    memory = ResultMemory()
    first = memory.empty((10, 10), FLOAT)
    assert first.shape == (10, 10) and first.dtype == np.float32 and first.flags.writeable and first.flags.c_contiguous
    row, there = first[3], place(first)
    first[:] = 7
    del first
    second = memory.empty((10, 10), FLOAT)
    assert place(second) != there, "a row of the first is still held"
    assert (row == 7).all()
    del row
    assert place(memory.empty((10, 10), FLOAT)) == there


def test_only_memory_of_the_same_size_is_given_again() -> None:
    memory = ResultMemory()
    there = place(memory.empty((10, 10), FLOAT))
    other = memory.empty((10, 11), FLOAT)
    assert place(other) != there
    assert place(memory.empty((4, 50), np.dtype(ml_dtypes.bfloat16))) == there, "400 bytes, whatever they mean"


def test_short_results_are_arrays_of_their_own() -> None:
    memory = ResultMemory()
    assert memory.empty((3,), FLOAT).base is None
    assert memory.empty((), FLOAT).shape == () and memory.empty((0, 4), FLOAT).shape == (0, 4)
    assert not memory._spares


def test_no_more_is_kept_than_was_said() -> None:
    memory = ResultMemory(most=1000)
    held = [memory.empty((100,), FLOAT) for _ in range(5)]
    there = [place(array) for array in held]
    while held:
        held.pop(0)
        assert memory.nbytes == sum(m.nbytes for m in memory._spares.values()) <= 1000
    assert [place(m) for m in memory._spares.values()] == there[3:], "the oldest went"
    del held[:]
    longer = memory.empty((251,), FLOAT)
    del longer
    assert memory.nbytes == 800, "what is longer than all that may be kept takes nobody's place"


def test_trimmed_and_closed() -> None:
    memory = ResultMemory()
    held = memory.empty((50,), np.dtype(ml_dtypes.bfloat16))
    held[:] = 3
    del (gone := [memory.empty((100,), FLOAT)])[:]
    assert memory.nbytes == 400 and not gone
    memory.trim()
    assert memory.nbytes == 0
    memory.close()
    view = held[1:]
    del held
    assert (view == 3).all()
    del view
    assert memory.nbytes == 0, "a closed one keeps nothing"


def test_results_outlive_what_made_them() -> None:
    memory = ResultMemory()
    kept = memory.empty((50,), FLOAT)
    kept[:] = 3
    del memory
    gc.collect()
    assert (kept == 3).all()
    del kept


def test_many_threads() -> None:
    memory = ResultMemory(most=4000)

    def work(number: int) -> None:
        mine: list[Any] = []
        for turn in range(300):
            array = memory.empty((100 + (turn + number) % 3,), FLOAT)
            array[:] = number
            mine.append(array)
            assert all((a == number).all() for a in mine)
            if len(mine) > 4:
                del mine[turn % 4]

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    assert memory.nbytes == sum(m.nbytes for m in memory._spares.values()) <= 4000


def test_memory_serves_results_that_are_a_little_smaller() -> None:
    memory = ResultMemory()
    large = memory.empty((100,), FLOAT)
    there = place(large)
    del large
    a_little = memory.empty((90,), FLOAT)
    assert place(a_little) == there and a_little.shape == (90,)
    assert place(memory.empty((70,), FLOAT)) != there
    del a_little
    assert memory.nbytes >= 400, "all of it came back"
    assert place(memory.empty((100,), FLOAT)) == there
