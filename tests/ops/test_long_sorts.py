"""Operators that sort, on more elements than one pass ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ops.cases import model_of, on_vulkan

OUTPUTS = ("y", "first", "at", "counts")


@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_unique_of_many_elements(dtype: Any) -> None:
    """Comparing all with each other would take minutes."""
    x = np.random.default_rng(3).integers(-70_000, 70_000, 200_000).astype(dtype)
    got = on_vulkan(model_of("Unique", {"x": x}, outputs=OUTPUTS), {"x": x})
    for ours, theirs in zip(got, np.unique(x, True, True, True), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_unique_slices_of_a_long_axis() -> None:
    x = np.random.default_rng(4).integers(0, 12, (3000, 3)).astype(np.int32)
    got = on_vulkan(model_of("Unique", {"x": x}, outputs=OUTPUTS, axis=0), {"x": x})
    want: tuple[Any, ...] = np.unique(x, True, True, True, axis=0)
    for ours, theirs in zip(got, want, strict=True):
        np.testing.assert_array_equal(ours, theirs.reshape(ours.shape))  # numpy 2.0 gives the inverse another shape


@pytest.mark.parametrize("k", [1500, 3000])
def test_top_k_of_a_long_axis_in_the_middle(k: int) -> None:
    x = np.random.default_rng(5).integers(0, 500, (2, 3000, 2)).astype(np.float16)
    values: dict[str, Any] = {"x": x, "k": np.array([k], np.int64)}
    model = model_of("TopK", values, outputs=("v", "i"), constants=("k",), axis=1, largest=0)
    found, places = on_vulkan(model, {"x": x})
    order = np.argsort(x, axis=1, kind="stable")[:, :k]
    np.testing.assert_array_equal(places, order)
    np.testing.assert_array_equal(found, np.take_along_axis(x, order, 1))
