"""Converts ONNX Runtime's graphs to vkep's: nodes, inputs, and weights that are not copied."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from vkep import dtypes
from vkep.graph.files import ExternalPart
from vkep.graph.load import read_graph
from vkep.graph.model import Dim, Graph, Node, ValueInfo
from vkep.graph.weights import ArrayWeight, Content, Weight
from vkep.ort.boundary import NULL, OrtError, ffi, lib
from vkep.ort.memory.tensors import describe, shape_of, tensor_array
from vkep.placement.inlined import rename
from vkep.placement.repeats import repeats_rows

if TYPE_CHECKING:
    from vkep.ort.api import Ort
    from vkep.ort.graphs.overrides import Overrides

logger = logging.getLogger("vkep.ort")
_INT, _INTS, _FLOAT, _FLOATS, _STRING, _STRINGS, _GRAPH, _TENSOR = 1, 2, 3, 4, 5, 6, 7, 8  # OrtOpAttrType


#: the names of a node's inputs and of its outputs
_Links = tuple[tuple[str, ...], tuple[str, ...]]
#: domain of nodes whose bodies ONNX Runtime runs (If, Loop, Scan), or whose attributes cannot be read
OPAQUE = "vkep.ort.opaque"
#: nodes with bodies, and the inputs that ONNX Runtime's implementations read on the host
CONTROL_HOST_INPUTS = {"If": (0,), "Loop": (0, 1), "Scan": ()}


class OrtWeight(Weight):
    """A constant initializer in ONNX Runtime's memory, copied at its first use.

    ONNX Runtime frees its own copy when the session has been created. Before that the owner calls `detach` to keep the
    weight or not.
    """

    def __init__(self, name: str, tensor: Any) -> None:
        super().__init__(name, shape_of(tensor), tensor.type)
        self._tensor: Any = tensor
        self._array: np.ndarray | None = None

    def array(self) -> np.ndarray:
        if self._array is None:
            if self._tensor is None:
                raise AssertionError(f"weight {self.name!r} is asked for after ONNX Runtime dropped it")
            self._array = tensor_array(self._tensor)
            self._tensor = None
        return self._array

    def detach(self, *, keep: bool) -> None:
        """ONNX Runtime's memory is about to be freed; with ``keep`` copy it first."""
        if keep and self._tensor is not None:
            self.array()
        self._tensor = None


class FileWeight(Weight):
    """A constant initializer in an external data file, which stays open and is read on each use."""

    in_file = True

    def __init__(self, name: str, shape: tuple[int, ...], dtype: dtypes.DType, path: Path, offset: int) -> None:
        super().__init__(name, shape, dtype.onnx)
        self._content = ExternalPart.of(path, path.stat(), offset, self.nbytes)
        self._numpy = dtype.numpy

    def array(self) -> np.ndarray:
        return self._content().view(self._numpy).reshape(self.shape)

    @property
    def stored(self) -> Content:
        return self._content


