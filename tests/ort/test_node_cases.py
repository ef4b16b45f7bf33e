"""ONNX's own node tests through an ONNX Runtime session with the provider: no wrong answer.

Every 25th case here; ``VKEP_ORT_NODE_CASES=1`` runs all of them (some minutes). What ONNX Runtime's CPU provider cannot load or
run at all is left out: nodes that Vulkan declines would have nobody to run them.
"""

from __future__ import annotations

import os
import warnings
from typing import Any

import numpy as np
import onnxruntime
import pytest

STRIDE = int(os.environ.get("VKEP_ORT_NODE_CASES", "25"))


def _cases() -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        found = sorted(collect_testcases(None), key=lambda case: str(case.name))
    return [c for c in found if all(isinstance(v, np.ndarray) for v in (*c.data_sets[0][0], *c.data_sets[0][1]))]


@pytest.mark.parametrize("case", [pytest.param(c, id=c.name) for c in _cases()[::STRIDE]])
def test_node_case(registered: Any, case: Any) -> None:
    model = case.model.SerializeToString()
    given, expected = case.data_sets[0]
    feeds = {v.name: a for v, a in zip(case.model.graph.input, given, strict=False)}
    quiet = onnxruntime.SessionOptions()
    quiet.log_severity_level = 4
    try:
        onnxruntime.InferenceSession(model, quiet, providers=["CPUExecutionProvider"]).run(None, feeds)
    except Exception as error:
        pytest.skip(f"ONNX Runtime's CPU provider: {str(error)[:120]}")
    made = onnxruntime.InferenceSession(model, quiet, providers=[registered.EP_NAME], enable_fallback=0)
    made.disable_fallback()
    for got, wanted in zip(made.run(None, feeds), expected, strict=True):
        assert got.dtype == wanted.dtype
        assert got.shape == wanted.shape
        if wanted.dtype.kind == "f":
            loose = wanted.dtype.itemsize < 4
            np.testing.assert_allclose(got, wanted, rtol=2e-2 if loose else 1e-3, atol=1e-2 if loose else 1e-4)
        elif np.issubdtype(wanted.dtype, np.integer) and "Quant" in str({n.op_type for n in case.model.graph.node}):
            assert np.abs(got.astype(np.int64) - wanted.astype(np.int64)).max(initial=0) <= 1
        else:
            np.testing.assert_array_equal(got, wanted)
