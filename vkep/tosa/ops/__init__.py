"""The lowerings of ONNX operators, by kind. Importing this package declares them."""

from vkep.tosa.ops import (  # noqa: F401
    activations,
    casts,
    convolution,
    elementwise,
    indices,
    integers,
    movement,
    pooling,
    products,
    qlinear,
    quantized,
    reduction,
    resize,
    signal,
)
