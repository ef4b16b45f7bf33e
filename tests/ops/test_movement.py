"""Moves of com.microsoft: triangles, ranges, padding, views; against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ops.cases import check
from tests.ops.microsoft import MS, normal
from vkep.errors import InvalidModelError

pytestmark = pytest.mark.usefixtures("vulkan")


@pytest.mark.parametrize("k", [None, 0, 2, -1])
@pytest.mark.parametrize("upper", [0, 1])
def test_trilu(k: int | None, upper: int) -> None:
    inputs = {"x": normal(2, 3, 4), "k": None if k is None else np.array(k, np.int64)}
    check("Trilu", inputs, upper=upper, **MS)


@pytest.mark.parametrize("delta", [None, 2, -3])
@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.float32])
def test_range(delta: int | None, dtype: Any) -> None:
    first, last = (1, 9) if (delta or 1) > 0 else (9, 0)
    inputs = {
        "a": np.array(first, dtype),
        "b": np.array(last, dtype),
        "d": None if delta is None else np.array(delta, dtype),
    }
    check("Range", inputs, constants=[n for n, v in inputs.items() if v is not None], **MS)


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge"])
def test_pad(mode: str) -> None:
    for pads in ([1, 0, 2, 1], [[0, 2, -1, 0]]):
        inputs = {"x": normal(4, 5), "pads": np.array(pads, np.int64), "v": np.array([1.5], np.float32)}
        check("Pad", inputs, constants=["pads", "v"], mode=mode, **MS)


def test_gather_nd() -> None:
    check("GatherND", {"x": normal(2, 3, 4), "i": np.array([[0, 2], [-1, 1]], np.int64)}, **MS)
    check("GatherND", {"x": normal(2, 3), "i": np.zeros((4, 0), np.int64)}, **MS)


@pytest.mark.parametrize("axis", [0, 2, -1, -3])
def test_expand_dims(axis: int) -> None:
    check("ExpandDims", {"x": normal(2, 3), "axis": np.array(axis, np.int32)}, constants=["axis"], **MS)
    with pytest.raises(InvalidModelError, match="axis is 4, expected -3 to 2"):
        check("ExpandDims", {"x": normal(2, 3), "axis": np.array(4, np.int32)}, constants=["axis"], **MS)


@pytest.mark.parametrize(("dim", "size", "step"), [(-1, 3, 1), (1, 2, 2), (0, 2, 1)])
def test_unfold_tensor(dim: int, size: int, step: int) -> None:
    check("UnfoldTensor", {"x": normal(2, 5, 7)}, dim=dim, size=size, step=step, **MS)
