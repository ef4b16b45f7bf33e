"""Type and shape inference of a node's outputs by ONNX, from what is known of its inputs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import onnx

from vkep import dtypes
from vkep.dtypes import DType
from vkep.graph.model import Node
from vkep.graph.weights import ArrayWeight, SizesWeight, Weight
from vkep.ir.program import HostValue, ValueSpec
from vkep.sizes import fixed, is_size

_Type = TypeVar("_Type")
Known = Weight | ValueSpec | HostValue
#: contents of constants up to this size take part in inference
_LARGEST_DATA = 1 << 16
#: largest number of elements of a value whose content may be sizes
_MOST_SIZES = 16
#: why a size is fixed
_BY_ONNX = "onnx's inference of shapes, for nodes on the CPU, takes numbers"


def infer(node: Node, known: Mapping[str, Known], opsets: Mapping[str, int]) -> list[ValueSpec | None]:
    """Infer types and shapes of a node's outputs; None where ONNX cannot."""
    nothing: list[ValueSpec | None] = [None] * len(node.outputs)
    if node.schema is None:
        return nothing
    types, data = {}, {}
    for name in node.reads:
        value = known[name]
        if isinstance(value, SizesWeight):
            value = value.fixed(_BY_ONNX)
        dtype = dtype_of(value)
        if dtype is None or isinstance(value, HostValue):
            return nothing
        types[name] = onnx.helper.make_tensor_type_proto(
            dtype.onnx, tuple([fixed(dim, _BY_ONNX) for dim in value.shape])
        )
        if isinstance(value, Weight) and value.nbytes <= _LARGEST_DATA:
            data[name] = onnx.numpy_helper.from_array(value.array(), name)
    try:
        inferred = onnx.shape_inference.infer_node_outputs(
            node.schema,
            node.proto,
            types,
            data,
            opset_imports=[onnx.helper.make_opsetid(d, v) for d, v in opsets.items()],
        )
    except Exception:  # inference is optional: without it the rest is planned once the values are known
        return nothing
    return [_spec(inferred.get(name)) for name in node.outputs]


def tied_types(node: Node, types: Sequence[_Type | None]) -> dict[int, _Type]:
    """The element types of the outputs, by index, that the operator's schema ties to the type of an input."""
    assert node.schema is not None
    takes, makes = node.schema.inputs, node.schema.outputs
    bound: dict[str, _Type] = {}
    for k, kind in enumerate(types):
        if kind is not None:
            bound.setdefault(takes[min(k, len(takes) - 1)].type_str, kind)
    names = [makes[min(k, len(makes) - 1)].type_str for k in range(len(node.outputs))]
    return {k: bound[name] for k, name in enumerate(names) if name in bound}


def may_be_sizes(dtype: DType, size: int) -> bool:
    """Whether the content of a value may be a plan's sizes: a shape, a length, axes."""
    return dtype.name in ("int64", "int32") and size <= _MOST_SIZES


def dtype_of(value: Known) -> DType | None:
    """The element type of a value; None unless it is a tensor that a device can hold."""
    if isinstance(value, HostValue):
        return None
    return value.dtype if isinstance(value, ValueSpec) else dtypes.from_onnx(value.elem_type)


def shape_of(node: Node, name: str, shape: tuple[int, ...]) -> Weight:
    """The result ``name`` of Shape or Size, from the shape of its input."""
    if node.op_type == "Size":
        return sizes_weight(name, math.prod(shape), ())
    part = shape[node.attributes.get("start", 0) : node.attributes.get("end")]
    return sizes_weight(name, part, (len(part),))


def sizes_weight(name: str, numbers: Any, shape: tuple[int, ...], elem_type: int = onnx.TensorProto.INT64) -> Weight:
    """A constant of numbers (one, or a sequence); symbolic where one depends on a run's sizes."""
    flat = np.empty(math.prod(shape), object)
    flat[:] = [numbers] if not shape else list(numbers)
    if any(map(is_size, flat)):
        return SizesWeight(name, flat.reshape(shape), elem_type)
    dtype = dtypes.from_onnx(elem_type)
    assert dtype is not None
    return ArrayWeight(name, flat.astype(dtype.numpy).reshape(shape))


def _spec(type_proto: onnx.TypeProto | None) -> ValueSpec | None:
    if type_proto is None or not type_proto.HasField("tensor_type") or not type_proto.tensor_type.HasField("shape"):
        return None
    dtype = dtypes.from_onnx(type_proto.tensor_type.elem_type)
    dims = type_proto.tensor_type.shape.dim
    if dtype is None or not all(d.HasField("dim_value") for d in dims):
        return None
    return ValueSpec(dtype, tuple(int(d.dim_value) for d in dims))
