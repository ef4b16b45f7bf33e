"""Operators that the ONNX standard no longer has, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ops.cases import check
from tests.ops.microsoft import normal

pytestmark = pytest.mark.usefixtures("vulkan")


OLD: dict[str, Any] = {"against": "onnxruntime", "opset": 9}


@pytest.mark.parametrize(
    ("op_type", "attributes"),
    [
        ("Affine", {"alpha": 2.0, "beta": 0.5}),
        ("Affine", {}),
        ("Scale", {"scale": 3.0}),
        ("ImageScaler", {"scale": 2.0, "bias": [0.5, -1.0, 4.0]}),
        ("ParametricSoftplus", {"alpha": 2.0, "beta": 1.5}),
        ("ScaledTanh", {"alpha": 2.0, "beta": 0.7}),
        ("Crop", {"border": [1, 2, 1, 0]}),
        ("Crop", {"border": [1, 2, 1, 0], "scale": [2, 3]}),
    ],
)
def test_operators_of_the_first_years(op_type: str, attributes: dict[str, Any]) -> None:
    check(op_type, {"x": normal(2, 3, 5, 6)}, **OLD, **attributes)


@pytest.mark.parametrize("axes", [None, [2, 0]])
def test_dynamic_slice(axes: list[int] | None) -> None:
    inputs = {"x": normal(3, 4, 5), "s": np.array([1, -2], np.int64), "e": np.array([3, 1000], np.int64)}
    inputs["axes"] = None if axes is None else np.array(axes, np.int64)  # type: ignore[assignment]
    check("DynamicSlice", inputs, constants=[n for n, v in inputs.items() if n != "x" and v is not None], **OLD)
