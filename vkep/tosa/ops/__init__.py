"""The lowerings of ONNX operators, by kind. Importing this package declares them."""

from vkep.tosa.ops import (
    activations,
    casts,
    convolution,
    elementwise,
    indices,
    integers,
    movement,
    pooling,
    power,
    products,
    qlinear,
    quantized,
    reduction,
    resize,
    signal,
)

__all__ = [
    "activations",
    "casts",
    "convolution",
    "elementwise",
    "indices",
    "integers",
    "movement",
    "pooling",
    "power",
    "products",
    "qlinear",
    "quantized",
    "reduction",
    "resize",
    "signal",
]
