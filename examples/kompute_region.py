"""A Kompute (kp) shader as a region of a model: Vulkan -> kp -> Vulkan, with the cost of the way through the host.

    tools/build_kp.sh                    # kp is published as source only
    python examples/kompute_region.py

kp makes a VkInstance and a VkDevice of its own and takes none that exist, so what passes between its region and vkep's
is copied through the host; the report says how much and how long that took. The same formula in ONNX operators stays on the
device: the last line compares.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from vkep import InferenceSession
from vkep.kompute import KpDispatch, KpTensor, available, register_kp_operator

# kp's way: storage buffers of set 0 in the order of the tensors, push constants
SHADER = """#version 450
layout(local_size_x = 64) in;
layout(set = 0, binding = 0) readonly buffer X { float x[]; };
layout(set = 0, binding = 1) readonly buffer Bias { float bias[]; };
layout(set = 0, binding = 2) writeonly buffer Y { float y[]; };
layout(push_constant) uniform Push { float slope; uint columns; uint size; } push;
void main() {
    uint i = gl_GlobalInvocationID.x;
    if (i >= push.size) return;
    float v = x[i] + bias[i % push.columns];
    y[i] = v < 0.0 ? push.slope * v : v;
}
"""
ROWS, COLUMNS, SLOPE = 256, 1024, 0.1
BIAS = np.linspace(-1, 1, COLUMNS, dtype=np.float32)


def outputs(inputs: Sequence[KpTensor], attributes: Mapping[str, Any]) -> list[KpTensor]:
    return [inputs[0]]


def dispatch(inputs: Sequence[KpTensor], outputs: Sequence[KpTensor], attributes: Mapping[str, Any]) -> KpDispatch:
    size = outputs[0].size
    return KpDispatch((-(-size // 64), 1, 1), push_constants=(attributes["slope"], inputs[1].size, size))


def build_model(middle: list[onnx.NodeProto]) -> onnx.ModelProto:
    """exp, the nodes given (from "a" to "b"), then a matrix product."""
    weights = np.random.default_rng(0).standard_normal((COLUMNS, 8)).astype(np.float32) / 32
    nodes = [
        helper.make_node("Exp", ["x"], ["a"]),
        *middle,
        helper.make_node("MatMul", ["b", "weights"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "kompute_region",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (ROWS, COLUMNS))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (ROWS, 8))],
        [numpy_helper.from_array(BIAS, "bias"), numpy_helper.from_array(weights, "weights")],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.example", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def median_us(session: InferenceSession, x: np.ndarray, runs: int = 20) -> float:
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        session.run(None, {"x": x})
        times.append(time.perf_counter() - start)
    return sorted(times)[runs // 2] * 1e6


def main() -> None:
    x = np.linspace(-2, 0.5, ROWS * COLUMNS, dtype=np.float32).reshape(ROWS, COLUMNS)
    in_kp = build_model([helper.make_node("BiasLeaky", ["a", "bias"], ["b"], domain="com.example", slope=SLOPE)])
    in_onnx = build_model(
        [helper.make_node("Add", ["a", "bias"], ["c"]), helper.make_node("LeakyRelu", ["c"], ["b"], alpha=SLOPE)]
    )
    with tempfile.TemporaryDirectory() as folder:
        shader = Path(folder) / "bias_leaky.comp"
        shader.write_text(SHADER, encoding="utf-8")
        register_kp_operator("BiasLeaky", domain="com.example", shader=shader, outputs=outputs, dispatch=dispatch)
        with InferenceSession(in_kp) as session, InferenceSession(in_onnx) as other:
            (y,) = session.run(None, {"x": x})
            (same,) = other.run(None, {"x": x})
            with_kp, without = median_us(session, x), median_us(other, x)
            print(session.report())
            print(f"largest difference from the model in ONNX operators: {np.abs(y - same).max():.1e}")
            print(f"a run with the kp region: {with_kp:.0f} us; all on Vulkan: {without:.0f} us")


if __name__ == "__main__":
    if not available():
        raise SystemExit("kp is not installed: run tools/build_kp.sh")
    main()
