"""Some steps of a Loop or Scan as a Scan with a known number of steps, which planning unrolls: the session executes a longer loop
in such parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from vkep.graph.model import Graph, Node
from vkep.graph.weights import ArrayWeight, Weight
from vkep.placement.control import MAX_UNROLLED_NODES, carried_condition, is_control, loop_value
from vkep.placement.inlined import make_node, scope

#: numbers of steps of a part: a step of a part costs the host little, and few plans serve every number
_PARTS = (16, 4, 1)


@dataclass(frozen=True)
class LoopPart:
    """``steps`` steps of a Loop or Scan as a Scan. Its inputs are the carried values, then the steps' elements; of a Loop the
    elements are the steps' numbers. Its outputs are the carried values, and the steps' results stacked.
    """

    steps: int
    node: Node


def parts_of(node: Node, constants: Mapping[str, Weight]) -> tuple[LoopPart, ...]:
    """The parts that a long loop is executed in, the largest first; empty for a Loop whose condition is not known to stay true,
    which is executed step by step. ``constants``: those that the body reads."""
    body = node.bodies["body"]
    if node.op_type == "Loop":
        if carried_condition(body, constants) not in (True, "same"):
            return ()
        node, body = _scan_of(node, body)
    most = 1 if any(map(is_control, body.nodes)) else MAX_UNROLLED_NODES // max(len(body.nodes), 1)
    return tuple([LoopPart(steps, _named(node, body, steps)) for steps in _PARTS if steps <= max(most, 1)])


def _scan_of(node: Node, body: Graph) -> tuple[Node, Graph]:
    """A Loop as a Scan over the numbers of its steps; its condition is a constant of the body."""
    number, condition, *states = body.inputs
    weight = ArrayWeight(condition.name, loop_value(body, 1, True))
    inner = replace(
        body, inputs=(*states, number), outputs=body.outputs[1:], weights={**body.weights, condition.name: weight}
    )
    scan = make_node("Scan", [], [scope(node)[:-1]], 13, num_scan_inputs=1)
    return replace(scan, name=node.name, captures=node.captures, bodies={"body": inner}), inner


def _named(scan: Node, body: Graph, steps: int) -> Node:
    """A Scan between values of its own."""
    prefix = f"{scope(scan)}{steps}/"
    inputs = tuple([f"{prefix}in{k}" for k in range(len(body.inputs))])
    return replace(scan, inputs=inputs, outputs=tuple([f"{prefix}out{k}" for k in range(len(body.outputs))]))
