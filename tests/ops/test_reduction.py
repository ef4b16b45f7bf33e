"""Reductions of flags and of doubles, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ops.cases import check
from tests.ops.microsoft import RNG, Inputs, against, normal

pytestmark = pytest.mark.usefixtures("vulkan")


def test_is_all_finite() -> None:
    for bad, only, fine in (
        (None, "", True),
        (np.inf, "", False),
        (np.nan, "isinf_only", True),
        (-np.inf, "isinf_only", False),
        (np.nan, "isnan_only", False),
        (np.inf, "isnan_only", True),
    ):
        x = normal(40, 30)
        if bad is not None:
            x[31, 17] = bad
        inputs: Inputs = {"x": x, "v": normal(3), "z": normal(dtype=np.float16)}
        rest: dict[str, Any] = {only: 1} if only else {}
        against(lambda fine=fine, **_: np.array(fine), "IsAllFinite", inputs, **rest)


@pytest.mark.parametrize("opset", [13, 18])
@pytest.mark.parametrize("op_type", ["ReduceLogSum", "ReduceLogSumExp"])
def test_logarithms_of_sums_of_doubles(op_type: str, opset: int) -> None:
    x = RNG.normal(0, 300, (3, 4, 5))
    x[1, :, 2] = -np.inf
    x[2, 1, 1] = np.inf
    x = np.abs(x) if op_type == "ReduceLogSum" else x
    axes = {"axes": [1]} if opset == 13 else {}
    inputs = {"x": x, "a": np.array([1])} if opset == 18 else {"x": x}
    check(op_type, inputs, against="onnxruntime", opset=opset, keepdims=0, rtol=1e-12, atol=1e-12, **axes)
