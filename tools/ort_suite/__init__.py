"""ONNX Runtime's own operator tests and model files on vkep: ``python -m tools.ort_suite FOLDER``."""
