"""Schemas of user-declared operators (`vkep.ops.operator`) for ONNX Runtime, which would otherwise refuse a model that
uses them.

ONNX Runtime receives only the schemas: vkep claims the nodes like any others and runs them by its own plans.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import onnx

from gpu_shared.capabilities import DeviceCapabilities
from vkep import dtypes
from vkep.dtypes import DType
from vkep.errors import Decline
from vkep.graph.load import read_graph
from vkep.ir.builder import Builder
from vkep.ir.tensor import Storage, Tensor
from vkep.ops import registry
from vkep.ort.api import Ort
from vkep.ort.boundary import CStruct, OrtError, ffi, lib, status, value
from vkep.ort.graphs.convert import read_attribute
from vkep.ort.names import EP_NAME, users_operators
from vkep.ort.nodes.kernels import ELEMENT_TYPES
from vkep.placement.nodes import lower_node

logger = logging.getLogger("vkep.ort")

_ANY_TYPE = 0  # ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED
_REQUIRED, _OPTIONAL, _VARIADIC = 0, 1, 2  # OrtCustomOpInputOutputCharacteristic
_NO_END = 2**31 - 1
#: two sizes for axes of unknown size: an axis of a result that has the same size for both has that size
_SAMPLES = (4, 3)
_names = itertools.count()


class Inference:
    """A request of ONNX Runtime for the types and shapes of one node's results."""

    def __init__(self, ort: Ort, context: Any) -> None:
        self._ort, self._context = ort, context

    def results(
        self, definition: registry.OperatorDef, caps: DeviceCapabilities
    ) -> list[tuple[DType, list[int | None]]]:
        """Type and shape of each result, with None for an axis that depends on sizes which the model leaves open. Empty
        where the operator declines."""
        opsets = {definition.domain: definition.since}
        proto = onnx.NodeProto(op_type=definition.op_type, domain=definition.domain)
        self._attributes(definition, proto)
        [node] = read_graph(onnx.GraphProto(node=[proto]), opsets, None, onnx.IR_VERSION, "").nodes
        found = []
        for size in _SAMPLES:
            inputs = self._inputs(size)
            builder = Builder(caps)
            try:
                results = lower_node(builder, node, inputs, opsets)
            except Decline as decline:
                title = f"{definition.domain}.{definition.op_type}"
                logger.warning(
                    "what %s gives for %s is not told to ONNX Runtime: %s",
                    title,
                    list(map(str, inputs)),
                    decline.reason,
                )
                return []
            found.append([(result.dtype, result.shape) for result in results])
        first, second = found
        return [
            (dtype, [a if a == b else None for a, b in zip(shape, other, strict=True)])
            for (dtype, shape), (_, other) in zip(first, second, strict=True)
        ]

    def _inputs(self, size: int) -> list[Tensor | None]:
        ort, api = self._ort, self._ort.api
        inputs: list[Tensor | None] = []
        for index in range(ort.get(api.ShapeInferContext_GetInputCount, "size_t", self._context)):
            info = ort.get(api.ShapeInferContext_GetInputTypeShape, "OrtTensorTypeAndShapeInfo *", self._context, index)
            dtype = dtypes.from_onnx(lib.vkep_onnx_type(ort.get(api.GetTensorElementType, "int", info)))
            dims = ffi.new("int64_t[]", max(ort.get(api.GetDimensionsCount, "size_t", info), 1))
            rank = ort.get(api.GetDimensionsCount, "size_t", info)
            ort.check(api.GetDimensions(info, dims, rank))
            if dtype is None:
                raise Decline(f"input {index} has a type that no kernel takes")
            shape = tuple(dims[k] if dims[k] >= 0 else size for k in range(rank))
            inputs.append(Tensor.contiguous(dtype, shape, Storage(math.prod(shape) * dtype.itemsize, port=index)))
        return inputs

    def _attributes(self, definition: registry.OperatorDef, proto: onnx.NodeProto) -> None:
        ort, api = self._ort, self._ort.api
        for name in definition.signature.attributes:
            with suppress(OrtError):  # the node does not have the attribute
                found = ort.get(api.ShapeInferContext_GetAttribute, "OrtOpAttr const *", self._context, name.encode())
                read_attribute(ort, found, proto)

    def tell(self, index: int, dtype: DType, shape: Sequence[int | None]) -> None:
        """Set the type and shape of one result."""
        ort, api = self._ort, self._ort.api
        info = ort.get(api.CreateTensorTypeAndShapeInfo, "OrtTensorTypeAndShapeInfo *")
        try:
            ort.check(api.SetTensorElementType(info, ELEMENT_TYPES[dtype.name]))
            ort.check(api.SetDimensions(info, [-1 if size is None else size for size in shape], len(shape)))
            names = [ffi.new("char[]", b"" if size is not None else f"open {next(_names)}".encode()) for size in shape]
            ort.check(api.SetSymbolicDimensions(info, names, len(shape)))
            ort.check(api.ShapeInferContext_SetOutputTypeShape(self._context, index, info))
        finally:
            api.ReleaseTensorTypeAndShapeInfo(info)


