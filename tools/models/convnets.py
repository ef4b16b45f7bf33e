"""MobileNetV2 (arXiv:1801.04381) and ResNet-18 and -50 (arXiv:1512.03385), as torch's exporter writes them.

Batch normalization is folded into the convolutions. Its statistics come from the data: a first pass builds the network
with the normalization spelled out and the statistics as outputs, runs it once on random images, and the second pass
builds the folded network (`calibrated`). So every activation stays in a sane range, as in a trained network.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from tools.models.reference import evaluate
from vkep.models.builder import Array, Dim, GraphBuilder, levels

IMAGE = 224
CLASSES = 1000
CALIBRATION_BATCH = 2
EPSILON = 1e-5

Statistics = dict[str, tuple[Array, Array]]


@dataclass
class ConvNetBuilder:
    """Adds convolutions with batch normalization: folded when `statistics` holds their mean and variance, else spelled
    out, with the statistics as graph outputs."""

    graph: GraphBuilder
    statistics: Statistics | None
    layers: list[str] = field(default_factory=list)

    def conv(
        self, x: str, name: str, c_in: int, c_out: int, kernel: int, stride: int = 1, groups: int = 1, act: str = ""
    ) -> str:
        """Convolution, batch normalization and an activation ("", "relu" or "relu6"); padding keeps the size."""
        graph = self.graph
        shape = (c_out, c_in // groups, kernel, kernel)
        weight = graph.weight(f"{name}.weight", shape, (2 / (c_in // groups * kernel * kernel)) ** 0.5)
        random = graph.random(f"{name}.norm")
        scale = random.uniform(0.6, 1.2, c_out).astype(np.float32)
        offset = random.normal(0, 0.1, c_out).astype(np.float32)
        attributes: dict[str, Any] = {
            "dilations": [1, 1],
            "group": groups,
            "kernel_shape": [kernel, kernel],
            "pads": [(kernel - 1) // 2] * 4,
            "strides": [stride, stride],
        }
        if self.statistics is None:
            x = graph.add("Conv", x, graph.constant(f"{name}.weight", weight), **attributes)
            x = self._normalize(x, name, scale, offset)
        else:
            mean, variance = self.statistics[name]
            gain = scale / np.sqrt(variance + EPSILON)
            folded = graph.constant(f"{name}.weight", weight * gain[:, None, None, None])
            bias = graph.constant(f"{name}.bias", offset - mean * gain)
            x = graph.add("Conv", x, folded, bias, **attributes)
        if act == "relu6":
            return graph.add("Clip", x, graph.constant("clip_min", 0.0), graph.constant("clip_max", 6.0))
        return graph.add("Relu", x) if act == "relu" else x

    def _normalize(self, x: str, name: str, scale: Array, offset: Array) -> str:
        graph = self.graph
        axes = graph.constant("norm_axes", [0, 2, 3])
        mean = graph.add("ReduceMean", x, axes, stem=f"{name}.mean")
        centred = graph.add("Sub", x, mean)
        variance = graph.add("ReduceMean", graph.add("Mul", centred, centred), axes, stem=f"{name}.variance")
        root = graph.add("Sqrt", graph.add("Add", variance, graph.constant("norm_epsilon", EPSILON)))
        column = (len(scale), 1, 1)
        x = graph.add("Mul", graph.add("Div", centred, root), graph.constant(f"{name}.scale", scale.reshape(column)))
        self.layers.append(name)
        for value in (mean, variance):
            graph.outputs.append(helper.make_tensor_value_info(value, TensorProto.FLOAT, [1, len(scale), 1, 1]))
        return graph.add("Add", x, graph.constant(f"{name}.offset", offset.reshape(column)))

    def classifier(self, x: str, channels: int, batch: Dim) -> None:
        """Global average, flatten, fully connected layer; the graph's output is `y` of shape [batch, 1000]."""
        graph = self.graph
        x = graph.add("ReduceMean", x, graph.constant("pool_axes", [-1, -2]), keepdims=1)
        # 0 copies the batch dimension, so that a symbolic batch works too.
        x = graph.add("Reshape", x, graph.constant("flat_shape", [0, channels]), allowzero=0)
        weight = graph.constant("fc.weight", graph.weight("fc.weight", (CLASSES, channels), channels**-0.5))
        bias = graph.constant("fc.bias", graph.weight("fc.bias", (CLASSES,), 0.02))
        graph.output(graph.add("Gemm", x, weight, bias, transB=1), "y", [batch, CLASSES])


