"""Operators whose output's size is data: one that fills a buffer and counts, and one that is planned when the count is.

Both are declared in the domain `SIZED` beside each other: ``<Operator>Fill`` takes the operator's inputs and attributes and
makes (buffer, count); ``<Operator>Take`` takes (buffer, count, and the inputs again), asks for the count's value with
`Builder.value`, and makes the operator's outputs. The session runs what comes before, reads the count, and plans the rest.
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


def parts(node: Node, known: Mapping[str, Any], opsets: Mapping[str, int]) -> list[Node]:
    """The node itself, or those that stand for it: the two of an operator whose output's size is data, the three of a
    channels-last one. ``known`` has at least the shapes of its inputs.
    """
    if is_channels_last(node) and hasattr(known[node.inputs[0]], "shape"):
        return channels_first(node, len(known[node.inputs[0]].shape), opsets)
    if not registry.is_declared(SIZED, _half(node, "Fill")):
        return [node]
    fill = _part(node, "Fill", node.inputs, (f"{node.outputs[0]}/buffer", f"{node.outputs[0]}/count"))
    return [fill, _part(node, "Take", (*fill.outputs, *node.inputs), node.outputs)]


def _half(node: Node, suffix: str) -> str:
    """The name of an operator's half; operators of other domains have them in front."""
    return f"{node.domain}.{node.op_type}{suffix}" if node.domain else f"{node.op_type}{suffix}"


def _part(node: Node, suffix: str, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> Node:
    op_type = _half(node, suffix)
    proto = helper.make_node(op_type, inputs, outputs, name=node.name, domain=SIZED)
    return replace(
        node, op_type=op_type, domain=SIZED, inputs=inputs, outputs=outputs, proto=proto, schema=None, captures=()
    )