class CustomOperator(CStruct, struct="OrtCustomOp"):
    """The schema of one declared operator: its inputs, of any type, and any number of outputs."""

    def __init__(self, ort: Ort, definition: registry.OperatorDef, caps: DeviceCapabilities) -> None:
        self.definition, self._ort, self._caps = definition, ort, caps
        self._name = ffi.new("char[]", definition.op_type.encode())
        self._provider = ffi.new("char[]", EP_NAME.encode())
        super().__init__()

    @value(ffi.NULL)
    def GetName(self) -> Any:
        return self._name

    @value(ffi.NULL)
    def GetExecutionProviderType(self) -> Any:
        return self._provider

    @value(0)
    def GetInputTypeCount(self) -> int:
        signature = self.definition.signature
        return len(signature.inputs) + signature.variadic

    @value(_ANY_TYPE)
    def GetInputType(self, index: int) -> int:
        return _ANY_TYPE

    @value(_REQUIRED)
    def GetInputCharacteristic(self, index: int) -> int:
        signature = self.definition.signature
        if index == len(signature.inputs):
            return _VARIADIC
        return _REQUIRED if signature.needed[index] else _OPTIONAL

    @value(0)
    def GetInputMemoryType(self, index: int) -> int:
        return 0  # OrtMemTypeDefault: the provider's memory

    @value(1)
    def GetOutputTypeCount(self) -> int:
        return 1

    @value(_ANY_TYPE)
    def GetOutputType(self, index: int) -> int:
        return _ANY_TYPE

    @value(_VARIADIC)
    def GetOutputCharacteristic(self, index: int) -> int:
        return _VARIADIC

    @value(1)
    def GetVariadicInputMinArity(self) -> int:
        return 1

    @value(0)
    def GetVariadicInputHomogeneity(self) -> int:
        return 0

    @value(1)
    def GetVariadicOutputMinArity(self) -> int:
        return 1

    @value(0)
    def GetVariadicOutputHomogeneity(self) -> int:
        return 0

    @value(1)
    def GetStartVersion(self) -> int:
        return self.definition.since

    @value(_NO_END)
    def GetEndVersion(self) -> int:
        return self.definition.until or _NO_END

    @status
    def InferOutputShapeFn(self, context: Any) -> None:
        inference = Inference(self._ort, context)
        for index, (dtype, shape) in enumerate(inference.results(self.definition, self._caps)):
            inference.tell(index, dtype, shape)

    @status
    def CreateKernelV2(self, api: Any, info: Any, kernel: Any) -> None:
        definition = self.definition
        raise NotImplementedError(
            f"{definition.domain}.{definition.op_type} is computed on Vulkan alone, which declined this node: the logger "
            "vkep.ort says why at level INFO, and fallback=error says it here"
        )


class CustomDomains:
    """The domains of the operators that are declared when ONNX Runtime asks. They exist until the process ends, since
    sessions refer to them."""

    def __init__(self, ort: Ort, caps: DeviceCapabilities) -> None:
        """``caps``: the device for which operators are tried to infer their results."""
        self._ort, self._caps = ort, caps
        self._domains: dict[str, Any] = {}
        self._given: set[registry.OperatorDef] = set()

    def all(self) -> list[Any]:
        """OrtCustomOpDomain pointers, one for each domain."""
        for definition in users_operators():
            if definition not in self._given:
                self._add(definition)
        return list(self._domains.values())

    def add_to(self, options: Any) -> None:
        """Add the domains to session options (OrtSessionOptions)."""
        for domain in self.all():
            self._ort.check(self._ort.api.AddCustomOpDomain(options, domain))

    def _add(self, definition: registry.OperatorDef) -> None:
        ort, name = self._ort, definition.domain
        if name not in self._domains:
            self._domains[name] = ort.get(ort.api.CreateCustomOpDomain, "OrtCustomOpDomain *", name.encode())
        ort.check(ort.api.CustomOpDomain_Add(self._domains[name], CustomOperator(ort, definition, self._caps).pointer))
        self._given.add(definition)
