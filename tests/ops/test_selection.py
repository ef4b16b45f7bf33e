"""Paths whose length is data, against onnxruntime's CPU provider."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ops.cases import Array, check, model_of, on_vulkan
from vkep.errors import InvalidInputError

pytestmark = pytest.mark.usefixtures("vulkan")
RNG = np.random.default_rng(61)
MS: dict[str, Any] = {"domain": "com.microsoft", "against": "onnxruntime", "opset": 21}


@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (9, 1), (5, 12), (70, 33), (1, 40, 80)])
@pytest.mark.parametrize("ties", [False, True])
def test_dynamic_time_warping(shape: tuple[int, ...], ties: bool) -> None:
    x = RNG.integers(0, 3, shape) if ties else RNG.normal(0, 1, shape)
    check("DynamicTimeWarping", {"x": x.astype(np.float32)}, **MS)


def _tokens(*values: int) -> Array:
    return np.array(values, np.int64)


SOURCE = _tokens(1, 5, 3, 4, 2, 5, 4, 9, 3, 4)


@pytest.mark.parametrize(
    ("current", "start", "predicted"),
    [
        (_tokens(2), 0, None),
        (_tokens(2), 0, _tokens(1, 5, 3, 4, 6, 5, 4, 9, 3, 4, 2)),
        (_tokens(7, 8), 6, _tokens(4, 9, 3, 4, 2)),
        (_tokens(7, 8), 10, _tokens(3)),
        (_tokens(9, 3, 4), 9, _tokens(7, 1)),
    ],
)
@pytest.mark.parametrize("sizes", [(1, 3), (2, 2), (3, 9)])
def test_bifurcation(current: Array, start: int, predicted: Array | None, sizes: tuple[int, int]) -> None:
    inputs = {"source": SOURCE, "current": current, "start": _tokens(start)}
    inputs |= {} if predicted is None else {"predicted": predicted}
    attributes: dict[str, Any] = {"min_ngram_size": sizes[0], "max_ngram_size": sizes[1]}
    check("BifurcationDetector", inputs, outputs=("y", "place"), **attributes, **MS)


@pytest.mark.gpu
@pytest.mark.parametrize("start", [-1, 3, 11])
def test_a_start_that_leaves_other_predictions(start: int) -> None:
    inputs = {"source": SOURCE, "current": _tokens(1), "start": _tokens(start), "predicted": _tokens(1, 2)}
    model = model_of("BifurcationDetector", inputs, outputs=("y", "place"), domain="com.microsoft")
    with pytest.raises(InvalidInputError, match="another number of source tokens"):
        on_vulkan(model, inputs)


@pytest.mark.parametrize("x", [[2, 1, 1, 3, 4, 3], [5], [0.5, -0.0, 0, 7] * 9, []])
def test_unique(x: list[float]) -> None:
    check("Unique", {"x": np.array(x, np.float32)}, outputs=("y", "at", "counts"), **MS)
