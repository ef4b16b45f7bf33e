"""Which nodes are claimed where a model leaves sizes open."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from tests.ort.conftest import OpenSession, graph, reference, where

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
