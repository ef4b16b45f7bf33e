"""Generator of the benchmark models: real architectures with seeded, calibrated weights, made without torch.

`python -m tools.models --out FOLDER [names]` writes `<name>.onnx` and `<name>.npz` (inputs as `in_<name>`, reference
outputs as `out_<name>`). From Python: `tools.models.catalog.write_model`.
"""
