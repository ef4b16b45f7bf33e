"""One model on two delegates of one Vulkan device: the example of the RFC "Unified Vulkan and VGF GPU backend path".

A transpose and an average pool, gathers on three axes, then sin, cos, reciprocal, mul and a transpose. Under vgf_first the
middle gather, which TOSA has not, makes it VGF -> Vulkan -> VGF.

    pip install 'vkep[vgf]'
    python examples/mixed_delegates.py --prefer vgf_first --sync-mode timeline
"""

from __future__ import annotations

import argparse
import logging
import sys
import time

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import gpu_shared
from vkep import InferenceSession

SHAPE = (1, 3, 8, 8)
CHANNELS, ROWS = [2, 0, 1], [3, 1, 2, 0]
COLUMNS = np.tile(np.array([3, 1, 2, 0], np.int64).reshape(1, 1, 1, 4), (1, 3, 4, 1))


def build_model() -> onnx.ModelProto:
    """The RFC's example in ONNX operators."""
    nodes = [
        helper.make_node("Transpose", ["x"], ["turned"], perm=[0, 1, 3, 2]),
        helper.make_node("AveragePool", ["turned"], ["pooled"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Gather", ["pooled", "channels"], ["by_channel"], axis=1),
        helper.make_node("GatherElements", ["by_channel", "columns"], ["by_column"], axis=3),
        helper.make_node("Gather", ["by_column", "rows"], ["by_row"], axis=2),
        helper.make_node("Sin", ["by_row"], ["sin"]),
        helper.make_node("Cos", ["by_row"], ["cos"]),
        helper.make_node("Reciprocal", ["cos"], ["secant"]),
        helper.make_node("Mul", ["sin", "secant"], ["tangent"]),
        helper.make_node("Transpose", ["tangent"], ["y"], perm=[0, 1, 3, 2]),
    ]
    graph = helper.make_graph(
        nodes,
        "rfc_example",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, SHAPE)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 3, 4, 4))],
        [
            numpy_helper.from_array(np.array(CHANNELS, np.int64), "channels"),
            numpy_helper.from_array(np.array(ROWS, np.int64), "rows"),
            numpy_helper.from_array(COLUMNS, "columns"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def reference(x: np.ndarray) -> np.ndarray:
    """The same in numpy."""
    pooled = x.transpose(0, 1, 3, 2).reshape(1, 3, 4, 2, 4, 2).mean((3, 5))
    picked = np.take_along_axis(pooled[:, CHANNELS], COLUMNS, 3)[:, :, ROWS]
    return (np.sin(picked) / np.cos(picked)).transpose(0, 1, 3, 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--prefer", default="vgf_first", choices=("auto", "vgf_first", "vulkan_first"))
    parser.add_argument("--sync-mode", default="timeline", choices=("timeline", "queue_wait_idle", "none"))
    parser.add_argument("--min-partition-size", type=int, default=1)
    parser.add_argument("--device", help="index, UUID or part of the name of a Vulkan device")
    arguments = parser.parse_args()

    logging.basicConfig(stream=sys.stdout, format="%(message)s")
    logging.getLogger("gpu_shared.delegate").setLevel(logging.DEBUG)  # init, execute and destroy of each delegate

    x = np.linspace(-0.8, 0.8, int(np.prod(SHAPE)), dtype=np.float32).reshape(SHAPE)
    with InferenceSession(
        build_model(),
        prefer=arguments.prefer,
        sync_mode=arguments.sync_mode,
        min_partition_size=arguments.min_partition_size,
        device=arguments.device,
        token="mixed_delegates",
    ) as session:
        print(session.report())
        for node in session.report().nodes:
            print(f"  {node.where:8} {node.op_type} {node.name}")
        (y,) = session.run(None, {"x": x})
        logging.getLogger("gpu_shared.delegate").setLevel(logging.WARNING)
        start = time.perf_counter()
        session.run(None, {"x": x})
        print(f"second run: {(time.perf_counter() - start) * 1e6:.0f} us")
        counts = gpu_shared.live_counts()
        print(f"instances: {counts['instance']}, devices: {counts['device']}")
        print(f"largest difference from numpy: {np.abs(y - reference(x)).max():.2e}")


if __name__ == "__main__":
    main()
