"""Small ONNX graphs, lowered to TOSA."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from tests.vgf.harness import Bench, as_given, as_held
from tools.ort_cpu import cpu_session
from vkep.dtypes import from_numpy
from vkep.graph import load_model
from vkep.tosa import TosaGraph, TosaPort, lower_nodes
from vkep.vgf.convert import mlir_to_flatbuffer

Array = np.ndarray[Any, Any]


def model(text: str, opset: int = 21, /, **weights: npt.ArrayLike) -> onnx.ModelProto:
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
        assert info.static_shape is not None
        known[info.name] = TosaPort(info.name, dtype, info.static_shape)
    return lower_nodes(loaded.graph.nodes, known, [v.name for v in loaded.graph.outputs])


def expected(proto: onnx.ModelProto, feeds: dict[str, Array]) -> list[Array]:
    """What onnxruntime says, node by node: its own fusions round otherwise than the model."""
    return list(cpu_session(proto, optimized=False).run(None, feeds))


def feeds_of(proto: onnx.ModelProto, seed: int = 3) -> dict[str, Array]:
    """Numbers from -2 to 2 (floats), -9 to 9 (integers) or 0 to 255 (unsigned ones) for every input."""
    rng = np.random.default_rng(seed)
    made: dict[str, Array] = {}
    for info in proto.graph.input:
        shape = [d.dim_value for d in info.type.tensor_type.shape.dim]
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type))
        if dtype.kind in "iu":
            made[info.name] = rng.integers(*((0, 256) if dtype.kind == "u" else (-9, 10)), shape).astype(dtype)
        else:
            numbers = rng.uniform(-2, 2, shape)
            made[info.name] = numbers > 0 if dtype.kind == "b" else np.asarray(numbers).astype(dtype)
    return made


def check(
    bench: Bench,
    proto: onnx.ModelProto,
    feeds: dict[str, Array] | None = None,
    *,
    rtol: float = 0.0,
    atol: float = 0.0,
    reference: bool = True,
) -> TosaGraph:
    """A model's graph on the device equals onnxruntime, and the TOSA reference model where that is installed."""
    graph = lowered(proto)
    feeds = feeds_of(proto) if feeds is None else feeds
    got = bench.tosa(graph, feeds)
    for a, b in zip(got, expected(proto, feeds), strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)
    try:
        import tosa_reference_model
    except ImportError:
        return graph
    if not reference:
        return graph
    arrays = [as_held(p, feeds[p.name]) for p in graph.inputs]
    outputs, status = tosa_reference_model.run(mlir_to_flatbuffer(graph.mlir), arrays)
    assert status == tosa_reference_model.GraphStatus.TOSA_VALID
    for raw, a, port in zip(outputs, got, graph.outputs, strict=True):
        dtype = np.dtype(port.border[0])
        b = as_given(port, np.frombuffer(np.ascontiguousarray(raw).tobytes(), dtype))
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)
    return graph
