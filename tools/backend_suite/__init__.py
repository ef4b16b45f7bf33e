"""ONNX's backend test suite on vkep: ``python -m tools.backend_suite``."""
