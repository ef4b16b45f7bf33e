"""Small models, written as ONNX text, and what onnx's reference evaluator makes of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx
from onnx import parser
from onnx.reference import ReferenceEvaluator

OPSET = 18


def model(text: str, *, opset: int = OPSET, domains: str = "") -> onnx.ModelProto:
    """A model from the text of its graph: ``name (inputs) => (outputs) { nodes }``."""
    return parser.parse_model(f'<ir_version: 9, opset_import: ["": {opset}{domains}]> {text}')


def reference(proto: onnx.ModelProto, feeds: Mapping[str, Any]) -> list[Any]:
    return list(ReferenceEvaluator(proto).run(None, dict(feeds)))


ADD_RELU = model("g (float[2,3] x, float[3] b) => (float[2,3] y) { s = Add(x, b) y = Relu(s) }")
DYNAMIC = model("g (float[n,k] x, float[k] b) => (float[n,k] y) { s = Mul(x, b) y = Neg(s) }")
TWO_OUTPUTS = model("g (float[4] x) => (float[4] twice, float[4] square) { twice = Add(x, x) square = Mul(x, x) }")
MATMUL = model("g (float[8,16] x, float[16,4] w) => (float[8,4] y) { y = MatMul(x, w) }")
#: in these tests Vulkan declines Det (see conftest.py)
CPU_MIDDLE = model(
    "g (float[2,3,3] x) => (float[2] y) { a = Mul(x, x) d = Det(a) y = Neg(d) }",
)
#: a run of it takes long enough for the host to overtake it
SLOW = model(
    "g (float[256,256] x, float[256,256] w) => (float[256,256] y) { a = MatMul(x, w) c = MatMul(a, w) y = MatMul(c, w) }"
)
