"""The lowerings of ONNX operators, by kind. Importing this package declares them."""

from vkep.tosa.ops import convolution, elementwise, movement, pooling, products, quantized, reduction

__all__ = ["convolution", "elementwise", "movement", "pooling", "products", "quantized", "reduction"]