class OrtGraphView:
    """One OrtGraph: ``graph`` is vkep's view of it, ``pointers`` its OrtNodes by the name of their first output.

    ``graph.inputs`` are all values that the nodes read and that are neither computed by them nor constants (including
    values of an outer graph). ``graph.weights`` also has the constants of bodies, under names of their own.
    """

    def __init__(
        self,
        ort: Ort,
        pointer: Any,
        overrides: Overrides,
        known: Mapping[tuple[str, ...], Node] | None = None,
        *,
        takes: Callable[[OrtGraphView], bool] = lambda body: True,
    ) -> None:
        """``overrides``: the initializers that the session's options replace. ``known``: nodes that were read from this graph
        before, by their outputs; where all of its nodes are among them, they are not read again. ``takes``: whether vkep can
        run a body; an If, Loop or Scan whose bodies it can run has them, another one is opaque."""
        self.ort, self.pointer, self._overrides, self._takes = ort, pointer, overrides, takes
        self.inner: dict[str, Weight] = {}  #: the constants of bodies, by the names that they have here
        api = ort.api
        self.ir_version = ort.get(api.Graph_GetOnnxIRVersion, "int64_t", pointer)
        self.opsets = self._opsets()
        path = ort.text(api.Graph_GetModelPath, pointer)
        self.folder = Path(path).parent if path else None
        self._parent = ort.get(api.Graph_GetParentNode, "OrtNode const *", pointer)
        self._infos: dict[str, Any] = {}
        self._elem_types: dict[str, int] = {}
        nodes = ort.items(api.Graph_GetNumNodes, api.Graph_GetNodes, "OrtNode const *", pointer)
        links = [self._links(node) for node in nodes]
        self.pointers: dict[str, Any] = {
            next(o for o in made if o): node for node, (_, made) in zip(nodes, links, strict=True)
        }
        self.outputs = [
            self._name(v)
            for v in ort.items(api.Graph_GetNumOutputs, api.Graph_GetOutputs, "OrtValueInfo const *", pointer)
        ]
        read = (self._known(nodes, links, known) if known else None) or self._read(nodes, links)
        weights, inputs = self._starts(read)
        outputs = tuple(self.value_info(n) for n in self.outputs if n in self._infos)
        self.graph: Graph = dataclasses.replace(
            read, weights={**weights, **read.weights}, inputs=inputs, outputs=outputs
        )

    def pointer_of(self, node: Node) -> Any:
        """ONNX Runtime's node for a node of `graph`."""
        return self.pointers[next(o for o in node.outputs if o)]

    @property
    def in_body(self) -> bool:
        """Whether this is the body of a node of another graph."""
        return bool(self._parent != NULL)

    @property
    def parent(self) -> int:
        """The address of the node whose body this is; 0 for the model's graph."""
        return int(ffi.cast("uintptr_t", self._parent))

    @property
    def is_run_by_its_node(self) -> bool:
        """Whether this is a body of an If, Loop or Scan that vkep can run whole: then the node is claimed, not what is in it."""
        return self.in_body and self._bodies_of(self._parent) is not None

    @property
    def declared(self) -> Graph:
        """`graph` with the inputs and outputs that it declares."""
        inputs, outputs = (tuple(map(self.value_info, names)) for names in (self.formal_inputs, self.outputs))
        return dataclasses.replace(self.graph, inputs=inputs, outputs=outputs)

    @property
    def has_own_driver(self) -> bool:
        """Whether this is the body of an operator other than ONNX's If, Loop and Scan, which executes it itself
        (BeamSearch)."""
        return self.in_body and bool(self.ort.text(self.ort.api.Node_GetDomain, self._parent))

    @property
    def identity(self) -> bytes:
        """The same for views of one graph, which ONNX Runtime makes for each call."""
        nodes = self.proto.SerializeToString(deterministic=True)
        return hashlib.sha256(nodes + repr((self.graph.inputs, self.outputs)).encode()).digest()

    @property
    def is_expanded_later(self) -> bool:
        """Whether this is the body of a function (SequenceMap), which ONNX Runtime replaces by its definition and
        partitions again; fused nodes in it would be lost."""
        if not self.in_body:
            return False
        ort, api = self.ort, self.ort.api
        op_type, domain = ort.text(api.Node_GetOperatorType, self._parent), ort.text(api.Node_GetDomain, self._parent)
        version = ort.get(api.Node_GetSinceVersion, "int", self._parent)
        if not onnx.defs.has(op_type, domain):
            return False
        schema = onnx.defs.get_schema(op_type, version, domain)
        kinds = ("has_function", "has_context_dependent_function")  # properties that onnx's stubs lack
        return any(getattr(schema, kind) for kind in kinds)

    @property
    def formal_inputs(self) -> list[str]:
        """The names that the graph itself declares as inputs."""
        api, kind = self.ort.api, "OrtValueInfo const *"
        return [self._name(v) for v in self.ort.items(api.Graph_GetNumInputs, api.Graph_GetInputs, kind, self.pointer)]

    def value_info(self, name: str) -> ValueInfo:
        """The type and shape that ONNX Runtime knows of a value."""
        ort, api = self.ort, self.ort.api
        tensor = self._tensor(self._infos[name])
        if tensor == NULL:
            return ValueInfo(name, 0, None)
        elem_type = self.elem_type(name)
        if not api.TensorTypeAndShape_HasShape(tensor):
            return ValueInfo(name, elem_type, None)
        rank = ort.get(api.GetDimensionsCount, "size_t", tensor)
        sizes, symbols = ffi.new("int64_t[]", rank or 1), ffi.new("char const *[]", rank or 1)
        ort.check(api.GetDimensions(tensor, sizes, rank))
        ort.check(api.GetSymbolicDimensions(tensor, symbols, rank))
        dims: list[Dim] = []
        for i in range(rank):
            symbol = "" if symbols[i] == NULL else ffi.string(symbols[i]).decode()
            dims.append(sizes[i] if sizes[i] >= 0 else symbol or None)
        return ValueInfo(name, elem_type, tuple(dims))

    def elem_type(self, name: str) -> int:
        """The element type of `value_info`."""
        found = self._elem_types.get(name)
        if found is None:
            found = self._elem_types[name] = self._elem_type_of(self._infos[name])
        return found

    # ---- reading

    def _tensor(self, info: Any) -> Any:
        ort, api = self.ort, self.ort.api
        kind = ort.get(api.GetValueInfoTypeInfo, "OrtTypeInfo const *", info)
        if kind == NULL:
            return NULL
        return ort.get(api.CastTypeInfoToTensorInfo, "OrtTensorTypeAndShapeInfo const *", kind)

    def _elem_type_of(self, info: Any) -> int:
        tensor = self._tensor(info)
        found = 0 if tensor == NULL else self.ort.get(self.ort.api.GetTensorElementType, "int", tensor)
        return int(lib.vkep_onnx_type(found))

    def _links(self, pointer: Any) -> _Links:
        """The names of a node's inputs and outputs."""
        ort, api, kind = self.ort, self.ort.api, "OrtValueInfo const *"
        inputs = ort.items(api.Node_GetNumInputs, api.Node_GetInputs, kind, pointer)
        outputs = ort.items(api.Node_GetNumOutputs, api.Node_GetOutputs, kind, pointer)
        return tuple(map(self._name, inputs)), tuple(map(self._name, outputs))

    def _known(
        self, pointers: Sequence[Any], links: Sequence[_Links], known: Mapping[tuple[str, ...], Node]
    ) -> Graph | None:
        nodes: list[Node] = []
        for pointer, (inputs, outputs) in zip(pointers, links, strict=True):
            node = known.get(outputs)
            if node is None or node.inputs != inputs:
                return None
            if node.op_type != self.ort.text(self.ort.api.Node_GetOperatorType, pointer):
                return None
            if node.bodies:  # the constants in them are ONNX Runtime's, too, and may have moved
                (node,) = self._read([pointer], [(inputs, outputs)]).nodes
            nodes.append(dataclasses.replace(node, index=len(nodes)))
        return Graph("", tuple(nodes), (), (), {})

    def _read(self, pointers: Sequence[Any], links: Sequence[_Links]) -> Graph:
        proto = self.proto = onnx.GraphProto()
        for pointer, (inputs, outputs) in zip(pointers, links, strict=True):
            self._node(pointer, proto.node.add(input=inputs, output=outputs))
        return read_graph(proto, self.opsets, None, self.ir_version, "", check_nodes=False)

    def _opsets(self) -> dict[str, int]:
        ort, api = self.ort, self.ort.api
        count = ort.get(api.Graph_GetNumOperatorSets, "size_t", self.pointer)
        domains, versions = ffi.new("char const *[]", count or 1), ffi.new("int64_t[]", count or 1)
        ort.check(api.Graph_GetOperatorSets(self.pointer, domains, versions, count))
        found = {ffi.string(domains[i]).decode(): int(versions[i]) for i in range(count)}
        return {("" if d == "ai.onnx" else d): v for d, v in found.items()}

    def _name(self, info: Any) -> str:
        if info == NULL:
            return ""
        name = self.ort.text(self.ort.api.GetValueInfoName, info)
        if name:
            self._infos.setdefault(name, info)
        return name

    def _node(self, pointer: Any, proto: onnx.NodeProto) -> None:
        ort, api = self.ort, self.ort.api
        proto.name = ort.text(api.Node_GetName, pointer)
        proto.op_type = ort.text(api.Node_GetOperatorType, pointer)
        proto.domain = ort.text(api.Node_GetDomain, pointer)
        attributes = ort.items(api.Node_GetNumAttributes, api.Node_GetAttributes, "OrtOpAttr const *", pointer)
        unread = [attribute for attribute in attributes if not read_attribute(ort, attribute, proto)]
        if not self._add_bodies(pointer, proto) or unread:
            proto.domain = OPAQUE  # ONNX Runtime runs it: the placeholder must not be inspected

    def _add_bodies(self, pointer: Any, node: onnx.NodeProto) -> bool:
        """Add a node's bodies. Returns whether vkep can run them: else they are placeholders that read the same values."""
        ort, api = self.ort, self.ort.api
        kind = "OrtValueInfo const *"
        implicit = ort.items(api.Node_GetNumImplicitInputs, api.Node_GetImplicitInputs, kind, pointer)
        outer = [self._name(info) for info in implicit]
        names = [name for name, _ in subgraphs(ort, pointer)]
        found = self._bodies_of(pointer) if names else {}
        for index, name in enumerate(names):
            body = node.attribute.add(name=name, type=onnx.AttributeProto.GRAPH).g
            if found is not None:
                self.inner.update(found[name].as_body(body, f"{next(o for o in node.output if o)}/{name}/", outer))
            else:
                body.name = f"body {index}"
                for position, read in enumerate(outer):
                    body.node.add(op_type="Identity", input=[read], output=[f"read {index} {position}"])
        return found is not None

    def _bodies_of(self, pointer: Any) -> dict[str, OrtGraphView] | None:
        """The bodies of an If, Loop or Scan by attribute name; None where vkep cannot run one of them, or not the node."""
        ort, api, kind = self.ort, self.ort.api, "OrtValueInfo const *"
        op_type = ort.text(api.Node_GetOperatorType, pointer)
        if op_type not in CONTROL_HOST_INPUTS or ort.text(api.Node_GetDomain, pointer):
            return None
        around = ort.items(api.Node_GetNumInputs, api.Node_GetInputs, kind, pointer)
        around += ort.items(api.Node_GetNumOutputs, api.Node_GetOutputs, kind, pointer)
        around += ort.items(api.Node_GetNumImplicitInputs, api.Node_GetImplicitInputs, kind, pointer)
        tensors = all(_is_whole_bytes(self._elem_type_of(info)) for info in around if info != NULL)
        if not tensors and op_type != "Loop":
            return None
        found: dict[str, OrtGraphView] = {}
        for name, graph in subgraphs(ort, pointer):
            body = found[name] = OrtGraphView(ort, graph, self._overrides, takes=self._takes)
            if not tensors:  # no step of the loop runs
                return found if repeats_rows(body.declared) else None
            borders = [*body.formal_inputs, *body.outputs]
            if not all(_is_whole_bytes(body.elem_type(n)) for n in borders) or not self._takes(body):
                return None
        return found

    def as_body(self, body: onnx.GraphProto, prefix: str, outer: Sequence[str]) -> dict[str, Weight]:
        """Write the graph to ``body``; returns its constants, which get names with ``prefix`` and become values of the outer
        graph, as those named ``outer`` are."""
        weights = self.graph.weights
        names = {name: prefix + name for name in weights if name not in outer}
        body.CopyFrom(self.proto)
        body.name = prefix
        body.input.extend(_declared(self.value_info(n)) for n in self.formal_inputs if n not in weights)
        body.output.extend(
            _declared(dataclasses.replace(self.value_info(n), name=names.get(n, n))) for n in self.outputs
        )
        for node in body.node:
            rename(node, names)
        return {other: weights[name] for name, other in names.items()}

    def _starts(self, graph: Graph) -> tuple[Mapping[str, Weight], tuple[ValueInfo, ...]]:
        """Constants and inputs: values that the nodes read and do not compute."""
        made = {o for node in graph.nodes for o in node.outputs} | set(graph.weights)
        weights: dict[str, Weight] = {}
        inputs: dict[str, ValueInfo] = {}
        for name in [*(n for node in graph.nodes for n in node.reads), *self.outputs]:
            if name in self.inner:
                weights[name] = self.inner[name]
                continue
            if name in made or name in weights or name in inputs or name not in self._infos:
                continue
            info = self._infos[name]
            constant = self.ort.get(self.ort.api.ValueInfo_IsConstantInitializer, "_Bool", info)
            weight = self._weight(name, info) if constant else None
            if weight is not None:
                weights[name] = weight
            else:
                inputs[name] = self.value_info(name)
        return weights, tuple(inputs.values())

    def _weight(self, name: str, info: Any) -> Weight | None:
        """A constant; None where ONNX Runtime does not give its value: a run then reads it as an input."""
        ort, api = self.ort, self.ort.api
        in_file = None if name in self._overrides else self._weight_in_file(name, info)
        if in_file is not None:
            return in_file
        try:
            value = ort.get(api.ValueInfo_GetInitializerValue, "OrtValue const *", info)
        except OrtError as error:  # an outer weight that a body reads from a file
            logger.info("the constant %r is read as an input: %s", name, str(error))
            return None
        if value == NULL:
            return None
        tensor = describe(ort, value)
        if name in self._overrides:
            return ArrayWeight(name, self._overrides.value(name, tensor.type, shape_of(tensor)))
        return OrtWeight(name, tensor)

    def _weight_in_file(self, name: str, info: Any) -> FileWeight | None:
        """A constant that lies in a file of its own, by what the graph declares of it: ONNX Runtime has no value of an
        outer constant for the body of an If, Loop or Scan."""
        api = self.ort.api
        external = self.ort.get(api.ValueInfo_GetExternalInitializerInfo, "OrtExternalInitializerInfo *", info)
        if external == NULL:
            return None
        try:
            path = Path(ffi.string(api.ExternalInitializerInfo_GetFilePath(external)).decode())
            offset = api.ExternalInitializerInfo_GetFileOffset(external)
        finally:
            api.ReleaseExternalInitializerInfo(external)
        if not path.is_absolute() and self.folder is not None:
            path = self.folder / path
        declared = self.value_info(name)
        dtype = dtypes.from_onnx(declared.elem_type)
        shape = declared.static_shape
        if dtype is None or dtype.sub_byte_bits or shape is None or 0 in shape or not path.is_file():
            return None
        return FileWeight(name, shape, dtype, path, offset)


