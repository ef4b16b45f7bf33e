"""vkep's operators as kernels of ONNX Runtime's registry: one node each, planned for each signature that occurs.

The entries are generated from vkep's operator registry: one for each version of the operator's schema, with the element
types that both the declaration and that version's schema allow. `kernels.check_against_schema` checks each against ONNX
Runtime's own schema before it is registered.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import numpy_helper

from vkep import dtypes
from vkep.graph.load import read_graph
from vkep.graph.model import Graph, Node, ValueInfo
from vkep.graph.weights import ArrayWeight, Weight
from vkep.ops import registry
from vkep.ort.boundary import NULL, CStruct, ffi, releases, status
from vkep.ort.graphs.convert import OrtGraphView
from vkep.ort.memory.allocator import array_of
from vkep.ort.memory.tensors import describe, tensor_array
from vkep.ort.nodes.fused import FusedNode
from vkep.ort.nodes.kernels import KernelEntry

if TYPE_CHECKING:
    from vkep.ort.api import Ort
    from vkep.ort.graphs.overrides import Overrides
    from vkep.ort.runtime import Runtime

logger = logging.getLogger("vkep.ort")

_Kind = onnx.defs.OpSchema.AttrType
#: the attribute types that ONNX Runtime's interface returns for a kernel's node (version 29 has no lists of texts)
_READABLE = {_Kind.FLOAT, _Kind.FLOATS, _Kind.INT, _Kind.INTS, _Kind.STRING, _Kind.TENSOR}
#: an IR version in which every attribute type of these nodes exists
_IR_VERSION = 8


@functools.cache
def operator_entries() -> tuple[KernelEntry, ...]:
    """An entry for each version of each of vkep's operators that has a schema and attributes that a kernel can read."""
    found = []
    for definition in registry.declared():
        for schema in registry.schema_versions(definition):
            if all(a.type in _READABLE for a in schema.attributes.values()):
                found.append(_entry(definition, schema))
    return tuple(found)


def _entry(definition: registry.OperatorDef, schema: onnx.defs.OpSchema) -> KernelEntry:
    constraints = {}
    for constraint in schema.type_constraints:
        declared = definition.types.get(constraint.type_param_str)
        if declared is not None:
            names = [n for n in declared if f"tensor({dtypes.DTYPES[n].onnx_name})" in constraint.allowed_type_strs]
            if names:
                constraints[constraint.type_param_str] = tuple(names)
    # sizes, axes and the like: planning needs their values
    host = tuple(i for i, formal in enumerate(schema.inputs) if formal.type_str == "tensor(int64)")
    return KernelEntry(
        definition.op_type, schema.since_version, constraints, domain=definition.domain, host_inputs=host
    )


def offer_kernels(
    ort: Ort, view: OrtGraphView, info: Any, islands: Sequence[Sequence[Node]]
) -> tuple[tuple[Node, ...], ...]:
    """Claim the nodes of islands one by one, for the registry's kernels; returns those without a kernel, which are then
    fused individually."""
    left = []
    for node in (n for nodes in islands for n in nodes):
        if has_kernel(ort, view, info, node):
            ort.check(ort.ep_api.EpGraphSupportInfo_AddSingleNode(info, view.pointer_of(node)))
        else:
            logger.debug("no kernel in the registry for %s (version %d)", node.title, node.since_version)
            left.append((node,))
    return tuple(left)


def has_kernel(ort: Ort, view: OrtGraphView, info: Any, node: Node) -> bool:
    """Whether the registry has a kernel for a node."""
    found = ort.get(ort.ep_api.EpGraphSupportInfo_LookUpKernel, "OrtKernelDef const *", info, view.pointer_of(node))
    return bool(found != NULL)


