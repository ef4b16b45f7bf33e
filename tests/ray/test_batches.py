"""Rows to feeds and back: which share a run, what is padded and cut off."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vkep.ray.batches import Padding, Table, row_count
from vkep.serving.joining import rows_axis


def argument(name: str, *shape: Any) -> Any:
    return SimpleNamespace(name=name, shape=shape)


def ragged(rows: list[Any]) -> Any:
    column = np.empty(len(rows), object)
    column[:] = rows
    return column


TOKENS = Table.of(
    [argument("ids", "n", "s"), argument("mask", "n", "s")], [argument("y", "n", "s", 2), argument("z", "n", 2)]
)


class Model:
    """y = ids in both columns, z = [sum of ids, rows' mask sum]; notes the shapes of its runs."""

    def __init__(self) -> None:
        self.shapes: list[tuple[int, ...]] = []

    def __call__(self, feeds: Any) -> list[Any]:
        self.shapes.append(feeds["ids"].shape)
        assert feeds["mask"].shape == feeds["ids"].shape
        y = np.stack([feeds["ids"], feeds["ids"]], -1)
        return [y, np.stack([feeds["ids"].sum(1), feeds["mask"].sum(1)], -1)]


def columns(lengths: list[int]) -> Any:
    ids = [np.arange(1, length + 1) + 100 * at for at, length in enumerate(lengths)]
    return {"ids": ragged(ids), "mask": ragged([np.ones_like(row) for row in ids])}


def expect(found: Any, given: Any) -> None:
    for at, ids in enumerate(given["ids"]):
        np.testing.assert_array_equal(found["y"][at], np.stack([ids, ids], -1))
        np.testing.assert_array_equal(found["z"][at], [ids.sum(), len(ids)])


@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.integers(0, 4), st.booleans())
def test_every_rows_answer_is_its_own(lengths: list[int], most: int, pad: bool) -> None:
    model = Model()
    padding = Padding({"ids": 0, "mask": 0}, (4, 8)) if pad else None
    expect(TOKENS.run(columns(lengths), model, padding, most), columns(lengths))
    assert all(rows <= (most or len(lengths)) for rows, _ in model.shapes)
    if pad:
        assert {size for _, size in model.shapes} <= {4, 8, 9}


def test_rows_of_equal_shape_share_runs() -> None:
    model = Model()
    TOKENS.run(columns([3, 5, 3, 3, 5]), model)
    assert sorted(model.shapes) == [(2, 5), (3, 3)]
    model = Model()
    TOKENS.run(columns([3, 5, 3, 3, 5]), model, Padding({"ids": 0, "mask": 0}, (8,)))
    assert model.shapes == [(5, 8)]


def test_dense_columns_are_passed_on_whole() -> None:
    table = Table.of([argument("x", "n", 3)], [argument("y", "n", 3)])
    x = np.arange(30.0).reshape(10, 3)
    given: list[Any] = []

    def run(feeds: Any) -> list[Any]:
        given.append(feeds["x"])
        return [feeds["x"] * 2]

    np.testing.assert_array_equal(table.run({"x": x}, run)["y"], x * 2)
    assert len(given) == 1 and np.shares_memory(given[0], x)
    np.testing.assert_array_equal(table.run({"x": x}, run, most=4)["y"], x * 2)
    assert [len(g) for g in given[1:]] == [4, 4, 2]


def test_a_model_of_fixed_rows_gets_whole_batches() -> None:
    table = Table.of([argument("x", 4, 3)], [argument("y", 4)])
    x = np.arange(18.0).reshape(6, 3)

    def run(feeds: Any) -> list[Any]:
        assert feeds["x"].shape == (4, 3)
        return [feeds["x"].sum(1)]

    np.testing.assert_array_equal(table.run({"x": x}, run)["y"], x.sum(1))
    np.testing.assert_array_equal(table.run({"x": ragged(list(x))}, run)["y"], x.sum(1))


def test_the_axis_of_rows() -> None:
    assert rows_axis([argument("x", "n", 3)], [argument("y", "n")]) == "n"
    assert rows_axis([argument("x", 1, 3)], [argument("y", 1)]) == 1
    assert rows_axis([argument("x", "n")], [argument("y", "m")]) is None
    assert rows_axis([argument("x", None)], [argument("y", None)]) is None
    with pytest.raises(ValueError, match="no axis of rows"):
        Table.of([argument("x")], [argument("y", "n")])


def test_results_of_another_number_of_rows_are_an_error() -> None:
    given = {"ids": np.ones((5, 3)), "mask": np.ones((5, 3))}
    for columns_ in (given, columns([1, 2, 2])):
        with pytest.raises(ValueError, match="does not have a row for each"):
            TOKENS.run(columns_, lambda feeds: [result[1:] for result in Model()(feeds)])


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match="one length"):
        row_count({"a": np.zeros(2), "b": np.zeros(3)})
    with pytest.raises(ValueError, match="ascending"):
        Padding({}, (8, 4))
