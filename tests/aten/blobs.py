"""A case as the graph of a Vulkan delegate, and its runs: by onnxruntime and by vkep."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.aten.values import Array, Case, Const, Dtype, Sym
from tools.ort_cpu import cpu_session
from vkep.aten.importer import ELEMENTS
from vkep.graph.model import Model
from vkep.pte.vk_graph import OperatorCall, SymInt, ValueList, VkBytes, VkDataType, VkGraph, VkTensor

TYPES = {
    "bool": VkDataType.BOOL, "uint8": VkDataType.UINT8, "int8": VkDataType.INT8, "int32": VkDataType.INT32,
    "float16": VkDataType.FLOAT16, "float32": VkDataType.FLOAT32, "int64": VkDataType.INT32,
    "float64": VkDataType.FLOAT32,
}  # fmt: skip
NARROW = {np.dtype(np.int64): np.int32, np.dtype(np.float64): np.float32}


def narrowed(array: Any) -> Array:
    """As a blob keeps it: 64-bit elements in 32 bits."""
    array = np.asarray(array)
    return array.astype(NARROW.get(array.dtype, array.dtype))


class Blob:
    """Values and calls of a graph under construction; ``feeds`` and ``data`` are what its model and constants need."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self.chain: list[OperatorCall] = []
        self.inputs: list[int] = []
        self.outputs: list[int] = []
        self.constants: list[VkBytes] = []
        self.data: dict[str, bytes] = {}
        self.feeds: dict[str, Array] = {}

    def add(self, value: Any) -> int:
        self.values.append(value)
        return len(self.values) - 1

    def tensor(self, dtype: str, dims: Sequence[int], constant: int = -1) -> int:
        return self.add(VkTensor(TYPES[dtype], tuple(dims), constant, staging_datatype=TYPES[dtype]))

    def argument(self, value: Any) -> int:
        """A value of a case: arrays become inputs, lists with tensors or symbols in them lists of values."""
        if isinstance(value, Const):
            array = narrowed(value.array)
            key = f"constant {len(self.constants)}"
            self.data[key] = array.tobytes()
            self.constants.append(VkBytes(2**64 - 1, array.nbytes, key))
            return self.tensor(array.dtype.name, array.shape, len(self.constants) - 1)
        if isinstance(value, np.ndarray):
            array = narrowed(value)
            return self._input(self.tensor(array.dtype.name, array.shape), array)
        if isinstance(value, Sym):
            return self._input(self.add(SymInt(0)), np.array(value.value, np.int64))
        if isinstance(value, list):
            if any(isinstance(v, np.ndarray | Const | Sym) for v in value):
                return self.add(ValueList(tuple(self.argument(v) for v in value)))
            return self.add(tuple(value))
        return self.add(None if isinstance(value, Dtype) else value)

    def _input(self, value_id: int, array: Array) -> int:
        self.feeds[f"input_{len(self.inputs)}"] = array
        self.inputs.append(value_id)
        return value_id

    def call(self, name: str, args: Sequence[int], out: int) -> int:
        self.chain.append(OperatorCall(len(self.chain), name, (*args, out)))
        return out

    def graph(self) -> VkGraph:
        return VkGraph(
            tuple(self.chain), tuple(self.values), tuple(self.inputs), tuple(self.outputs), tuple(self.constants)
        )


def blob_of(case: Case, expected: Sequence[Array]) -> Blob:
    """The case's operator, with results recorded as ``expected`` has them."""
    blob = Blob()
    args = [blob.argument(a) for a in case.args]
    symbolic = case.name.startswith(("<built-in", "sym_size", "et_vk.select_as_symint"))
    made = [blob.add(SymInt(0)) if symbolic else blob.tensor(e.dtype.name, e.shape) for e in expected]
    several = len(made) > 1 or case.name.startswith("aten.split")
    blob.call(case.name, args, blob.add(ValueList(tuple(made))) if several else made[0])
    blob.outputs = made
    return blob


def model_proto(model: Model) -> onnx.ModelProto:
    """An imported model as ONNX's."""
    graph = model.graph
    made = helper.make_graph(
        [node.proto for node in graph.nodes],
        graph.name,
        [helper.make_tensor_value_info(v.name, v.elem_type, v.shape) for v in graph.inputs],
        [helper.make_tensor_value_info(v.name, v.elem_type, v.shape) for v in graph.outputs],
        [numpy_helper.from_array(np.array(w.array(), order="C"), name) for name, w in graph.weights.items()],
    )
    opsets = [helper.make_opsetid(domain, version) for domain, version in model.opsets.items()]
    return helper.make_model(made, opset_imports=opsets, ir_version=model.ir_version)


def by_onnxruntime(proto: onnx.ModelProto, feeds: dict[str, Array]) -> list[Array]:
    return list(cpu_session(proto).run(None, feeds))


def assert_close(got: Sequence[Array], expected: Sequence[Array], tolerance: float, types: Sequence[int]) -> None:
    assert len(got) >= len(expected)
    for result, wanted, kind in zip(got, expected, types, strict=False):
        assert result.shape == wanted.shape
        assert helper.np_dtype_to_tensor_dtype(result.dtype) == kind
        if result.dtype == np.bool_:
            np.testing.assert_array_equal(result, wanted)
        else:
            whole = np.issubdtype(result.dtype, np.integer)
            np.testing.assert_allclose(
                result.astype(np.float64),
                wanted.astype(np.float64),
                rtol=0 if whole else tolerance,
                atol=(tolerance if tolerance >= 1 else 0) if whole else tolerance,
            )


def recorded_types(blob: Blob) -> list[int]:
    """ONNX's element types of the outputs that the blob records."""
    values = [blob.values[i] for i in blob.outputs]
    return [ELEMENTS[v.datatype] if isinstance(v, VkTensor) else int(onnx.TensorProto.INT64) for v in values]
