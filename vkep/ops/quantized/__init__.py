"""Quantized tensors: ONNX's and ONNX Runtime's operators on integers with scales, and on blocks of few bits."""
