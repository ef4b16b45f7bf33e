"""The model's graph as plain data: nodes with their delegates, values with their types and shapes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from vkep import dtypes
from vkep.graph.model import Graph, Model, Node
from vkep.ir.program import Placement
from vkep.view.modules import module_of

logger = logging.getLogger("vkep.view")

#: (numpy's name of the element type, sizes) of a value
Kind = tuple[str, tuple[int, ...]]
#: maximum number of elements of weights whose values take part in shape inference
_SMALL = 1 << 10
_LONGEST_ATTRIBUTE = 120


def value_kinds(model: Model, feeds: Mapping[str, Kind]) -> dict[str, Kind]:
    """Types and shapes of the model's values, as far as ONNX infers them from those of its inputs."""
    graph = model.graph
    found: dict[str, Kind] = {}
    for name, weight in graph.weights.items():
        dtype = dtypes.from_onnx(weight.elem_type)
        found[name] = (dtype.name if dtype else "string", tuple(map(int, weight.shape)))
    found |= feeds
    try:
        inferred = onnx.shape_inference.infer_shapes(_for_inference(model, found), data_prop=True)
    except Exception as error:  # onnx raises any type for models that it does not fully support
        logger.info("shapes of %s cannot be inferred: %s", model.source, str(error))
        return found
    for info in (*inferred.graph.value_info, *inferred.graph.output):
        tensor = info.type.tensor_type
        dtype = dtypes.from_onnx(tensor.elem_type)
        dims = tensor.shape.dim
        if dtype is not None and tensor.HasField("shape") and all(d.HasField("dim_value") for d in dims):
            found.setdefault(info.name, (dtype.name, tuple(d.dim_value for d in dims)))
    return found


def _for_inference(model: Model, known: Mapping[str, Kind]) -> onnx.ModelProto:
    """The model with its inputs' shapes, and with large weights as inputs."""
    graph = model.graph
    small = {n: w for n, w in graph.weights.items() if np.prod(w.shape, dtype=np.int64) <= _SMALL}
    inputs = [
        onnx.helper.make_tensor_value_info(name, dtypes.DTYPES[dtype].onnx, shape)
        for name, (dtype, shape) in known.items()
        if name not in small and dtype in dtypes.DTYPES
    ]
    outputs = [onnx.helper.make_empty_tensor_value_info(v.name) for v in graph.outputs]
    weights = [onnx.numpy_helper.from_array(np.asarray(w.array()), n) for n, w in small.items()]
    made = onnx.helper.make_graph([n.proto for n in graph.nodes], "view", inputs, outputs, weights)
    opsets = [onnx.helper.make_opsetid(domain, version) for domain, version in model.opsets.items()]
    return onnx.helper.make_model(made, opset_imports=opsets, ir_version=model.ir_version)


class GraphDocument:
    """Nodes and values as lists; nodes refer to values by index."""

    def __init__(self, kinds: Mapping[str, Kind]) -> None:
        self.nodes: list[dict[str, Any]] = []
        self.values: list[dict[str, Any]] = []
        self._kinds = kinds
        self._value: dict[str, int] = {}
        self._by_name: dict[str, list[int]] = {}
        self._named: Callable[[str], str] = str

    def begin(self, named: Callable[[str], str], kinds: Mapping[str, Kind]) -> None:
        """Begin a part with separate names: ``named`` maps a value's name to its name in the whole graph, which
        ``kinds`` uses. `nodes_of` finds the nodes from here on."""
        self._named, self._kinds = named, kinds
        self._by_name = {}

    def add_model(self, graph: Graph, placements: Sequence[Placement]) -> None:
        """Add the nodes of a graph, including those that are not planned yet."""
        for what, infos in (("input", graph.inputs), ("output", graph.outputs)):
            for info in infos:
                self.values[self.value(info.name)]["kind"] = what
        for name in graph.weights:
            self.values[self.value(name)]["kind"] = "weight"
        placed = {id(p.node) for p in placements}
        self.add_nodes(placements)
        self.add_nodes(
            Placement(n, "unplanned", "its inputs' shapes are not known yet")
            for n in graph.nodes
            if id(n) not in placed
        )

    def add_nodes(self, placements: Iterable[Placement]) -> None:
        """Add nodes with their places."""
        for placement in placements:
            node = placement.node
            optional = {
                "domain": node.domain,
                "module": module_of(node.name, {p.key: p.value for p in node.proto.metadata_props}),
                "reason": placement.reason,
                "declined": dict(placement.declined),
                "attributes": _attributes(node),
            }
            outputs = [n for n in node.outputs if n]
            self.add(node.name, node.op_type, placement.where, node.reads, outputs, **optional)

    def add(
        self, name: str, operator: str, where: str, inputs: Sequence[str], outputs: Sequence[str], **optional: object
    ) -> None:
        """Add one node; keys in ``optional`` are left out where they are empty."""
        self._by_name.setdefault(name, []).append(len(self.nodes))
        values = {"inputs": [self.value(n) for n in inputs], "outputs": [self.value(n) for n in outputs]}
        more = {key: value for key, value in optional.items() if value}
        self.nodes.append({"name": name, "op": operator, "where": where, **values, **more})

    def value(self, name: str) -> int:
        """The index of a value, which is added where it is new."""
        name = self._named(name)
        if name not in self._value:
            self._value[name] = len(self.values)
            made: dict[str, Any] = {"name": name}
            if name in self._kinds:
                dtype, shape = self._kinds[name]
                made |= {"dtype": dtype, "shape": list(shape)}
            self.values.append(made)
        return self._value[name]

    def nodes_of(self, label: str) -> list[int]:
        """The nodes of a dispatch, by its label."""
        return [index for name in label.split(" + ") for index in self.nodes_named(name)]

    def nodes_named(self, name: str) -> list[int]:
        """The nodes of a name, in this part."""
        return self._by_name.get(name, [])


def _attributes(node: Node) -> dict[str, str]:
    made = {}
    for name, value in node.attributes.items():
        if isinstance(value, (onnx.TensorProto, onnx.SparseTensorProto)):
            text = f"tensor of {list(getattr(value, 'dims', ()))}"
        elif isinstance(value, onnx.GraphProto):
            text = f"graph of {len(value.node)} nodes"
        elif isinstance(value, np.ndarray):
            text = f"{value.dtype.name} {list(value.shape)}"
        else:
            text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
        made[name] = text if len(text) <= _LONGEST_ATTRIBUTE else text[: _LONGEST_ATTRIBUTE - 3] + "..."
    return made
