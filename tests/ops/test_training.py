"""Optimizer steps against float64, and n-grams against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper
import pytest
from onnx import helper

from tests.ops.cases import assert_like, check, model_of, on_vulkan
from vkep.errors import InvalidModelError, UnsupportedModelError

pytestmark = pytest.mark.usefixtures("vulkan")
RNG = np.random.default_rng(3)
Array = np.ndarray[Any, Any]


def step_model(op_type: str, inputs: dict[str, Array], outputs: list[str], **attributes: Any) -> onnx.ModelProto:
    node = helper.make_node(op_type, list(inputs), outputs, domain="ai.onnx.preview.training", **attributes)
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape) for n, v in inputs.items()
    ]
    graph = helper.make_graph([node], "g", infos, [onnx.ValueInfoProto(name=name) for name in outputs])
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.preview.training", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


@pytest.mark.parametrize("time", [0, 1, 2, 5000])
def test_adam_where_its_corrections_are_small(time: int) -> None:
    values = {name: RNG.uniform(0.5, 1, 7).astype(np.float32) for name in ("x", "g", "v", "h")}
    inputs: dict[str, Array] = {"r": np.array(0.5, np.float32), "t": np.array(time, np.int64), **values}
    got = on_vulkan(step_model("Adam", inputs, ["x2", "v2", "h2"], alpha=0.9, beta=0.999), inputs)
    x, g, v, h = (a.astype(np.float64) for a in values.values())
    alpha, beta = float(np.float32(0.9)), float(np.float32(0.999))
    v2, h2 = alpha * v + (1 - alpha) * g, beta * h + (1 - beta) * g * g
    rate = 0.5 * np.sqrt(1 - beta**time) / (1 - alpha**time) if time else 0.5
    for ours, exact in zip(got, (x - rate * v2 / (np.sqrt(h2) + 1e-6), v2, h2), strict=True):
        np.testing.assert_allclose(ours, exact, rtol=2e-6)


def test_a_step_of_constants_alone() -> None:
    inputs: dict[str, Array] = {"r": np.array(0.5, np.float32), "t": np.array(0, np.int64)}
    inputs |= {name: np.array([value], np.float32) for name, value in (("x", 2.0), ("g", 3.0), ("s", 7.0))}
    model = step_model("Adagrad", inputs, ["y", "s2"])
    plain = on_vulkan(model, inputs)
    del model.graph.input[:]
    model.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in inputs.items())
    assert_like(on_vulkan(model, {}), plain)


def test_a_tensor_without_its_states_is_refused() -> None:
    inputs: dict[str, Array] = {
        "r": np.array(0.1, np.float32),
        "t": np.array(1, np.int64),
        "x": RNG.normal(0, 1, 3).astype(np.float32),
    }
    with pytest.raises(InvalidModelError, match="1 tensors; expected 3 for each tensor to be optimized"):
        on_vulkan(step_model("Adagrad", inputs, ["y"]), inputs)


GRAMS: dict[str, Any] = {
    "ngram_counts": [0, 3, 9],
    "ngram_indexes": [4, 0, 2, 1, 5, 3, 6],
    "pool_int64s": [2, 3, 5, 2, 3, 5, 5, 3, 2, 2, 3, 5],
    "weights": [0.5, 1.5, 2.5, 3.5, 4.5, 5.5, 6.5],
}


@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
@pytest.mark.parametrize("lengths", [(1, 1), (1, 3), (2, 2)])
@pytest.mark.parametrize("skip", [0, 4])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_ngrams(mode: str, lengths: tuple[int, int], skip: int, dtype: Any) -> None:
    attributes: dict[str, Any] = {
        "min_gram_length": lengths[0],
        "max_gram_length": lengths[1],
        "max_skip_count": skip,
        "mode": mode,
    }
    for shape in ((3, 40), (40,), (2, 1)):
        x = RNG.choice([2, 3, 5, 7], shape).astype(dtype)
        check("TfIdfVectorizer", {"x": x}, against="onnxruntime", opset=21, **GRAMS, **attributes)


def test_ngrams_of_texts_are_declined() -> None:
    attributes: dict[str, Any] = {"min_gram_length": 1, "max_gram_length": 1, "max_skip_count": 0, "mode": "TF"}
    given: dict[str, Any] = {"ngram_counts": [0], "ngram_indexes": [0], "pool_strings": ["a"]}
    model = model_of("TfIdfVectorizer", {"x": np.array(["a"], np.str_)}, **given, **attributes)
    with pytest.raises(UnsupportedModelError, match="an element type that no kernel takes"):
        on_vulkan(model, {"x": np.array(["a"], np.object_)})
