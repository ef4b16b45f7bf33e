"""Nodes that are replaced by others while planning: the bodies of control flow, operators on sequences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import onnx
from onnx import helper

from vkep.graph.model import Graph, Node
from vkep.graph.weights import Weight
from vkep.ir.program import HostValue


@dataclass
class Inlined:
    """The nodes that replace one, the constants that they read, and the resulting sequences and optionals."""

    nodes: list[Node] = field(default_factory=list)
    weights: dict[str, Weight] = field(default_factory=dict)
    values: dict[str, HostValue] = field(default_factory=dict)


@dataclass(frozen=True)
class NeedsContent:
    """The replacement of a node depends on the content of a value that is known only in a run."""

    name: str
    reason: str


def scope(node: Node) -> str:
    """A prefix for names inside of a node, unique to the node."""
    return f"{next((o for o in node.outputs if o), node.name)}/"


def instantiate(body: Graph, prefix: str, inputs: Sequence[str], outputs: Sequence[str]) -> Inlined:
    """The body's nodes with its inputs and outputs under the given names, and all else under ``prefix``.

    An output named "" is not wanted.
    """
    names = {info.name: name for info, name in zip(body.inputs, inputs, strict=True)}
    names |= {name: prefix + name for name in body.weights}
    names |= {name: prefix + name for node in body.nodes for name in node.outputs if name}
    made = {name for node in body.nodes for name in node.outputs if name}
    copies: list[tuple[str, str]] = []
    for info, wanted in zip(body.outputs, outputs, strict=True):
        if not wanted:
            continue
        if info.name in made:
            names[info.name] = wanted
            made.remove(info.name)  # an output listed twice needs another name
        else:
            copies.append((info.name, wanted))
    result = Inlined(weights={names[name]: weight for name, weight in body.weights.items()})
    result.nodes = [renamed(node, names, prefix) for node in body.nodes]
    result.nodes += [make_node("Identity", [names.get(source, source)], [wanted], 13) for source, wanted in copies]
    return result


def renamed(node: Node, names: Mapping[str, str], prefix: str = "") -> Node:
    """A copy of a node that reads and writes other names, in its bodies too."""

    def of(name: str) -> str:
        return names.get(name, name)

    proto = onnx.NodeProto()
    proto.CopyFrom(node.proto)
    rename(proto, names)
    free = {name: of(name) for name in node.captures}
    return replace(
        node,
        name=prefix + node.name,
        inputs=tuple(map(of, node.inputs)),
        outputs=tuple(map(of, node.outputs)),
        captures=tuple(map(of, node.captures)),
        proto=proto,
        bodies={key: _renamed_body(body, free) for key, body in node.bodies.items()},
    )


def _renamed_body(body: Graph, names: Mapping[str, str]) -> Graph:
    """A copy of a body that reads other names of its outer graph; its own names are unchanged."""
    own = {i.name for i in body.inputs} | set(body.weights) | {o for n in body.nodes for o in n.outputs}
    free = {name: other for name, other in names.items() if name not in own}
    outputs = tuple(replace(o, name=free.get(o.name, o.name)) for o in body.outputs)
    return replace(body, nodes=tuple(renamed(n, free) for n in body.nodes), outputs=outputs)


def rename(proto: onnx.NodeProto, names: Mapping[str, str]) -> None:
    """Change a node to read and write other names, in its bodies too, except those that the bodies define."""
    proto.input[:] = [names.get(name, name) for name in proto.input]
    proto.output[:] = [names.get(name, name) for name in proto.output]
    for attribute in proto.attribute:
        for graph in [attribute.g] if attribute.type == onnx.AttributeProto.GRAPH else attribute.graphs:
            own = {v.name for v in graph.input} | {t.name for t in graph.initializer}
            own.update(o for n in graph.node for o in n.output)
            free = {name: other for name, other in names.items() if name not in own}
            for inner in graph.node:
                rename(inner, free)
            for output in graph.output:
                output.name = free.get(output.name, output.name)


def make_node(op_type: str, inputs: Sequence[str], outputs: Sequence[str], opset: int, **attributes: Any) -> Node:
    """A new node of the graph, created while functions are inlined."""
    proto = helper.make_node(op_type, list(inputs), list(outputs), **attributes)
    schema = onnx.defs.get_schema(op_type, opset, "")
    return Node(0, outputs[0], op_type, "", tuple(inputs), tuple(outputs), attributes, proto, schema)
