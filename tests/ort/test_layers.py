"""Nodes that a session's options assign to other providers (`session.layer_assignment_settings`)."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from tests.ort.conftest import OpenSession, graph, where
from vkep.ort.options import assigns_elsewhere

CPU, EP = "CPUExecutionProvider", "VulkanExecutionProvider"
SETTINGS = {"session.layer_assignment_settings": "cpu(a)"}
pytestmark = pytest.mark.skipif(
    tuple(int(part) for part in onnxruntime.__version__.split(".")[:2]) < (1, 31), reason="needs onnxruntime 1.31"
)


def _annotated(model: bytes, places: set[int]) -> bytes:
    proto = onnx.load_from_string(model)
    for place in places:
        proto.graph.node[place].metadata_props.add(key="layer_ann", value="a")
    return bytes(proto.SerializeToString())


@pytest.mark.parametrize("place", range(4))
def test_each_node_of_a_chain(session: OpenSession, place: int) -> None:
    model = graph("g (float[2,3] x) => (float[2,3] y) { t = Relu(x) u = Add(t, x) v = Mul(u, x) y = Neg(v) }")
    opened = session(_annotated(model, {place}), entries=SETTINGS, all_on_vulkan=False)
    x = np.array([[1, -2, 3], [4, 5, -6]], np.float32)
    np.testing.assert_array_equal(opened.run(None, {"x": x})[0], -(np.maximum(x, 0) + x) * x)
    found = where(opened)
    assert sum(found[CPU].values()) == 1 and sum(found[EP].values()) == 3


def test_which_settings_hide_nodes() -> None:
    assert not any(map(assigns_elsewhere, ("", "gpu(a)", "gpu(a,b)", " GPU:1(=a);gpu(b)")))
    assert all(map(assigns_elsewhere, ("cpu(a)", "gpu(a);cpu(b)", "npu(a)", "gpu(a); cpu(=b)")))


@pytest.mark.parametrize("settings", ["gpu(a)", "gpu(b)"])
def test_nodes_for_the_gpu_are_fused(session: OpenSession, settings: str) -> None:
    model = graph("g (float[2,3] x) => (float[2,3] y) { t = Relu(x) u = Add(t, x) y = Neg(u) }")
    opened = session(_annotated(model, {1}), entries={"session.layer_assignment_settings": settings})
    (part,) = opened.get_provider_graph_assignment_info()
    assert len(part.get_nodes()) == 3


def test_nodes_without_a_kernel_go_elsewhere(session: OpenSession, caplog: pytest.LogCaptureFixture) -> None:
    text = "y = If(c) <then_branch = a () => (float[2] p) { p = Relu(x) }, else_branch = b () => (float[2] q) { q = Neg(x) }>"
    model = graph(f"g (float[2] x, bool c) => (float[2] z) {{ {text} z = Exp(y) }}")
    with caplog.at_level("WARNING", "vkep.ort"):
        opened = session(_annotated(model, {1}), entries=SETTINGS, all_on_vulkan=False)
    assert "session.layer_assignment_settings assigns nodes to other devices" in caplog.text
    x = np.array([1, -2], np.float32)
    np.testing.assert_allclose(opened.run(None, {"x": x, "c": np.array(True)})[0], np.exp(np.maximum(x, 0)), rtol=1e-6)


@pytest.mark.parametrize("seed", range(12))
def test_drawn_graphs(session: OpenSession, seed: int) -> None:
    """Paths that leave the shown nodes and return, several of them, over more than one output."""
    rng = np.random.default_rng(seed)
    values, nodes = ["x", "z"], []
    for k in range(14):
        a, b = rng.choice(values[-6:], 2)
        nodes.append(helper.make_node(str(rng.choice(["Add", "Sub", "Max", "Min"])), [a, b], [f"v{k}"], f"n{k}"))
        values.append(f"v{k}")
    made = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 3]) for n in ("x", "z", *values[-3:])]
    body = helper.make_graph(nodes, "drawn", made[:2], made[2:])
    model = helper.make_model(body, opset_imports=[helper.make_opsetid("", 18)], ir_version=9).SerializeToString()
    places = {int(k) for k in rng.choice(14, int(rng.integers(1, 6)), replace=False)}
    feeds = {n: rng.integers(-9, 9, (2, 3)).astype(np.float32) for n in ("x", "z")}
    expected = onnxruntime.InferenceSession(model, providers=[CPU]).run(None, feeds)
    opened = session(_annotated(model, places), entries=SETTINGS, all_on_vulkan=False)
    for got, wanted in zip(opened.run(None, feeds), expected, strict=True):
        np.testing.assert_array_equal(got, wanted)
