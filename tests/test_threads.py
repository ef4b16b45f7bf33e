"""`vkep.threads.made_ahead`: results in order, made by threads, of which only so many wait."""

from __future__ import annotations

import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vkep.threads import made_ahead


@settings(deadline=None, max_examples=50)
@given(st.lists(st.one_of(st.none(), st.integers(0, 9)), max_size=12), st.integers(0, 20))
def test_results_come_in_order_and_few_wait(sizes: list[int | None], most: int) -> None:
    lock, begun = threading.Lock(), set[int]()

    def make(k: int) -> tuple[int]:
        with lock:
            begun.add(k)
        return (k,)

    found = []
    makes = [(None if size is None else lambda k=k: make(k), size or 0) for k, size in enumerate(sizes)]
    for k, made in enumerate(made_ahead(makes, most)):
        found.append(made)
        with lock:
            ahead = [sizes[j] or 0 for j in sorted(begun) if j > k]
        # the last of them is submitted before it is known whether there is room
        assert not ahead or sum(ahead) - ahead[-1] <= most
    assert found == [None if size is None else (k,) for k, size in enumerate(sizes)]


def test_functions_run_at_once() -> None:
    both = threading.Barrier(2, timeout=60)
    assert list(made_ahead([(both.wait, 1), (both.wait, 1)])) in ([0, 1], [1, 0])


def test_an_error_is_raised_in_its_turn_and_ends_the_rest() -> None:
    def fail() -> int:
        raise ValueError("the second")

    found: list[int | None] = []
    made = made_ahead([(lambda: 1, 1), (fail, 1), (lambda: 3, 1)])
    with pytest.raises(ValueError, match="the second"):
        found.extend(made)
    assert found == [1] and list(made) == []


def test_a_caller_that_stops_leaves_no_thread_at_work() -> None:
    ended: list[None] = []

    def work() -> int:
        time.sleep(0.05)
        ended.append(None)
        return 1

    made = made_ahead([(work, 1)] * 40)
    next(made)
    made.close()
    count = len(ended)
    assert count < 40
    time.sleep(0.15)
    assert len(ended) == count
