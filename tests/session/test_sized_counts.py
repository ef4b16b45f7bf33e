"""Counts that a run computes or is given, as of NonZero, Unique and TopK: few plans serve all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.session.models import model
from tools.ort_cpu import cpu_session
from vkep import InferenceSession
from vkep.session.planned_graph import DeferredExecutor, PlannedGraph

Open = Callable[..., InferenceSession]
Draw = np.random.Generator
FLOAT = np.float32


def image(draw: Draw, least: int = 3) -> np.ndarray[Any, Any]:
    return draw.normal(0, 1, (int(draw.integers(least, 20)), int(draw.integers(least, 20)))).astype(FLOAT)


CASES: dict[str, tuple[str, Callable[[Draw], dict[str, Any]]]] = {
    "elements that are not zero": (
        "(float[n,m] x) => (float[k] y) { i = NonZero(x) t = Transpose(i) g = GatherND(x, t) y = Mul(g, g) }",
        lambda draw: {"x": np.where((x := image(draw)) > draw.normal(), x, FLOAT(0))},
    ),
    "distinct values": (
        "(float[n] x) => (float[k] y, int64[k] i) { v, i = Unique(x) y = Mul(v, v) }",
        lambda draw: {"x": draw.integers(0, draw.integers(3, 50), 60).astype(FLOAT)},
    ),
    "the largest of as many as are asked for": (
        "(float[n] x, int64[1] k) => (float[m] y, int64[m] i) { y, i = TopK(x, k) }",
        lambda draw: {"x": draw.random(100, FLOAT), "k": draw.integers(2, 90, 1)},
    ),
    "the largest 30, or fewer": (
        """(float[n] x) => (float[m] y, int64[m] i) {
            s = Shape(x) most = Constant <value_ints: ints = [30]> () k = Min(s, most) y, i = TopK(x, k)
        }""",
        lambda draw: {"x": draw.random(int(draw.integers(10, 90)), FLOAT)},
    ),
    "the largest of lists from short to long": (
        "(float[n] x, int64[1] k) => (float[m] y, int64[m] i) { y, i = TopK(x, k) }",
        lambda draw: {
            "x": (x := draw.integers(0, 99, int(2 ** draw.uniform(4, 13.5))).astype(FLOAT)),
            "k": draw.integers(2, len(x), 1),
        },
    ),
    "distinct values of lists from short to long": (
        "(float[n] x) => (float[k] y, int64[k] i) { y, i = Unique(x) }",
        lambda draw: {"x": draw.integers(0, 2000, int(2 ** draw.uniform(4, 13.5))).astype(FLOAT)},
    ),
    "elements at constant places": (
        """(float[n,m] x) => (float[n,3] y, float[2] z) {
            i = Constant <value_ints: ints = [0, -1, 2]> () y = Gather <axis: int = 1> (x, i)
            j = Constant <value = int64[2,2] {1, 2, -1, 0}> () z = GatherND(x, j)
        }""",
        lambda draw: {"x": image(draw)},
    ),
    "a diagonal that moves": (
        "(float[n,m] x, int64 k) => (float[n,m] y) { y = Trilu <upper: int = 0> (x, k) }",
        lambda draw: {"x": image(draw), "k": np.array(draw.integers(2, 20))},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_few_plans_serve_every_count(open_session: Open, case: str) -> None:
    text, draw_feeds = CASES[case]
    data = model(f"g {text}", opset=18).SerializeToString()
    session = open_session(data, fallback="error")
    peer = cpu_session(data)
    draw = np.random.default_rng(2)
    plans = []
    for _ in range(16):
        feeds = draw_feeds(draw)
        for got, expected in zip(session.run(None, feeds), peer.run(None, feeds), strict=True):
            assert got.dtype == expected.dtype
            np.testing.assert_array_equal(got, expected, strict=True)
        plans.append(count(session._parts.graph))
    assert plans[-1] <= 7


def count(graph: PlannedGraph) -> int:
    """The plans of a graph, and of the parts that are planned when a count is known."""
    steps = graph.latest.steps if graph.latest is not None else ()
    return graph.plan_count + sum(count(step.graph) for step in steps if isinstance(step, DeferredExecutor))
