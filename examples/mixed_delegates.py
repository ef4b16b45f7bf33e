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
from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import gpu_shared
from vkep import InferenceSession

SHAPE = (1, 3, 8, 8)
#: the orders in which the gathers take the channels, rows and columns of the pooled image
CHANNELS, ROWS, COLUMNS = (2, 0, 1), (3, 1, 2, 0), (3, 1, 2, 0)


def build_model(
    channels: Sequence[int] = CHANNELS, rows: Sequence[int] = ROWS, columns: Sequence[int] = COLUMNS
) -> onnx.ModelProto:
    """The RFC's example in ONNX operators; other orders make it one for images of another size."""
    pooled = (1, len(channels), len(rows), len(columns))
    shape = (1, len(channels), 2 * len(columns), 2 * len(rows))
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
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, len(channels), len(columns), len(rows)))],
        [
            numpy_helper.from_array(np.array(channels, np.int64), "channels"),
            numpy_helper.from_array(np.array(rows, np.int64), "rows"),
            numpy_helper.from_array(np.broadcast_to(np.array(columns, np.int64), pooled), "columns"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def reference(
    x: np.ndarray, channels: Sequence[int] = CHANNELS, rows: Sequence[int] = ROWS, columns: Sequence[int] = COLUMNS
) -> np.ndarray:
    """The same in numpy."""
    images, depth, height, width = x.shape
    pooled = x.transpose(0, 1, 3, 2).reshape(images, depth, width // 2, 2, height // 2, 2).mean((3, 5))
    picked = pooled[:, channels][:, :, rows][..., columns]
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
