"""Running declined nodes on the CPU: with onnxruntime where it is installed, else onnx's reference evaluator."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from vkep.errors import UnsupportedModelError, VkepError
from vkep.lowering.program import CpuStep

logger = logging.getLogger("vkep.cpu")


class CpuRunner:
    """A group of nodes on the CPU. The evaluator is made at the first run, when the inputs' types are known."""

    def __init__(self, step: CpuStep, opsets: Mapping[str, int], ir_version: int) -> None:
        self.step = step
        self._opsets, self._ir_version = opsets, ir_version
        self._run: Any = None
        self.engine = "onnxruntime" if importlib.util.find_spec("onnxruntime") else "onnx.reference"
        unknown = [
            f"{node.title}: {reason}"
            for node, reason in zip(step.nodes, step.reasons, strict=True)
            if node.schema is None and not (self.engine == "onnxruntime" and node.domain == "com.microsoft")
        ]
        if unknown:
            raise UnsupportedModelError(
                "these nodes run neither on Vulkan nor on the CPU:\n  "
                + "\n  ".join(unknown)
                + "\nRegister a Vulkan operator for them (vkep.ops.operator), or change the model."
            )

    def run(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Outputs by name. Raises `VkepError` with the evaluator's message when a node fails."""
        feeds = {name: values[name] for name in self.step.inputs}
        try:
            if self._run is None:
                self._run = self._make(feeds)
            results = self._run(feeds)
        except VkepError:
            raise
        except Exception as error:  # whatever the evaluator raises, with where it came from
            nodes = ", ".join(n.title for n in self.step.nodes)
            raise VkepError(f"on the CPU ({self.engine}), {nodes}: {error}") from error
        return dict(zip(self.step.outputs, results, strict=True))

    def _make(self, feeds: Mapping[str, Any]) -> Any:
        model = self._model(feeds)
        outputs = list(self.step.outputs)
        if self.engine == "onnxruntime":
            import onnxruntime

            options = onnxruntime.SessionOptions()
            options.log_severity_level = 3
            session = onnxruntime.InferenceSession(
                model.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
            return lambda values: session.run(outputs, values)
        from onnx.reference import ReferenceEvaluator

        evaluator = ReferenceEvaluator(model)
        return lambda values: evaluator.run(outputs, values)

    def _model(self, feeds: Mapping[str, Any]) -> onnx.ModelProto:
        inputs = [onnx.ValueInfoProto(name=name, type=_type_of(value)) for name, value in feeds.items()]
        graph = helper.make_graph(
            [node.proto for node in self.step.nodes],
            "cpu",
            inputs,
            [onnx.ValueInfoProto(name=name) for name in self.step.outputs],
            [numpy_helper.from_array(np.asarray(w.array()), name) for name, w in self.step.constants.items()],
        )
        opsets = [helper.make_opsetid(domain, version) for domain, version in self._opsets.items()]
        # the least that the opsets need: an evaluator may be older than the model's IR version, which these nodes do not use
        ir_version = max(helper.find_min_ir_version_for(opsets, ignore_unknown=True), 8)
        return helper.make_model(graph, opset_imports=opsets, ir_version=ir_version)


def _type_of(value: Any) -> onnx.TypeProto:
    if isinstance(value, np.ndarray):
        return helper.make_tensor_type_proto(_elem_type(value), [None] * value.ndim)
    if isinstance(value, (list, tuple)):
        item = _type_of(value[0]) if value else helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, None)
        return helper.make_sequence_type_proto(item)
    raise TypeError(f"no ONNX type for a value of type {type(value).__name__}")


def _elem_type(array: np.ndarray) -> int:
    if array.dtype.kind in "OUS":
        return onnx.TensorProto.STRING
    return helper.np_dtype_to_tensor_dtype(array.dtype)
