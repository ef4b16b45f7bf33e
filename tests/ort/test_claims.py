"""Which nodes are claimed where a model leaves sizes open."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.ort.conftest import OpenSession, graph, reference, where
from vkep.graph.model import Node
from vkep.graph.weights import ArrayWeight
from vkep.ir import infer
from vkep.placement import fold

EP = "VulkanExecutionProvider"


def test_windows_larger_than_a_sample_are_claimed(session: OpenSession) -> None:
    """wav2vec's first convolutions: windows of 10 and 8 with strides, over audio of any length."""
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["a"], "first", strides=[5]),
        helper.make_node("Relu", ["a"], ["b"], "relu"),
        helper.make_node("Conv", ["b", "w1"], ["y"], "second", strides=[2]),
    ]
    weights = [
        numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name)
        for name, shape in (("w0", (8, 1, 10)), ("w1", (8, 8, 8)))
    ]
    made = helper.make_graph(
        nodes,
        "audio",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 1, "samples"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 8, "frames"])],
        weights,
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)], ir_version=9).SerializeToString()
    opened = session(model)
    for samples in (400, 333):
        feeds = {"x": rng.standard_normal((1, 1, samples)).astype(np.float32)}
        np.testing.assert_allclose(opened.run(None, feeds)[0], reference(model, feeds)[0], rtol=1e-3, atol=1e-3)
    assert set(where(opened)) == {EP}


def test_a_size_that_is_a_symbol_joins_the_constant_that_it_meets(session: OpenSession) -> None:
    """A cache whose head size the model calls by a name, beside rows of a known size."""
    model = graph(
        "g (float[1,2,past,head] cache, float[1,2,1,32] new) => (float[1,2,total,32] y) { y = Concat<axis=2>(cache, new) }"
    )
    opened = session(model)
    feeds = {"cache": np.ones((1, 2, 5, 32), np.float32), "new": np.zeros((1, 2, 1, 32), np.float32)}
    np.testing.assert_array_equal(opened.run(None, feeds)[0], reference(model, feeds)[0])
    assert set(where(opened)) == {EP}


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="SIGUSR1")
@pytest.mark.parametrize("step", ["sizes", "inference", "folding"])
def test_an_error_of_a_signals_handler_is_no_reason_to_decline(monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """ONNX Runtime asks for claims in the main thread, and these steps may fail with any exception."""
    from vkep.ort import claims

    def handle(*_: object) -> None:
        raise TimeoutError("of the handler")

    def interrupted(*_: object, **__: object) -> None:
        signal.raise_signal(signal.SIGUSR1)

    monkeypatch.setattr(claims, "known_values", lambda *_: {})
    monkeypatch.setattr(claims, "lower", interrupted)
    monkeypatch.setattr(onnx.shape_inference, "infer_node_outputs", interrupted)
    monkeypatch.setattr(fold, "_quick", lambda *_: None)
    monkeypatch.setattr(fold, "_Evaluator", interrupted)
    schema = onnx.defs.get_schema("Relu", 18, "")
    node = Node(0, "n", "Relu", "", ("x",), ("y",), {}, helper.make_node("Relu", ["x"], ["y"]), schema)
    view: Any = SimpleNamespace(graph=SimpleNamespace(nodes=[node]), outputs=(), opsets={"": 18})
    x: Any = np.ones(3, np.float32)
    steps: dict[str, Callable[[], object]] = {
        "sizes": lambda: claims._judge_by_conditions(view, view, None, claims._Verdicts()),
        "inference": lambda: infer.infer(node, {"x": ArrayWeight("x", x)}, {"": 18}),
        "folding": lambda: fold.fold(node, [x], {"": 18}),
    }
    before = signal.signal(signal.SIGUSR1, handle)
    try:
        with pytest.raises(TimeoutError, match="of the handler"):
            steps[step]()
    finally:
        signal.signal(signal.SIGUSR1, before)
