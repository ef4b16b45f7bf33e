"""`vkep.ray.Predictor` as an object, without Ray."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import vkep
from tests.session.models import model
from tests.session.test_replicas import lose
from vkep.ray.predictor import Predictor

TWO = model("g (float[n,s] x, float[n,1] b) => (float[n,s] y, float[n,1] c) { y = Mul(x, x) c = Neg(b) }")
X, B = np.arange(12, dtype=np.float32).reshape(4, 3), np.ones((4, 1), np.float32)


@pytest.fixture
def predictor(vulkan: object) -> Iterator[Callable[..., Predictor]]:
    opened: list[Predictor] = []

    def open_(**options: Any) -> Predictor:
        opened.append(Predictor(TWO, **options))
        return opened[-1]

    yield open_
    for one in opened:
        one.close()


def test_columns_go_in_and_out_by_name(predictor: Callable[..., Predictor]) -> None:
    batch: dict[str, np.ndarray[Any, Any]] = {"x": X, "bias": B, "id": np.arange(4)}
    found = predictor(inputs={"b": "bias"}, outputs={"y": "square"}, warm={"x": (4, 3), "b": (4, 1)})(batch)
    assert list(found) == ["id", "square"]
    np.testing.assert_array_equal(found["square"], X * X)
    assert set(predictor(inputs={"b": "bias"})(batch)) == {"id", "y", "c"}


@pytest.mark.usefixtures("no_layers")
def test_a_batch_whose_device_is_lost_is_run_again(predictor: Callable[..., Predictor]) -> None:
    one = predictor()
    lose(one.session)
    np.testing.assert_array_equal(one({"x": X, "b": B})["y"], X * X)


def test_the_runs_of_a_batch_overlap_and_keep_their_order(
    predictor: Callable[..., Predictor], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = predictor(rows=1)
    both = threading.Barrier(2, timeout=120)
    run = one._run

    def meeting(feeds: dict[str, Any]) -> list[Any]:
        both.wait()  # breaks where runs follow one another
        return run(feeds)

    monkeypatch.setattr(one, "_run", meeting)
    np.testing.assert_array_equal(one({"x": X, "b": B})["y"], X * X)


def test_rows_of_different_lengths_are_padded_and_cut(predictor: Callable[..., Predictor]) -> None:
    x = np.empty(4, object)
    x[:] = [np.full(size, size, np.float32) for size in (2, 5, 3, 2)]
    found = predictor(pad={"x": 0}, steps=(4, 8))({"x": x, "b": B})
    assert [row.tolist() for row in found["y"]] == [(row * row).tolist() for row in x]


@pytest.mark.parametrize(
    ("options", "batch", "says"),
    [
        ({}, {"x": X}, r"no columns \['b'\]; it has \['x'\]"),
        ({}, {"x": X, "b": B, "y": B}, r"columns \['y'\] would be overwritten"),
        ({}, {"x": X.astype(np.float64), "b": B}, "got dtype float64"),
        ({"inputs": {"no": "x"}}, {}, r"inputs names \['no'\]; the model has \['x', 'b'\]"),
        ({"outputs": {"no": "x"}}, {}, "outputs names"),
        ({"warm": 4}, {}, "give shapes by input"),
    ],
)
def test_wrong_arguments_are_reported(predictor: Callable[..., Predictor], options: Any, batch: Any, says: str) -> None:
    with pytest.raises((vkep.InvalidInputError, ValueError), match=says):
        predictor(**options)(batch)
