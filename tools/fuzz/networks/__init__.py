"""Random graphs of the operators that networks consist of, compared with ONNX Runtime and float64."""
