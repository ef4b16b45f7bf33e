"""Initializers that session options replace, that a run replaces, and outputs that an operator of another provider reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.ort.conftest import OpenSession, graph, reference, where

CPU = "CPUExecutionProvider"
TEXT = "g (float[2,3] x) => (float[2,3] y) <float[3] w = {1,2,3}, float[3] v = {5,5,5}> { a = Mul(x, w) y = Add(a, v) }"
GIVEN = np.array([10, 20, 30], np.float32)
X = np.ones((2, 3), np.float32)


def options_with(value: Any, **entries: str) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.add_initializer("w", value)
    for key, text in entries.items():
        options.add_session_config_entry(key.replace("__", "."), text)
    return options


@pytest.mark.parametrize("kernels", ["compile", "registry"])
def test_an_initializer_that_the_options_replace_is_used(registered: Any, kernels: str, tmp_path: Path) -> None:
    import onnxruntime

    value = onnxruntime.OrtValue.ortvalue_from_numpy(GIVEN)
    options = options_with(value, session__disable_cpu_ep_fallback="1")
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx") if kernels == "registry" else ""
    made = onnxruntime.InferenceSession(
        graph(TEXT), options, providers=[(registered.EP_NAME, {"kernels": kernels})], enable_fallback=0
    )
    np.testing.assert_array_equal(made.run(None, {"x": X})[0], X * GIVEN + 5)
    if kernels == "registry":  # ours, not that of the session that gave the value
        assert [n.op_type for n in onnx.load(tmp_path / "optimized.onnx").graph.node][-2:] != ["Identity"]
        assert "w" in [t.name for t in onnx.load(tmp_path / "optimized.onnx").graph.initializer]


def test_a_session_made_by_devices_uses_it(registered: Any) -> None:
    import onnxruntime

    from tests.ort.conftest import device_of

    value = onnxruntime.OrtValue.ortvalue_from_numpy(GIVEN)
    options = options_with(value)
    options.add_provider_for_devices([device_of(registered)], {})
    made = onnxruntime.InferenceSession(graph(TEXT), options)
    assert registered.EP_NAME in made.get_providers()
    np.testing.assert_array_equal(made.run(None, {"x": X})[0], X * GIVEN + 5)


def test_one_of_another_shape_is_refused(registered: Any) -> None:
    import onnxruntime

    value = onnxruntime.OrtValue.ortvalue_from_numpy(np.ones(1, np.float32))
    with pytest.raises(
        Exception, match=r"'w' is given as float32 of shape \(1,\), and the model's is float32 of shape \(3,\)"
    ):
        onnxruntime.InferenceSession(
            graph(TEXT), options_with(value), providers=[registered.EP_NAME], enable_fallback=0
        )


@pytest.mark.parametrize("kernels", ["compile", "registry"])
def test_an_input_with_a_default_may_be_given(session: OpenSession, kernels: str) -> None:
    model = onnx.load_from_string(graph(TEXT))
    model.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [3]))
    made = session(model.SerializeToString(), kernels=kernels)
    np.testing.assert_array_equal(made.run(None, {"x": X})[0], X * np.array([1, 2, 3], np.float32) + 5)
    np.testing.assert_array_equal(made.run(None, {"x": X, "w": GIVEN})[0], X * GIVEN + 5)


def greedy_search() -> bytes:
    """com.microsoft.GreedySearch over a small decoder with a cache; ONNX Runtime's CPU operator drives the decoder itself."""
    rng = np.random.default_rng(4)
    table, product = rng.standard_normal((2, 11, 4)).astype(np.float32)
    constants = {"table": table, "product": product.T.copy(), "zero": np.array([0]), "one": np.array([1])}
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["found"]),
        helper.make_node("Unsqueeze", ["found", "one"], ["heads"]),
        helper.make_node("Unsqueeze", ["heads", "zero"], ["key"]),
        helper.make_node("Concat", ["key", "key"], ["keys"], axis=0),
        helper.make_node("Concat", ["past_0", "keys"], ["present_0"], axis=3),
        helper.make_node("ReduceMean", ["present_0"], ["state"], axes=[0, 2, 3], keepdims=0),
        helper.make_node("Unsqueeze", ["state", "one"], ["row"]),
        helper.make_node("Sub", ["found", "row"], ["less"]),
        helper.make_node("MatMul", ["less", "product"], ["logits"]),
    ]
    ids = [helper.make_tensor_value_info(n, TensorProto.INT32, ["b", "s"]) for n in ("input_ids", "position_ids")]
    mask = helper.make_tensor_value_info("attention_mask", TensorProto.INT32, ["b", "t"])
    past = helper.make_tensor_value_info("past_0", TensorProto.FLOAT, [2, "b", 1, "p", 4])
    made = [
        helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["b", "s", 11]),
        helper.make_tensor_value_info("present_0", TensorProto.FLOAT, [2, "b", 1, "t", 4]),
    ]
    weights = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    decoder = helper.make_graph(nodes, "decoder", [*ids, mask, past], made, weights)
    search = helper.make_node(
        "GreedySearch",
        ["tokens", "max_length"],
        ["sequences"],
        domain="com.microsoft",
        decoder=decoder,
        eos_token_id=10,
        pad_token_id=10,
        model_type=0,
    )
    whole = helper.make_graph(
        [search],
        "search",
        [helper.make_tensor_value_info("tokens", TensorProto.INT32, ["b", "s"])],
        [helper.make_tensor_value_info("sequences", TensorProto.INT32, ["b", "length"])],
        [numpy_helper.from_array(np.array([24], np.int32), "max_length")],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(whole, opset_imports=imports, ir_version=8).SerializeToString()


def test_an_operator_that_runs_its_own_body_reads_finished_outputs(session: OpenSession) -> None:
    """It reads the body's outputs in host memory, which the device's memory is not."""
    model = greedy_search()
    made = session(model, all_on_vulkan=False, optimize=False)
    assert where(made)[CPU] == {"GreedySearch": 1, "MatMul": 1}
    feeds = {"tokens": np.array([[3, 1, 4], [1, 5, 9]], np.int32)}
    (wanted,) = reference(model, feeds)
    assert len(set(wanted[0].tolist())) > 3
    for _ in range(10):
        np.testing.assert_array_equal(made.run(None, feeds)[0], wanted)
