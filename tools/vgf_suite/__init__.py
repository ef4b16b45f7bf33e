"""The onnx package's node tests through the VGF delegate."""
