"""A small detector with random weights, in the form of YOLOv8's exports."""

from __future__ import annotations

import numpy as np
import onnx

from vkep.models.builder import GraphBuilder

#: pixels of a side, and classes
SIDE, CLASSES = 64, 8
#: channels of the levels of the backbone, which each halve the image; the last two have heads
_WIDTHS = (16, 16, 32, 32)


def detector() -> onnx.ModelProto:
    """Input `images` float32 [batch, 3, 64, 64], output `output0` [batch, 12, 80]: for each anchor the centre and the size of its
    box in pixels, and the scores of 8 classes."""
    graph = GraphBuilder("detector")
    x, channels, levels = graph.input("images", ["batch", 3, SIDE, SIDE]), 3, []

    def conv(x: str, name: str, c_in: int, c_out: int, kernel: int, stride: int) -> str:
        weight = graph.weight(f"{name}.weight", (c_out, c_in, kernel, kernel), (2 / (kernel * kernel * c_in)) ** 0.5)
        bias = graph.constant(f"{name}.bias", graph.weight(f"{name}.bias", (c_out,), 0.1))
        sizes = (kernel, kernel)
        kernels = graph.constant(f"{name}.weight", weight)
        return graph.add(*("Conv", x, kernels, bias), kernel_shape=sizes, strides=[stride] * 2, pads=[kernel // 2] * 4)

    def silu(x: str) -> str:
        return graph.add("Mul", x, graph.add("Sigmoid", x))

    for level, wide in enumerate(_WIDTHS):
        x = silu(conv(x, f"{level}.down", channels, wide, 3, 2))
        x = graph.add("Add", x, silu(conv(x, f"{level}.same", wide, wide, 3, 1)))
        channels = wide
        if level >= len(_WIDTHS) - 2:
            head = conv(x, f"{level}.head", wide, 4 + CLASSES, 1, 1)
            levels.append(graph.add("Reshape", head, graph.constant("flat", [0, 4 + CLASSES, -1])))
    both = graph.add("Concat", *levels, axis=2)
    distances, scores = graph.add_many("Split", both, graph.constant("parts", [4, CLASSES]), outputs=2, axis=1)
    anchors, steps = _anchors()
    # how far the sides are from the anchor, in steps of its level: left, top, right, bottom
    near, far = graph.add_many("Split", graph.add("Softplus", distances), outputs=2, axis=1, num_outputs=2)
    low = graph.add("Sub", graph.constant("anchors", anchors), near)
    high = graph.add("Add", graph.constant("anchors", anchors), far)
    middle = graph.add("Mul", graph.add("Add", low, high), graph.constant("half", 0.5))
    boxes = graph.add("Concat", middle, graph.add("Sub", high, low), axis=1)
    pixels = graph.add("Mul", boxes, graph.constant("steps", steps))
    count = anchors.shape[2]
    graph.output(graph.add("Concat", pixels, graph.add("Sigmoid", scores), axis=1), "output0",
                 ["batch", 4 + CLASSES, count])  # fmt: skip
    return graph.model()


def _anchors() -> tuple[np.ndarray, np.ndarray]:
    """Centres of the cells of the last two levels [1, 2, anchors] in steps, and the pixels of a step [1, 1, anchors]."""
    centres, steps = [], []
    for level in (len(_WIDTHS) - 1, len(_WIDTHS)):
        side = SIDE >> level
        y, x = np.mgrid[:side, :side] + 0.5
        centres.append(np.stack([x.ravel(), y.ravel()]))
        steps.append(np.full(side * side, 1 << level))
    return np.concatenate(centres, axis=1)[None].astype(np.float32), np.concatenate(steps)[None, None].astype(
        np.float32
    )
