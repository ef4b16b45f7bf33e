"""Kernels of ai.onnx.ml: trees, lookups, probabilities of classes."""
