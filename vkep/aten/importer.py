"""Converts the graph of a Vulkan delegate to a model of ONNX nodes, which the compiler lowers like any other.

Tensor values become `Val`, scalars Python numbers; an integer that the model computes is an int64 scalar. Tensors that
an operator writes in place (caches) and that the delegate keeps between runs become inputs and outputs: states.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from onnx import TensorProto

from vkep.aten.builder import INT32, INT64, OPSETS, GraphBuilder, Val
from vkep.aten.registry import AtenOperator, find
from vkep.aten.states import find_states, is_prepack
from vkep.aten.weights import BufferWeight
from vkep.errors import Decline, InvalidPteError, UnsupportedProgramError
from vkep.graph.model import Dim, Graph, Model, Node, ValueInfo
from vkep.graph.weights import Weight
from vkep.pte.vk_graph import NamedData, OperatorCall, SymInt, ValueList, VkDataType, VkGraph, VkTensor

#: element types of the blob as ONNX numbers them
ELEMENTS = {
    VkDataType.BOOL: int(TensorProto.BOOL),
    VkDataType.UINT8: int(TensorProto.UINT8),
    VkDataType.INT8: int(TensorProto.INT8),
    VkDataType.INT32: INT32,
    VkDataType.FLOAT16: int(TensorProto.FLOAT16),
    VkDataType.FLOAT32: int(TensorProto.FLOAT),
    VkDataType.FLOAT64: int(TensorProto.DOUBLE),
    VkDataType.INT64: INT64,
}
_IR_VERSION = 11
#: operators whose trailing results may be left out
_OPTIONAL_RESULTS = ("LayerNormalization", "MaxPool")


@dataclass(frozen=True)
class Border:
    """How the program sees one argument of the delegate.

    ``elem_type`` (None: as in the blob) is an ONNX number; 64-bit integers are 32-bit ones inside the blob. ``dynamic``
    says that the sizes change from run to run. ``shape`` is the program's where it differs from the blob's: a shape of
    as many elements, or that of an integer that the program keeps in a tensor of one element.
    """

    elem_type: int | None = None
    dynamic: bool = False
    shape: tuple[int, ...] | None = None


@dataclass(frozen=True)
class State:
    """A tensor that the delegate keeps between runs: feed ``input`` (first ``initial``), keep ``output`` for the next."""

    input: str
    output: str
    initial: Weight


@dataclass(frozen=True)
class ImportedGraph:
    """The converted model. The inputs and outputs of ``model`` are the delegate's, in its order, then those of
    ``states``."""

    model: Model
    states: tuple[State, ...]


def unsupported_operators(graph: VkGraph) -> list[tuple[str, str]]:
    """List (operator's name, reason) for every operator in the graph that cannot be imported."""
    importer = _Importer(graph, None, None, None)
    importer.run()
    return importer.problems


def import_vk_graph(
    graph: VkGraph,
    named_data: NamedData,
    *,
    inputs: Sequence[Border] | None = None,
    outputs: Sequence[Border] | None = None,
    source: str = "a Vulkan delegate",
) -> ImportedGraph:
    """Convert the graph to a model. Its weights are views of ``named_data`` (bytes by key), keyed by content.

    ``inputs`` describe ``graph.input_ids``; ``outputs`` describe the last of ``graph.output_ids``: the ones before are
    the new values of states. Raises `UnsupportedProgramError`, which names every operator that is missing, and
    `InvalidPteError` for a broken graph.
    """
    if inputs is not None and len(inputs) != len(graph.input_ids):
        raise InvalidPteError(f"{source} has {len(graph.input_ids)} inputs, the program gives it {len(inputs)}")
    if outputs is not None and len(outputs) > len(graph.output_ids):
        raise InvalidPteError(f"{source} has {len(graph.output_ids)} outputs, the program takes {len(outputs)}")
    importer = _Importer(graph, named_data, inputs, outputs)
    importer.run()
    if importer.problems:
        missing = [f"{name}: {reason}" for name, reason in dict.fromkeys(importer.problems)]
        raise UnsupportedProgramError(
            f"{source} has {len(missing)} operators that vkep cannot run:\n  " + "\n  ".join(missing), missing
        )
    return importer.finish(source)


class _Importer:
    def __init__(
        self,
        graph: VkGraph,
        named_data: NamedData | None,
        inputs: Sequence[Border] | None,
        outputs: Sequence[Border] | None,
    ) -> None:
        self.graph, self.named_data = graph, named_data
        self.borders = (
            [Border()] * len(graph.input_ids) if inputs is None else list(inputs),
            [Border()] * len(graph.output_ids) if outputs is None else list(outputs),
        )
        self.b = GraphBuilder()
        self.env: dict[int, Any] = {}
        self.states = find_states(graph, len(self.borders[1]))
        self.inputs: list[ValueInfo] = []
        self.problems: list[tuple[str, str]] = []

    def run(self) -> None:
        for position, (value_id, border) in enumerate(zip(self.graph.input_ids, self.borders[0], strict=True)):
            self._input(position, value_id, border)
        for index, value_id in enumerate(self.states.outputs):
            tensor = self.graph.values[value_id]
            assert isinstance(tensor, VkTensor)
            value = Val(f"state_{index}", ELEMENTS[tensor.datatype], tensor.dims)
            self.inputs.append(ValueInfo(value.name, value.elem, tensor.dims))
            self.env[value_id] = value
        for index, call in enumerate(self.graph.chain):
            self._call(index, call)

    # ---- values

    def _input(self, position: int, value_id: int, border: Border) -> None:
        value, name = self.graph.values[value_id], f"input_{position}"
        self.b.where = "border"
        shape: tuple[Dim, ...]
        if isinstance(value, SymInt):
            outside = INT64 if border.elem_type is None else border.elem_type
            shape = border.shape or ()
            self.inputs.append(ValueInfo(name, outside, shape))
            given = self.b.cast(Val(name, outside, shape), INT64)
            self.env[value_id] = self.b.reshape(given, []) if shape else given
        elif isinstance(value, VkTensor):
            inside = ELEMENTS[value.datatype]
            staging = value.datatype if value.staging_datatype is VkDataType.UNSET else value.staging_datatype
            outside = ELEMENTS[staging] if border.elem_type is None else border.elem_type
            bounds = value.dims if border.shape is None else border.shape
            dims: tuple[int | None, ...] = (None,) * len(bounds) if border.dynamic else bounds
            self.inputs.append(ValueInfo(name, outside, dims))
            given = self.b.cast(Val(name, outside, dims, bounds=bounds), inside)
            self.env[value_id] = given if border.shape is None else self.b.reshape(given, value.dims)
        else:
            raise InvalidPteError(f"a Vulkan delegate's input {position} is no tensor and no integer: {value!r}")

    def _id(self, value_id: int) -> int:
        return self.states.id(value_id)

    def _value(self, value_id: int) -> Any:
        value_id = self._id(value_id)
        value = self.graph.values[value_id]
        if isinstance(value, ValueList):
            return [self._value(item) for item in value.items]
        if not isinstance(value, VkTensor | SymInt):
            return value
        if value_id not in self.env:
            if isinstance(value, SymInt) or value.constant_id < 0:
                raise InvalidPteError(f"a Vulkan delegate reads value {value_id}, which nothing made before")
            self.env[value_id] = self.b.weight(self._constant(value_id, value))
        return self.env[value_id]

    def _constant(self, value_id: int, tensor: VkTensor) -> Weight:
        view = memoryview(b"")
        if self.named_data is not None:
            view = self.graph.constant(tensor.constant_id, self.named_data)
        return BufferWeight(f"weight_{value_id}", tensor.dims, ELEMENTS[tensor.datatype], view)

    # ---- operators

    def _call(self, index: int, call: OperatorCall) -> None:
        operator = find(call.name)
        if is_prepack(call):
            return
        *given, out = call.args or (0,)
        arguments = [self._value(i) for i in given]
        target = self.graph.values[out]
        ids = list(target.items) if isinstance(target, ValueList) else [out]
        results = [self._recorded(i) for i in ids]
        self.b.where, self.b.results = f"{call.name}_{index}", [r for r in results if r is not None]
        written: list[int] = []
        made: list[Any]
        try:
            if operator is None:
                self.b.decline("vkep does not know this operator")
            written = [self._id(given[i]) for i, p in enumerate(operator.parameters) if p.name in operator.mutates]
            answer = operator.function(self.b, *_converted(operator, arguments))
            made = list(answer) if isinstance(answer, (list, tuple)) else [answer]
            if len(made) < len(ids) + len(written) and results[0] is not None:
                self.b.decline(f"{len(ids)} results are asked for, it has {len(made)}")
        except Decline as decline:
            self.problems.append((call.name, decline.reason))
            made = [*results, *(self.env.get(i) for i in written)]
        except (IndexError, ValueError, TypeError, ArithmeticError, AttributeError, AssertionError) as error:
            if isinstance(error, InvalidPteError):
                raise
            self.problems.append((call.name, f"its arguments do not fit: {type(error).__name__}: {error}"))
            made = [*results, *(self.env.get(i) for i in written)]
        # the blob records upper bounds of sizes: they are the sizes where nothing that the operator reads has a size
        # known only at run time
        exact = all(self._is_exact(i) for i in given)
        for value_id, result, record in zip(ids, made, results, strict=False):
            if record is not None:
                self.env[self._id(value_id)] = self._settled(result, record, exact)
        for value_id, result in zip(written, made[len(ids) :], strict=False):
            self.env[value_id] = result

    def _recorded(self, value_id: int) -> Val | None:
        """The shape and type that the blob records for a result; None where it is neither a tensor nor an integer."""
        value = self.graph.values[value_id]
        if isinstance(value, VkTensor):
            return Val("?", ELEMENTS[value.datatype], value.dims)
        return Val("?", INT64, ()) if isinstance(value, SymInt) else None

    def _settled(self, result: Any, record: Val, exact: bool) -> Any:
        if not isinstance(result, Val):  # an integer
            return result if record.dims == () and record.elem == INT64 else self.b.number(result, record.elem)
        if exact or result.rank != record.rank:
            result = replace(result, dims=record.dims if exact else (None,) * record.rank)
        result = replace(result, bounds=() if result.weight else tuple(d for d in record.dims if d is not None))
        return self.b.cast(result, record.elem)

    def _is_exact(self, value_id: int) -> bool:
        value = self.graph.values[value_id]
        if isinstance(value, ValueList):
            return all(self._is_exact(item) for item in value.items)
        known = self.env.get(self._id(value_id))
        return not isinstance(known, Val) or (known.is_static and not isinstance(value, SymInt))

    # ---- the model

    def finish(self, source: str) -> ImportedGraph:
        self.b.where = "border"
        results = []
        count = len(self.borders[1])
        for value_id, border in zip(self.graph.output_ids[-count:] if count else (), self.borders[1], strict=True):
            result, tensor = self._value(value_id), self.graph.values[value_id]
            if not isinstance(result, (Val, int, float)):
                raise InvalidPteError(f"output {value_id} of {source} is no tensor and no number: {result!r}")
            if not isinstance(result, Val):
                result = self.b.number(result, INT64)
            outside = border.elem_type
            if outside is None and isinstance(tensor, VkTensor) and tensor.staging_datatype is not VkDataType.UNSET:
                outside = ELEMENTS[tensor.staging_datatype]
            result = result if outside is None else self.b.cast(result, outside)
            results.append(self.b.reshape(result, border.shape) if border.shape else result)
        kept = self.states.outputs
        results += [self.env[self._id(i)] for i in kept.values()]
        names = [f"output_{i}" for i in range(count)] + [f"state_{i}_out" for i in range(len(kept))]
        renamed, made = {}, {o for node in self.b.nodes for o in node.outputs}
        for name, result in zip(names, results, strict=True):
            if result.name in made and result.name not in renamed:
                renamed[result.name] = name
            else:  # an input, a constant, or a value that is returned twice
                same = self.b.op("Identity", replace(result, name=renamed.get(result.name, result.name)))
                renamed[same.name] = name
        nodes = _live([_renamed(n, renamed) for n in self.b.nodes], names)
        read = {name for node in nodes for name in node.reads}
        outputs = [ValueInfo(n, r.elem, r.dims) for n, r in zip(names, results, strict=True)]
        weights = {name: w for name, w in self.b.weights.items() if name in read}
        graph = Graph("delegate", tuple(nodes), tuple(self.inputs), tuple(outputs), weights)
        model = Model(graph, OPSETS, _IR_VERSION, source)
        first = len(self.graph.input_ids)
        states = [
            State(self.inputs[first + k].name, names[count + k], self._constant(i, self.graph.values[i]))  # type: ignore[arg-type]
            for k, i in enumerate(kept)
        ]
        return ImportedGraph(model, tuple(states))


def _converted(operator: AtenOperator, arguments: Sequence[Any]) -> list[Any]:
    """Convert the arguments to the types of the declaration's hints. Raises `Decline` for one that does not fit."""
    if not operator.required <= len(arguments) <= len(operator.parameters):
        raise Decline(f"{len(arguments)} arguments; its schema has {len(operator.parameters)}")
    return operator.grouped(_converted_one(p, a) for p, a in zip(operator.parameters, arguments, strict=False))


def _converted_one(parameter: inspect.Parameter, value: Any) -> Any:
    hint = str(parameter.annotation)
    optional = hint.endswith(" | None")
    hint = hint.removesuffix(" | None")
    if value is None:
        if optional or hint in ("object", "bool"):
            return False if hint == "bool" else None
        raise Decline(f"argument {parameter.name!r} is missing")
    if hint == "Val" and not isinstance(value, Val):
        raise Decline(f"argument {parameter.name!r} is {value!r}, expected a tensor")
    if hint in ("int", "float", "bool", "Number", "str") and isinstance(value, Val):
        raise Decline(f"argument {parameter.name!r} is known only while running")
    if hint == "int" or (hint == "Size" and not isinstance(value, Val)):
        return int(value)
    if hint == "float":
        return float(value)
    if hint == "bool":
        return bool(value)
    if hint.startswith("Sequence[") and not isinstance(value, (tuple, list)):
        return [value]
    if hint == "Sequence[int]":
        if any(isinstance(v, Val) for v in value):
            raise Decline(f"argument {parameter.name!r} is known only while running")
        return [int(v) for v in value]
    return list(value) if isinstance(value, tuple) else value


def _renamed(node: Node, names: dict[str, str]) -> Node:
    if not any(n in names for n in (*node.inputs, *node.outputs)):
        return node
    inputs, outputs = (tuple(names.get(n, n) for n in part) for part in (node.inputs, node.outputs))
    return _with(node, inputs, outputs)


def _with(node: Node, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> Node:
    proto = type(node.proto)()
    proto.CopyFrom(node.proto)
    del proto.input[:], proto.output[:]
    proto.input.extend(inputs)
    proto.output.extend(outputs)
    return replace(node, inputs=inputs, outputs=outputs, proto=proto)


def _live(nodes: Sequence[Node], outputs: Sequence[str]) -> list[Node]:
    """The nodes that the outputs need, renumbered. Trailing results that nothing reads (positions of maxima, statistics
    of norms) are left out, so that they are not computed."""
    wanted, kept = set(outputs), []
    for node in reversed(nodes):
        if wanted.intersection(node.outputs):
            if node.op_type in _OPTIONAL_RESULTS and not wanted.intersection(node.outputs[1:]):
                node = _with(node, node.inputs, node.outputs[:1])
            wanted.update(node.reads)
            kept.append(node)
    return [replace(node, index=index) for index, node in enumerate(reversed(kept))]
