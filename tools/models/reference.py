"""Runs a model for its reference outputs: ONNX Runtime on the CPU, else onnx's own evaluator (slow)."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Mapping
from pathlib import Path

import onnx

from vkep.models.builder import Array

log = logging.getLogger(__name__)

LARGEST_PROTO = (1 << 31) - (1 << 20)


def evaluate(model: onnx.ModelProto, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """All outputs of `model` by name, for inputs by name."""
    names = [output.name for output in model.graph.output]
    try:
        import onnxruntime
    except ModuleNotFoundError:
        log.warning("onnxruntime is not installed: %s runs on onnx's reference evaluator, slowly", model.graph.name)
        from onnx.reference import ReferenceEvaluator

        return dict(zip(names, ReferenceEvaluator(model).run(None, dict(inputs)), strict=True))
    options = onnxruntime.SessionOptions()
    # Basic only: no fusions that approximate.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    with tempfile.TemporaryDirectory() as folder:
        source: bytes | str
        if model.ByteSize() < LARGEST_PROTO:
            source = model.SerializeToString()
        else:
            source = str(Path(folder) / "model.onnx")
            onnx.save(model, source, save_as_external_data=True, location="weights")
        session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
        return dict(zip(names, session.run(names, dict(inputs)), strict=True))