def subgraphs(ort: Ort, node: Any) -> list[tuple[str, Any]]:
    """The bodies of an OrtNode, as OrtGraphs, with their attributes' names."""
    api = ort.api
    count = ort.get(api.Node_GetNumSubgraphs, "size_t", node)
    graphs, names = ffi.new("OrtGraph const *[]", count or 1), ffi.new("char const *[]", count or 1)
    ort.check(api.Node_GetSubgraphs(node, graphs, count, names))
    return [(ffi.string(names[i]).decode(), graphs[i]) for i in range(count)]


def _is_whole_bytes(elem_type: int) -> bool:
    """Whether values of the type are tensors of numbers that ONNX Runtime does not pack."""
    dtype = dtypes.from_onnx(elem_type)
    return dtype is not None and not dtype.sub_byte_bits


def _declared(info: ValueInfo) -> onnx.ValueInfoProto:
    return onnx.helper.make_tensor_value_info(info.name, info.elem_type, info.shape)


_PROTO_TYPES = {
    _INT: onnx.AttributeProto.INT,
    _INTS: onnx.AttributeProto.INTS,
    _FLOAT: onnx.AttributeProto.FLOAT,
    _FLOATS: onnx.AttributeProto.FLOATS,
    _STRING: onnx.AttributeProto.STRING,
    _STRINGS: onnx.AttributeProto.STRINGS,
    _TENSOR: onnx.AttributeProto.TENSOR,
}


