"""Operators whose output size depends on data: the first half fills a buffer and counts, the second half is planned
once the count is known.

Both halves are declared in the domain `SIZED`: ``<Operator>Fill`` has the operator's inputs and attributes and computes
(buffer, count); ``<Operator>Take`` has (buffer, count, and the inputs again), requests the count's value with
`Builder.value`, and computes the operator's outputs. The session runs the first half, reads the count, and plans the
rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from onnx import helper

from vkep.graph.model import Node
from vkep.ops import registry
from vkep.ops.registry import SIZED
from vkep.placement.channels_last import channels_first, is_channels_last


def replacement_nodes(node: Node, known: Mapping[str, Any], opsets: Mapping[str, int]) -> list[Node]:
    """The node itself, or the nodes that replace it: the two halves of an operator whose output size depends on data,
    or the three nodes of a channels-last one. ``known`` has at least the shapes of its inputs."""
    if is_channels_last(node) and hasattr(known[node.inputs[0]], "shape"):
        return channels_first(node, len(known[node.inputs[0]].shape), opsets)
    if not registry.is_declared(SIZED, _half(node, "Fill")):
        return [node]
    fill = _part(node, "Fill", node.inputs, (f"{node.outputs[0]}/buffer", f"{node.outputs[0]}/count"))
    return [fill, _part(node, "Take", (*fill.outputs, *node.inputs), node.outputs)]


def _half(node: Node, suffix: str) -> str:
    """The name of an operator's half, prefixed with the domain for other domains."""
    return f"{node.domain}.{node.op_type}{suffix}" if node.domain else f"{node.op_type}{suffix}"


def _part(node: Node, suffix: str, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> Node:
    op_type = _half(node, suffix)
    proto = helper.make_node(op_type, inputs, outputs, name=node.name, domain=SIZED)
    return replace(
        node, op_type=op_type, domain=SIZED, inputs=inputs, outputs=outputs, proto=proto, schema=None, captures=()
    )
