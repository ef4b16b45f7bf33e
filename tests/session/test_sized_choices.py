"""Choices of kernels, pads and blocks at sizes that differ: three plans at most serve all of them, and give the same results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

from tests.calls import noted
from tests.session.models import model
from tools.ort_cpu import cpu_session
from vkep import InferenceSession
from vkep.ops.attention import sdpa
from vkep.session.planning.planner import Planner

Open = Callable[..., InferenceSession]
Sizes = tuple[int, int]

_PADDED = """(float[1,4,h,w] x) => (float[1,4,a,b] y) {{
    s = Shape <start: int = 2> (x) two = Constant <value_ints: ints = [2]> () half = Div(s, two) even = Mul(half, two)
    more = Sub(s, even) zeros = Constant <value_ints: ints = [0, 0, 0, 0]> () z = Constant <value_ints: ints = [0, 0]> ()
    pads = Concat <axis: int = 0> (zeros, z, more) p = Pad <mode = "{mode}"> (x, pads) q = Relu(p) y = Mul(q, q)
}}"""
#: a model and the least sizes of its two dimensions
CASES: dict[str, tuple[str, Sizes]] = {
    "small images, whose tiles overhang": (
        """(float[1,16,h,w] x, float[16,16,3,3] k) => (float[1,16,a,b] y) {
            z = Conv <pads: ints = [1,1,1,1]> (x, k) p = MaxPool <kernel_shape: ints = [2,2], strides: ints = [2,2]> (z)
            y = Conv <pads: ints = [1,1,1,1]> (p, k)
        }""",
        (5, 5),
    ),
    "a depthwise convolution of few rows": (
        "(float[1,8,h,w] x, float[8,1,3,3] k) => (float[1,8,a,b] y) { y = Conv <group: int = 8> (x, k) }",
        (4, 4),
    ),
    "pads that are zero at some sizes": (_PADDED.format(mode="constant"), (4, 4)),
    "reflected pads that are zero at some sizes": (_PADDED.format(mode="reflect"), (4, 4)),
    "axes that some sizes leave as they are": (
        """(float[1,2,h,w] x) => (float[1,2,a,b] y, float[1,2,c,d] z) {
            s = Shape <start: int = 2> (x) four = Constant <value_ints: ints = [4]> () part = Div(s, four) even = Mul(part, four)
            front = Shape <end: int = 2> (x) to = Concat <axis: int = 0> (front, even)
            y = Resize <mode = "cubic"> (x, , , to) z = Resize <mode = "nearest"> (x, , , to)
        }""",
        (4, 4),
    ),
    "attention in blocks of queries": (
        """(float[2,h,16] q, float[2,w,16] k) => (float[2,h,16] y) {
            t = Transpose <perm: ints = [0,2,1]> (k) s = MatMul(q, t) p = Softmax <axis: int = -1> (s) y = MatMul(p, k)
        }""",
        (70, 70),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_few_plans_serve_every_size(open_session: Open, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text, least = CASES[case]
    proto, draw = model(f"g {text}", opset=18), np.random.default_rng(5)
    for value in [v for v in proto.graph.input if all(d.dim_value for d in v.type.tensor_type.shape.dim)]:
        array = draw.normal(0, 0.1, [d.dim_value for d in value.type.tensor_type.shape.dim]).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, value.name))
        proto.graph.input.remove(value)
    session, peer = open_session(proto, fallback="error"), cpu_session(proto)
    monkeypatch.setattr(sdpa, "SCORES_BYTES_CPU", 1 << 16)
    plans = noted(monkeypatch, Planner, "plan", lambda *_, **__: 1)
    for _ in range(10):
        dims: dict[Any, Any] = {name: int(draw.integers(n, 5 * n)) for name, n in zip("hw", least, strict=True)}
        shapes: dict[str, Any] = {i.name: [dims.get(d, d) for d in i.shape or ()] for i in session.get_inputs()}
        feeds = {name: draw.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
        for got, expected in zip(session.run(None, feeds), peer.run(None, feeds), strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4, strict=True)
    assert len(plans) <= 3


def test_segments_for_few_long_columns_serve_many_short_ones(open_session: Open) -> None:
    """And the other way round: their number follows the sizes, with no condition on them."""
    text = """g (float[n,m,k] x) => (float[n,m,k] y, int64[3,c] at) {
        d = Constant <value = int32 {1}> () y = CumSum <reverse: int = 1> (x, d) at = NonZero (x) }"""
    session, draw = open_session(model(text, opset=18), fallback="error"), np.random.default_rng(6)
    for shape in (
        (2, 60_000, 3),
        (3, 50_000, 2),
        (20_000, 2, 5),
        (4000, 17, 1),
        (2, 2, 2),
        (300, 700, 1),
        (1, 90_001, 1),
    ):
        x = draw.integers(-1, 2, shape).astype(np.float32)
        y, at = session.run(None, {"x": x})
        np.testing.assert_array_equal(y, np.cumsum(x[:, ::-1], 1)[:, ::-1])
        np.testing.assert_array_equal(at, np.stack(np.nonzero(x)))
