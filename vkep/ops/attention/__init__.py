"""Attention: ONNX's and ONNX Runtime's operators, what they share, their caches of keys and values, rotary positions."""
