"""Device memory in ONNX Runtime: allocators, copies, streams, tensors, memory of other programs."""
