"""Types that TOSA has not, between regions: the same bytes are int64, unsigned or bfloat16 on the other side."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.mixed.harness import places
from tests.tosa.harness import expected, feeds_of, model

MODELS = {
    # the place of the maximum is int64 in the graph's result and in the shader that reads it
    "int64 out": "g (float[4,6] x) => (int64[4] y) { i = ArgMax<axis=1,keepdims=0>(x) j = Add(i, i) y = Mul(j, i) }",
    "int64 in": "g (float[9,3] x, int64[4] i) => (float[4,3] y) { j = Add(i, i) k = Abs(j) e = Gather(x, k) y = Exp(e) }",
    "uint8": """g (uint8[6,6] x, uint8[6,6] z) => (uint8[6,6] y, uint8[6,6] w) {
      a = BitwiseXor(x, z) b = Add(a, z) y = BitwiseAnd(b, x) w = Transpose(a) }""",
}


@pytest.mark.parametrize("prefer", ["vgf_first", "vulkan_first"])
@pytest.mark.parametrize("name", MODELS)
def test_both_sides_see_the_same_bytes(opened: Any, name: str, prefer: str) -> None:
    proto = model(MODELS[name])
    feeds = feeds_of(proto)
    if name == "int64 in":
        feeds["i"] = np.array([0, -4, 3, -1])
    if name == "uint8":  # the sum of a and z must not pass 255, whose wrapping onnxruntime has alike
        feeds = {n: (a // 4).astype(np.uint8) for n, a in feeds.items()}
    session = opened(proto, prefer=prefer, check_data=False)  # data graphs do not check indices
    for _ in range(2):
        got = session.run(None, feeds)
        for a, b in zip(got, expected(proto, feeds), strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_allclose(a, b, rtol=1e-5)
    if prefer == "vgf_first":
        assert {"vgf", "vulkan"} <= set(places(session))