class OperatorKernel(CStruct, struct="OrtKernelImpl"):
    """One node of ONNX Runtime's graph as a fused node of one. Its constant inputs become part of the plan."""

    def __init__(self, ort: Ort, runtime: Runtime, overrides: Overrides, entry: KernelEntry, info: Any) -> None:
        api = ort.api
        proto = onnx.GraphProto()
        node = proto.node.add(
            op_type=entry.op_type, domain=entry.domain, name=_text(ort, api.KernelInfo_GetNodeName, info)
        )
        read_attributes(ort, info, onnx.defs.get_schema(entry.op_type, entry.since, entry.domain), node)
        weights: dict[str, Weight] = {}
        for index in range(ort.get(api.KernelInfo_GetInputCount, "size_t", info)):
            given = _text(ort, api.KernelInfo_GetInputName, info, index)
            name = f"input {index}" if given else ""
            node.input.append(name)
            constant = _constant(ort, info, index) if name else None
            if constant is not None and given in overrides:
                constant = overrides.value(given, dtypes.from_numpy(constant.dtype).onnx, constant.shape)
            if constant is not None:
                weights[name] = ArrayWeight(name, constant)
        for index in range(ort.get(api.KernelInfo_GetOutputCount, "size_t", info)):
            node.output.append(f"output {index}" if _text(ort, api.KernelInfo_GetOutputName, info, index) else "")
        opsets = {entry.domain: entry.since}
        read = read_graph(proto, opsets, None, _IR_VERSION, "")
        open_inputs = tuple(ValueInfo(n, 0, None) for n in node.input if n and n not in weights)
        graph = Graph(read.name, read.nodes, open_inputs, (), weights)
        self._node = FusedNode(
            runtime, graph, opsets, _IR_VERSION, list(node.input), list(node.output), name=node.name or entry.op_type
        )
        super().__init__()  # last: from here on ONNX Runtime holds it

    @status
    def Compute(self, context: Any) -> None:
        self._node.Compute(NULL, context)

    @releases
    def Release(self) -> None:
        self.release()

    def release(self) -> None:
        super().release()
        self._node.release()


def read_attributes(ort: Ort, info: Any, schema: onnx.defs.OpSchema, node: onnx.NodeProto) -> None:
    """Add those attributes of a kernel's node that its schema declares."""
    for name, spec in schema.attributes.items():
        content = _attribute(ort, info, name.encode(), spec.type)
        if content is not None:
            kind = int(spec.type.value)  # type: ignore[attr-defined]  # an enumeration, which the stubs do not say
            node.attribute.append(onnx.helper.make_attribute(name, content, attr_type=kind))


def _attribute(ort: Ort, info: Any, name: bytes, kind: Any) -> Any:
    """An attribute's content; None where the node does not have it."""
    api = ort.api
    if kind == _Kind.TENSOR:
        allocator = ort.get(api.GetAllocatorWithDefaultOptions, "OrtAllocator *")
        made = ffi.new("OrtValue **")
        if not _found(ort, api.KernelInfoGetAttribute_tensor(info, name, allocator, made)):
            return None
        try:
            return numpy_helper.from_array(tensor_array(describe(ort, made[0])))
        finally:
            api.ReleaseValue(made[0])
    if kind == _Kind.STRING:
        return _sized(ort, "char", functools.partial(api.KernelInfoGetAttribute_string, info, name), _decoded)
    if kind == _Kind.FLOATS:
        return _sized(ort, "float", functools.partial(api.KernelInfoGetAttributeArray_float, info, name), list)
    if kind == _Kind.INTS:
        return _sized(ort, "int64_t", functools.partial(api.KernelInfoGetAttributeArray_int64, info, name), list)
    function = api.KernelInfoGetAttribute_float if kind == _Kind.FLOAT else api.KernelInfoGetAttribute_int64
    out = ffi.new("float *" if kind == _Kind.FLOAT else "int64_t *")
    return out[0] if _found(ort, function(info, name, out)) else None


def _sized(ort: Ort, kind: str, read: Callable[[Any, Any], Any], convert: Callable[[Any], Any]) -> Any:
    """The result of a call that first returns the size; None where there is nothing."""
    size = ffi.new("size_t *")
    if not _found(ort, read(NULL, size)):
        return None
    buffer = ffi.new(f"{kind}[]", size[0]) if size[0] else ffi.new(f"{kind}[]", 1)
    if size[0]:
        ort.check(read(buffer, size))
    return convert(buffer[0 : size[0]])


def _decoded(text: Any) -> str:
    return b"".join(text).partition(b"\0")[0].decode()


def _text(ort: Ort, function: Any, info: Any, *args: Any) -> str:
    return str(_sized(ort, "char", functools.partial(function, info, *args), _decoded) or "")


def _found(ort: Ort, failed: Any) -> bool:
    """Whether a call succeeded; ONNX Runtime reports "no such attribute" as a failure."""
    if failed == NULL:
        return True
    ort.api.ReleaseStatus(failed)
    return False


def _constant(ort: Ort, info: Any, index: int) -> np.ndarray[Any, Any] | None:
    """The value of a constant input in any memory; None for other inputs."""
    is_constant, out = ffi.new("int *"), ffi.new("OrtValue const **")
    ort.check(ort.api.KernelInfoGetConstantInput_tensor(info, index, is_constant, out))
    if not is_constant[0] or out[0] == NULL:
        return None
    return array_of(describe(ort, out[0]))
