"""Rows of several bodies as the inputs of one run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vkep.serving.bodies import BinaryFeeds, Layout, joined, shapes_of


def feeds(rows: int, head: int, value: int, cut: int = 0) -> BinaryFeeds:
    """Inputs x of float16 [rows, 3] and k of int64 [rows], in a body of two pieces."""
    x = np.arange(3 * rows, dtype=np.float16).reshape(rows, 3) + value
    k = np.full(rows, value)
    fill = bytes(-x.nbytes % 8)
    body = b"{" * head + x.tobytes() + fill + k.tobytes()
    at = head + x.nbytes + len(fill)
    tensors = (("x", x.dtype, x.shape, head), ("k", k.dtype, k.shape, at))
    return BinaryFeeds(Layout(len(body), head, tensors), [body[:cut], body[cut:]])


@given(st.integers(1, 70), st.integers(1, 3), st.lists(st.integers(0, 60), min_size=1, max_size=5))
def test_rows_of_bodies_follow_one_another(head: int, rows: int, cuts: list[int]) -> None:
    items = [feeds(rows, head, at, cut) for at, cut in enumerate(cuts)]
    found = joined(items)
    for name, array in found.items():
        np.testing.assert_array_equal(array, np.concatenate([one[name] for one in items]))
        assert array.flags.aligned and array.ctypes.data % array.itemsize == 0
    assert dict(shapes_of(items[0])) == {"x": (rows, 3), "k": (rows,)}


@pytest.mark.parametrize("other", [feeds(2, 5, 9), feeds(1, 6, 9), dict(feeds(1, 5, 9))])
def test_bodies_of_another_layout_are_joined_too(other: Any) -> None:
    found = joined([feeds(1, 5, 1), other])
    assert found["x"].tolist() == [[1, 2, 3], *other["x"].tolist()]
    assert found["k"].tolist() == [1, *other["k"].tolist()]


def test_one_row_of_each_body_is_copied_once() -> None:
    found = joined([feeds(1, 5, at) for at in range(4)])
    assert not found["x"].flags.owndata and not found["k"].flags.owndata
    assert found["x"].strides[0] == found["k"].strides[0] > found["x"][0].nbytes  # as in the bodies
