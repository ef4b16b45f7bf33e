"""Outputs in host memory: kernels' results go into ONNX Runtime's own buffers, with no array in between."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

from tests.ort.conftest import OpenSession, graph

X = np.arange(12, dtype=np.float32).reshape(3, 4)


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of each output that was made elsewhere and copied."""
    from vkep.ort.nodes.fused import FusedNode

    seen: list[int] = []
    original = FusedNode.write

    def spy(self: Any, tensor: Any, array: Any) -> None:
        seen.append(array.nbytes)
        original(self, tensor, array)

    monkeypatch.setattr(FusedNode, "write", spy)
    return seen


@pytest.mark.parametrize("rows", ["3", "n"])
def test_an_island_writes_where_onnxruntime_wants_it(session: OpenSession, written: list[int], rows: str) -> None:
    text = f"g (float[{rows},4] x) => (float[{rows},4] y, bool[{rows},4] z) {{ y = Add(x, x) z = Less(x, y) }}"
    made = session(graph(text), io="host")
    for scale in (1, -2):
        y, z = made.run(None, {"x": scale * X})
        np.testing.assert_array_equal(y, 2 * scale * X)
        np.testing.assert_array_equal(z, scale * X < y)
    assert written == []


def test_outputs_that_no_island_makes_are_copied(session: OpenSession, written: list[int]) -> None:
    made = session(graph("g (float[3,4] x) => (float[3,4] y, int64[2] s) { y = Add(x, x) s = Shape(x) }"), io="host")
    y, s = made.run(None, {"x": X})
    np.testing.assert_array_equal(y, 2 * X)
    np.testing.assert_array_equal(s, [3, 4])


def test_an_output_that_a_later_part_reads(session: OpenSession) -> None:
    """NonZero's count is read between two islands; the first island's output is a result too."""
    text = "g (float[3,4] x) => (float[3,4] y, int64[2,k] i) { y = Sub(x, x) z = Greater(x, y) i = NonZero(z) }"
    made = session(graph(text), io="host")
    y, i = made.run(None, {"x": X})
    np.testing.assert_array_equal(y, np.zeros_like(X))
    np.testing.assert_array_equal(i, np.array(np.nonzero(X > 0)))


def test_results_of_two_runs_are_two_arrays(session: OpenSession) -> None:
    made = session(graph("g (float[3,4] x) => (float[3,4] y) { y = Add(x, x) }"), io="host")
    first = made.run(None, {"x": X})[0]
    kept = first.copy()
    made.run(None, {"x": -X})
    np.testing.assert_array_equal(first, kept)


def test_a_zero_sized_output(session: OpenSession) -> None:
    made = session(graph("g (float[n,4] x) => (float[n,4] y) { y = Add(x, x) }"), io="host")
    assert made.run(None, {"x": np.zeros((0, 4), np.float32)})[0].shape == (0, 4)


def test_properties_of_plans_go_with_them(session: OpenSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """A window of a computed length has a plan for each, of which two are kept."""
    from vkep.ort.nodes.fused import FusedNode

    nodes: set[FusedNode] = set()
    original = FusedNode.details

    def spy(self: FusedNode, executable: Any) -> Any:
        nodes.add(self)
        return original(self, executable)

    monkeypatch.setattr(FusedNode, "details", spy)
    text = """g (float[n] x) => (float[n] y) {
        zero = Constant <value_ints: ints = [0]> () s = Shape(x) n = Squeeze(s, zero) w = HannWindow(n) y = Mul(x, w) }"""
    made = session(graph(text), all_on_vulkan=False, plan_cache_size=2)
    for count in range(20, 140, 10):
        x = np.ones(count, np.float32)
        expected = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(count) / count)
        np.testing.assert_allclose(made.run(None, {"x": x})[0], expected, atol=1e-6)
    gc.collect()
    [node] = nodes
    assert 0 < len(node._plans) <= 3