Architecture = Callable[[ConvNetBuilder, str, Dim], None]


def mobilenetv2(net: ConvNetBuilder, x: str, batch: Dim) -> None:
    """Table 2 of the paper: expansion, channels, repeats and stride of the inverted residuals."""
    x, channels = net.conv(x, "stem", 3, 32, 3, 2, act="relu6"), 32
    stages = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)]
    for stage, (expansion, c_out, repeats, first_stride) in enumerate(stages):
        for index in range(repeats):
            name, stride = f"block{stage}.{index}", first_stride if index == 0 else 1
            hidden, inside = channels * expansion, x
            if expansion != 1:
                inside = net.conv(inside, f"{name}.expand", channels, hidden, 1, act="relu6")
            inside = net.conv(inside, f"{name}.depthwise", hidden, hidden, 3, stride, groups=hidden, act="relu6")
            inside = net.conv(inside, f"{name}.project", hidden, c_out, 1)
            x = net.graph.add("Add", x, inside) if stride == 1 and channels == c_out else inside
            channels = c_out
    net.classifier(net.conv(x, "head", channels, 1280, 1, act="relu6"), 1280, batch)


def resnet(repeats: tuple[int, int, int, int], bottleneck: bool) -> Architecture:
    """Table 1 of the paper; the stride of a bottleneck is on its 3x3 convolution, as in torchvision."""

    def build(net: ConvNetBuilder, x: str, batch: Dim) -> None:
        x = net.conv(x, "stem", 3, 64, 7, 2, act="relu")
        x = net.graph.add("MaxPool", x, kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2], ceil_mode=0)
        channels = 64
        for stage, count in enumerate(repeats):
            width = 64 << stage
            c_out = width * 4 if bottleneck else width
            for index in range(count):
                name, stride = f"layer{stage + 1}.{index}", 2 if index == 0 and stage > 0 else 1
                if bottleneck:
                    inside = net.conv(x, f"{name}.conv1", channels, width, 1, act="relu")
                    inside = net.conv(inside, f"{name}.conv2", width, width, 3, stride, act="relu")
                    inside = net.conv(inside, f"{name}.conv3", width, c_out, 1)
                else:
                    inside = net.conv(x, f"{name}.conv1", channels, width, 3, stride, act="relu")
                    inside = net.conv(inside, f"{name}.conv2", width, width, 3)
                if stride != 1 or channels != c_out:
                    x = net.conv(x, f"{name}.downsample", channels, c_out, 1, stride)
                x, channels = net.graph.add("Relu", net.graph.add("Add", inside, x)), c_out
        net.classifier(x, channels, batch)

    return build


def calibrated(name: str, architecture: Architecture) -> Statistics:
    """Mean and variance of every convolution of the network, from one run on random images.

    They are rounded to float16's precision, so that another machine's rounding gives the same weights.
    """
    graph = GraphBuilder(name)
    net = ConvNetBuilder(graph, None)
    architecture(net, graph.input("x", [CALIBRATION_BATCH, 3, IMAGE, IMAGE]), CALIBRATION_BATCH)
    images = levels(graph.random("calibration"), (CALIBRATION_BATCH, 3, IMAGE, IMAGE))
    results = evaluate(graph.model(), {"x": images})

    def coarse(value: Array) -> Array:
        return value.reshape(-1).astype(np.float16).astype(np.float32)

    return {layer: (coarse(results[f"{layer}.mean"]), coarse(results[f"{layer}.variance"])) for layer in net.layers}


def build_convnet(graph: GraphBuilder, architecture: Architecture, statistics: Statistics, batch: Dim) -> None:
    """Build the folded network: input `x` [batch, 3, 224, 224], output `y` [batch, 1000]."""
    architecture(ConvNetBuilder(graph, statistics), graph.input("x", [batch, 3, IMAGE, IMAGE]), batch)