def read_attribute(ort: Ort, pointer: Any, node: onnx.NodeProto) -> bool:
    """Read one attribute; False for types that the interface does not support (types, sparse tensors) or no kernel
    reads (texts)."""
    api = ort.api
    try:
        kind = ort.get(api.OpAttr_GetType, "int", pointer)
    except OrtError:
        return False
    if kind == _GRAPH:
        return True  # read by `OrtGraphView`
    proto = node.attribute.add(name=ort.text(api.OpAttr_GetName, pointer), type=_PROTO_TYPES[kind])
    if kind == _TENSOR:
        value = ort.get(api.OpAttr_GetTensorAttributeAsOrtValue, "OrtValue *", pointer)
        try:
            tensor = describe(ort, value)
            if dtypes.from_onnx(tensor.type) is None:
                return False
            array = tensor_array(tensor)
        finally:
            api.ReleaseValue(value)
        proto.t.CopyFrom(onnx.numpy_helper.from_array(array))
        return True
    data = _attribute_bytes(ort, pointer, kind)
    if kind == _STRING:
        proto.s = data
    elif kind == _STRINGS:
        proto.strings.extend(data.split(b"\0")[:-1])
    elif kind in (_INT, _INTS):
        numbers = np.frombuffer(data, np.int64).tolist()
        if kind == _INT:
            proto.i = numbers[0]
        else:
            proto.ints.extend(numbers)
    else:
        reals = np.frombuffer(data, np.float32).tolist()
        if kind == _FLOAT:
            proto.f = reals[0]
        else:
            proto.floats.extend(reals)
    return True


def _attribute_bytes(ort: Ort, pointer: Any, kind: int) -> bytes:
    """The bytes of an attribute; a first call with too little memory returns their number."""
    api = ort.api
    needed = ffi.new("size_t *")
    status = api.ReadOpAttr(pointer, kind, NULL, 0, needed)
    if status != NULL:
        api.ReleaseStatus(status)
    if not needed[0]:
        return b""
    buffer = ffi.new("char[]", needed[0])
    ort.check(api.ReadOpAttr(pointer, kind, buffer, needed[0], needed))
    return bytes(ffi.buffer(buffer, needed[0]))
