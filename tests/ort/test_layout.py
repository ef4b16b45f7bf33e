"""Preferred layout: with ``prefer_nhwc`` ONNX Runtime hands over channels-last nodes, all of which Vulkan runs."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

from tests.ort.conftest import OpenSession, graph, reference
from vkep.placement.channels_last import CHANNELS_LAST, NHWC

RNG = np.random.default_rng(3)
X = RNG.standard_normal((2, 4, 6, 8)).astype(np.float32)


def numbers(count: int) -> str:
    return ",".join(f"{v:.4f}" for v in np.random.default_rng(count).uniform(0.1, 1, count))


W = f"float[6,4,3,3] w = {{{numbers(216)}}}"
PARTS = f"float[4] s = {{{numbers(4)}}}, float[4] t = {{{numbers(4)}}}"
#: operator -> (constants, node)
NODES = {
    "AveragePool": ("", "AveragePool<kernel_shape=[3,2], pads=[1,0,1,1], count_include_pad=1>(x)"),
    "BatchNormalization": (PARTS, "BatchNormalization<epsilon=0.01>(x, s, t, t, s)"),
    "Conv": (W, "Conv<pads=[1,0,1,0], strides=[2,1]>(x, w)"),
    "ConvTranspose": (f"float[4,5,3,3] w = {{{numbers(180)}}}", "ConvTranspose<strides=[2,2]>(x, w)"),
    "DepthToSpace": ("", 'DepthToSpace<blocksize=2, mode="CRD">(x)'),
    "GlobalAveragePool": ("", "GlobalAveragePool(x)"),
    "GlobalMaxPool": ("", "GlobalMaxPool(x)"),
    "InstanceNormalization": (PARTS, "InstanceNormalization(x, s, t)"),
    "LRN": ("", "LRN<size=3>(x)"),
    "MaxPool": ("", "MaxPool<kernel_shape=[2,2], strides=[2,2]>(x)"),
    "SpaceToDepth": ("", "SpaceToDepth<blocksize=2>(x)"),
}


@pytest.fixture
def converted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The channels-last nodes that ONNX Runtime hands over."""
    from vkep.graph.load import read_graph
    from vkep.ort.graphs import convert as module

    seen: list[str] = []

    def read(proto: Any, *arguments: Any, **more: Any) -> Any:
        seen.extend(node.op_type for node in proto.node if node.domain == NHWC)
        return read_graph(proto, *arguments, **more)

    monkeypatch.setattr(module, "read_graph", read)
    return seen


def test_every_operator_of_the_list_is_tried() -> None:
    assert set(NODES) == CHANNELS_LAST


@pytest.mark.parametrize("op_type", sorted(NODES))
def test_an_operator_in_channels_last(session: OpenSession, converted: list[str], op_type: str) -> None:
    constants, node = NODES[op_type]
    model = graph(f"g (float[2,4,6,8] x) => (float[a,b,c,d] y) <{constants}> {{ y = {node} }}", opset=17)
    made = session(model, prefer_nhwc=1)
    assert set(converted) == {op_type}
    np.testing.assert_allclose(made.run(None, {"x": X})[0], reference(model, {"x": X})[0], rtol=1e-4, atol=1e-5)


def test_channels_first_is_what_is_there_without_the_option(session: OpenSession, converted: list[str]) -> None:
    session(graph(f"g (float[2,4,6,8] x) => (float[a,b,c,d] y) <{W}> {{ y = Conv(x, w) }}", opset=17))
    assert converted == []


NET = f"""g (float[BATCH,4,6,8] x) => (float[a,b,c,d] y) <{W}, float[6] bias = {{{numbers(6)}}},
  float[4] scales = {{1, 1, 2, 2}}> {{
  a = Conv<pads=[1,1,1,1]>(x, w, bias) b = Relu(a) c = MaxPool<kernel_shape=[2,2], strides=[2,2]>(b)
  d = Resize<mode="nearest">(c, , scales) e = Sigmoid(d) f = Add(e, b) y = AveragePool<kernel_shape=[3,3]>(f) }}"""


@pytest.mark.parametrize("rows", ["2", "n"])
def test_a_chain_with_what_has_no_layout(session: OpenSession, converted: list[str], rows: str) -> None:
    model = graph(NET.replace("BATCH", rows), opset=17)
    made = session(model, prefer_nhwc=1)
    assert {"Conv", "MaxPool", "AveragePool"} == set(converted)
    for batch in (2,) if rows == "2" else (1, 3):
        x = np.resize(X, (batch, 4, 6, 8))
        np.testing.assert_allclose(made.run(None, {"x": x})[0], reference(model, {"x": x})[0], rtol=1e-4, atol=1e-5)


def test_the_plan_made_for_the_claim_is_the_one_that_runs(
    session: OpenSession, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vkep.session.planning.planner import Planner

    def again(*_arguments: Any) -> None:
        raise AssertionError("planned again")

    monkeypatch.setattr(Planner, "plan", again)
    with caplog.at_level(logging.WARNING, logger="vkep.ort"):
        session(graph(NET.replace("BATCH", "2"), opset=17), prefer_nhwc=1)
    assert caplog.text == ""


def test_indices_of_a_max_pool(session: OpenSession) -> None:
    text = "g (float[2,4,6,8] x) => (float[a,b,c,d] y, int64[a,b,c,d] i) { y, i = MaxPool<kernel_shape=[2,2]>(x) }"
    model = graph(text, opset=17)
    made = session(model, prefer_nhwc=1)
    for got, want in zip(made.run(None, {"x": X}), reference(model, {"x": X}), strict=True):
        np.testing.assert_array_equal(got, want)


def test_three_and_five_dimensions(session: OpenSession, converted: list[str]) -> None:
    for dims, kernel in (("2,3,9", "2"), ("1,2,4,5,6", "2,2,2")):
        shape = [int(d) for d in dims.split(",")]
        model = graph(
            f"g (float[{dims}] x) => (float[{','.join('abcde'[: len(shape)])}] y) {{ y = MaxPool<kernel_shape=[{kernel}]>(x) }}",
            opset=17,
        )
        made = session(model, prefer_nhwc=1)
        x = RNG.standard_normal(shape).astype(np.float32)
        np.testing.assert_array_equal(made.run(None, {"x": x})[0], reference(model, {"x": x})[0])
    assert set(converted) == {"MaxPool"}
