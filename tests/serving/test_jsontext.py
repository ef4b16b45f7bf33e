"""JSON of requests is counted, read and written as the json module does, while other threads run."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import numpy as np
import pytest

from vkep.serving.jsontext import JsonCount, array_of, loads, text_of


@pytest.mark.parametrize(
    "value",
    [
        [1, 2.5, -3],
        {"a,b": ["[", "{", '"', "\\", '\\"', "\\\\", ","], "c": [[], {}, [1, [2]]]},
        ["\\" * 7, 'x",', [1]],
        {},
        "text, with [brackets]",
    ],
)
def test_values_outside_strings_are_counted(value: Any) -> None:
    def size(one: Any) -> tuple[int, int]:
        inner = list(one.values()) if isinstance(one, dict) else one if isinstance(one, list) else []
        found = [size(each) for each in inner]
        commas = max(len(inner) - 1, 0) + sum(c for c, _ in found)
        return commas, isinstance(one, (list, dict)) + sum(lists for _, lists in found)

    commas, lists = size(value)
    text = json.dumps(value).encode()
    for step in (1, 2, 3, len(text)):
        count = JsonCount()
        for at in range(0, len(text), step):
            count.add(text[at : at + step])
        assert (count.values, count.lists) == (commas + 1, lists)


@pytest.mark.parametrize("values", [[0.5, 1, -2e30], [[1, 2], [3, 4]], [[[True]]], [], [[]], ["a", "b"]])
def test_lists_become_the_arrays_of_numpy(values: list[Any]) -> None:
    for given in (values, values * 9000):
        expected, got = np.asarray(given), array_of(given)
        assert got.dtype == expected.dtype and got.shape == expected.shape and (got == expected).all()


def test_lists_of_several_lengths_are_refused() -> None:
    for given in ([[1, 2], [3]], [[1]] * 9000 + [[1, 2]], [1] * 9000 + [[2]]):
        with pytest.raises(ValueError):
            array_of(given)


def test_arrays_become_json() -> None:
    numbers = np.array([0.5, np.nan, -np.inf] * 5000, np.float32)
    assert json.loads(text_of(numbers)) == [0.5, None, None] * 5000
    assert json.loads(text_of(np.array(["ü", b"\xc3\xbc", '"'], object))) == ["ü", "ü", '"']
    assert text_of(np.zeros(0, np.int64)) == "[]" and text_of(np.array([True])) == "[true]"


def test_other_threads_run_while_a_million_numbers_are_read_and_written() -> None:
    text = f"[{', '.join(['0.125'] * (1 << 20))}]".encode()
    longest, ended = 0.0, threading.Event()

    def watch() -> None:
        nonlocal longest
        last = time.perf_counter()
        while not ended.is_set():
            time.sleep(0.0005)
            now = time.perf_counter()
            longest, last = max(longest, now - last), now

    watching = threading.Thread(target=watch)
    watching.start()
    started = time.perf_counter()
    written = text_of(array_of(loads(text, str)))
    took = time.perf_counter() - started
    ended.set()
    watching.join()
    assert written.encode() == text
    assert longest < max(0.2 * took, 0.1), (longest, took)
