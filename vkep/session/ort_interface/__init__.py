"""Classes and functions under ONNX Runtime's names, for programs that were written for it."""
