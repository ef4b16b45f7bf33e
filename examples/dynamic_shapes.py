"""A model with a symbolic dimension: a plan for each input signature, no shader compiled twice.

python examples/dynamic_shapes.py
"""

from __future__ import annotations

import time

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import vkep


def make_model(features: int = 64, classes: int = 10) -> onnx.ModelProto:
    """A layer with softmax, for any batch."""
    weight = np.random.default_rng(0).standard_normal((features, classes), np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["scores"]), helper.make_node("Softmax", ["scores"], ["y"], axis=-1)],
        "classifier",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", features])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", classes])],
        [numpy_helper.from_array(weight, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def main() -> None:
    # The eight signatures used last keep their plan; a ninth replaces the oldest.
    with vkep.InferenceSession(make_model(), plan_cache_size=8) as session:
        print(session.report())  # not planned yet: the batch is not known
        session.plan({"x": (32, 64)})  # optional: plan before the first run needs it
        for batch in (1, 8, 32, 8):
            start = time.perf_counter()
            (y,) = session.run(None, {"x": np.ones((batch, 64), np.float32)})
            print(f"batch {batch:2d}: {y.shape} in {(time.perf_counter() - start) * 1e3:.2f} ms")
        try:
            session.run(None, {"x": np.ones((8, 63), np.float32)})
        except vkep.InvalidInputError as error:
            print(f"refused: {error}")


if __name__ == "__main__":
    main()
