"""ONNX Runtime's graphs: converted, claimed, compiled, and saved as EPContext nodes."""
