"""Models of one operator or a short chain: for the limits of single kernels and for the host's cost per run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vkep.models.builder import GraphBuilder


def build_matmul(size: int) -> Callable[[GraphBuilder], None]:
    """`y = a @ b` for square matrices, both of them inputs."""

    def build(graph: GraphBuilder) -> None:
        a, b = (graph.input(name, [size, size]) for name in ("a", "b"))
        graph.output(graph.add("MatMul", a, b), "y", [size, size])

    return build


def build_conv(
    c_in: int, c_out: int, size: int, kernel: int, stride: int = 1, groups: int = 1
) -> Callable[[GraphBuilder], None]:
    """One convolution with bias on an image of size x size; padding (kernel - 1) / 2."""

    def build(graph: GraphBuilder) -> None:
        x = graph.input("x", [1, c_in, size, size])
        shape = (c_out, c_in // groups, kernel, kernel)
        weight = graph.constant("weight", graph.weight("weight", shape, (2 / (shape[1] * kernel * kernel)) ** 0.5))
        bias = graph.constant("bias", graph.weight("bias", (c_out,), 0.02))
        pad, out = (kernel - 1) // 2, (size + 2 * ((kernel - 1) // 2) - kernel) // stride + 1
        y = graph.add(
            "Conv",
            x,
            weight,
            bias,
            dilations=[1, 1],
            group=groups,
            kernel_shape=[kernel, kernel],
            pads=[pad] * 4,
            strides=[stride, stride],
        )
        graph.output(y, "y", [1, c_out, out, out])

    return build


def build_elementwise(rows: int, columns: int) -> Callable[[GraphBuilder], None]:
    """`z = (t * sigmoid(1.702 t) + x) * y` with `t = x + y`: six nodes that can be one pass over memory."""

    def build(graph: GraphBuilder) -> None:
        x, y = (graph.input(name, [rows, columns]) for name in ("x", "y"))
        t = graph.add("Add", x, y)
        gate = graph.add("Sigmoid", graph.add("Mul", t, graph.constant("slope", 1.702)))
        z = graph.add("Mul", graph.add("Add", graph.add("Mul", t, gate), x), y)
        graph.output(z, "z", [rows, columns])

    return build


def build_one(
    op_type: str, shape: tuple[int, ...], inputs: int = 1, **attributes: Any
) -> Callable[[GraphBuilder], None]:
    """One node of `op_type` that keeps the shape of its inputs."""

    def build(graph: GraphBuilder) -> None:
        values = [graph.input(name, shape) for name in ("x", "x2", "x3")[:inputs]]
        graph.output(graph.add(op_type, *values, **attributes), "y", shape)

    return build


def build_layer_norm(shape: tuple[int, ...]) -> Callable[[GraphBuilder], None]:
    """LayerNormalization over the last axis."""

    def build(graph: GraphBuilder) -> None:
        graph.output(graph.layer_norm(graph.input("x", shape), "norm", shape[-1], 1e-5), "y", shape)

    return build


def build_reduce(shape: tuple[int, ...], axis: int) -> Callable[[GraphBuilder], None]:
    """ReduceSum over one axis, which is kept with size 1."""

    def build(graph: GraphBuilder) -> None:
        kept = list(shape)
        kept[axis] = 1
        x = graph.add("ReduceSum", graph.input("x", shape), graph.constant("axes", [axis]), keepdims=1)
        graph.output(x, "y", kept)

    return build


def build_attention(heads: int, length: int, size: int) -> Callable[[GraphBuilder], None]:
    """softmax(q @ k^T / sqrt(size)) @ v for [1, heads, length, size] each."""

    def build(graph: GraphBuilder) -> None:
        shape = (1, heads, length, size)
        q, k, v = (graph.input(name, shape) for name in ("q", "k", "v"))
        scores = graph.add("MatMul", q, graph.add("Transpose", k, perm=[0, 1, 3, 2]))
        scaled = graph.add("Mul", scores, graph.constant("scale", size**-0.5))
        graph.output(graph.add("MatMul", graph.add("Softmax", scaled, axis=-1), v), "y", shape)

    return build


def build_transpose(shape: tuple[int, ...], perm: tuple[int, ...]) -> Callable[[GraphBuilder], None]:
    """Transpose, then Relu, so that the movement cannot be only a change of names."""

    def build(graph: GraphBuilder) -> None:
        x = graph.add("Transpose", graph.input("x", shape), perm=list(perm))
        graph.output(graph.add("Relu", x), "y", [shape[axis] for axis in perm])

    return build


# name -> builder; the names tell operator and size.
OPS: dict[str, Callable[[GraphBuilder], None]] = {
    "op_add_2x3": build_one("Add", (2, 3), 2),  # a run that computes almost nothing: its cost is the host's
    "op_add_4m": build_one("Add", (1024, 4096), 2),
    "op_matmul_256": build_matmul(256),
    "op_matmul_512": build_matmul(512),
    "op_conv1x1_64_256_56": build_conv(64, 256, 56, 1),
    "op_conv1x1_512_2048_7": build_conv(512, 2048, 7, 1),
    "op_conv3x3_128_128_28": build_conv(128, 128, 28, 3),
    "op_conv3x3_512_512_7": build_conv(512, 512, 7, 3),
    "op_conv7x7_3_64_224": build_conv(3, 64, 224, 7, 2),
    "op_depthwise3x3_144_56": build_conv(144, 144, 56, 3, 1, 144),
    "op_conv1x1_24_144_56": build_conv(24, 144, 56, 1),
    "op_conv1x1_160_960_7": build_conv(160, 960, 7, 1),
    "op_depthwise3x3_s2_96_112": build_conv(96, 96, 112, 3, 2, 96),
    "op_depthwise3x3_960_7": build_conv(960, 960, 7, 3, 1, 960),
    "op_attention_12x128x64": build_attention(12, 128, 64),
    "op_chain_1m": build_elementwise(1024, 1024),
    "op_softmax_512x128": build_one("Softmax", (4, 128, 128), axis=-1),
    "op_layer_norm_128x256": build_layer_norm((1, 128, 256)),
    "op_reduce_rows_1024x1024": build_reduce((1024, 1024), 1),
    "op_reduce_columns_1024x1024": build_reduce((1024, 1024), 0),
    "op_transpose_1024x1024": build_transpose((1024, 1024), (1, 0)),
    "op_transpose_heads": build_transpose((1, 128, 16, 64), (0, 2, 1, 3)),
}
