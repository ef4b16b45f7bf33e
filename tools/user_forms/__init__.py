"""Models in the forms in which users run them, compared with ONNX Runtime: ``python -m tools.user_forms --help``."""
