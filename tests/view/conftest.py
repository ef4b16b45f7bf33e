"""A page that the tests here share: of a model with nodes on the device, on the CPU, and folded."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx.parser
import pytest

import vkep
from tools import chromium
from vkep.view import Page

MODEL = """
<ir_version: 10, opset_import: ["" : 21]>
branches (float[4, 8] x, string[2] words) => (float[4, 8] y, string[2] twice)
<float[8, 8] w>
{
    one = Constant<value_float = 1.0> ()
    two = Add (one, one)
    product = MatMul (x, w)
    scaled = Mul (product, two)
    active = Relu (scaled)
    soft = Softmax (active)
    left = Sigmoid (product)
    y = Add (soft, left)
    twice = StringConcat (words, words)
}
"""
FEEDS = {"x": np.ones((4, 8), np.float32), "words": np.array(["a", "b"], object)}


@pytest.fixture(scope="session")
def page(vulkan: object) -> Page:
    """Of two runs."""
    model = onnx.parser.parse_model(MODEL)
    for node in model.graph.node:
        module = {"MatMul": "encoder/mix", "Mul": "encoder/mix", "Softmax": "encoder/top"}.get(node.op_type, "")
        node.name = f"/{module}/{node.op_type}" if module else f"{node.op_type}_{node.output[0]}"
    weights = np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    with vkep.InferenceSession(model) as session:
        return session.view(FEEDS, 2)


@pytest.fixture(scope="session")
def browser() -> Iterator[chromium.Chromium]:
    """Headless Chromium, for the tests of all pages."""
    if chromium.find() is None:
        pytest.skip(f"no browser: none of {', '.join(chromium.NAMES)} is installed")
    try:
        made = chromium.Chromium()
    except (RuntimeError, TimeoutError) as error:  # a distribution's stub that only says where to get one
        pytest.skip(f"the browser does not start: {error}")
    with made:
        yield made
