"""The lowerings of ONNX operators, by kind. Importing this package declares them."""

from vkep.tosa.ops import elementwise, movement, neural, quantized, reduction

__all__ = ["elementwise", "movement", "neural", "quantized", "reduction"]
