"""Nodes that ONNX Runtime runs: fused ones, and kernels of its registry."""
