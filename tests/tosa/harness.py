"""Small ONNX graphs, lowered to TOSA."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from vkep.dtypes import from_numpy
from vkep.graph import load_model
from vkep.tosa import TosaGraph, TosaPort, lower_nodes

Array = np.ndarray[Any, Any]


def model(text: str, opset: int = 21, **weights: Array) -> onnx.ModelProto:
    """A model from ONNX's text syntax, with weights by name."""
    proto = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : {opset}]> {text}')
    proto.graph.initializer.extend(numpy_helper.from_array(np.asarray(a), n) for n, a in weights.items())
    return proto


def lowered(proto: onnx.ModelProto) -> TosaGraph:
    """All of a model with static shapes as one TOSA graph."""
    loaded = load_model(proto)
    known: dict[str, Any] = dict(loaded.graph.weights)
    for info in loaded.graph.inputs:
        dtype = from_numpy(helper.tensor_dtype_to_np_dtype(info.elem_type))
        known[info.name] = TosaPort(info.name, dtype, tuple(int(d) for d in info.shape or ()))  # type: ignore[arg-type]
    return lower_nodes(loaded.graph.nodes, known, [v.name for v in loaded.graph.outputs])


def expected(proto: onnx.ModelProto, feeds: dict[str, Array]) -> list[Array]:
    """What onnxruntime says."""
    import onnxruntime

    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))
