"""Loops that repeat the elements of a tensor as often as another one says. torch's TorchScript exporter writes
``repeat_interleave`` so:

    for i in range(n): rows.insert(reshape(expand(unsqueeze(x[i], 1), [1, counts[i], *rest]), [-1, *rest]))
    concat(rows, 0)

``x`` and ``counts`` are split into sequences before. Each step of such a loop waits for its count. A Gather of the elements'
numbers replaces it: for each place of the result the first element that ends behind it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import TensorProto, numpy_helper

from vkep.graph.model import Graph, Node
from vkep.graph.weights import ArrayWeight, Weight
from vkep.ir.infer import Known
from vkep.placement.control import carried_condition
from vkep.placement.inlined import Inlined, make_node, scope

#: the reason of the nodes that are left out
REPEATED = "a Gather repeats the rows"
#: operators that give a single number another shape or type
_SAME_NUMBER = ("Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze")


@dataclass(frozen=True)
class Replaced:
    """``nodes`` with each such loop replaced, and the constants that the new ones read. ``gone``: the nodes that are left out."""

    nodes: tuple[Node, ...]
    weights: Mapping[str, Weight]
    gone: tuple[Node, ...]


def without_repeats(
    nodes: Sequence[Node], known: Mapping[str, Known], outputs: Sequence[str], opset: int
) -> Replaced | None:
    """The nodes without loops that repeat elements; None where there are none."""
    joins = [n for n in nodes if _is(n, "ConcatFromSequence")]
    if not joins:
        return None
    makers = {name: node for node in nodes for name in node.outputs if name}
    found = {id(join): match for join in joins if (match := _Match.of(join, makers, known)) is not None}
    reads = Counter([*outputs, *(name for node in nodes for name in node.reads)])
    gone: list[Node] = []
    for join in [n for n in joins if id(n) in found]:
        match = found[id(join)]
        if reads[match.loop.outputs[0]] > 1:
            del found[id(join)]
            continue
        gone += [join, match.loop]
        reads.subtract(match.loop.reads)
        gone += [node for node in match.before if not any(reads[name] for name in node.outputs)]
    if not found:
        return None
    left, made = {id(node) for node in gone}, {key: match.nodes(opset) for key, match in found.items()}
    kept: list[Node] = []
    for node in nodes:
        kept += made[id(node)].nodes if id(node) in made else [] if id(node) in left else [node]
    weights = {name: weight for one in made.values() for name, weight in one.weights.items()}
    return Replaced(tuple(kept), weights, tuple(gone))


def repeats_rows(body: Graph) -> bool:
    """Whether a Loop's body, whose inputs and outputs are those that it declares, does what a step of such a loop does."""
    states = len(body.inputs) == 3 and len(body.outputs) == 2
    return states and _row(body, _Values({}, {})) is not None


@dataclass(frozen=True)
class _Match:
    """The parts of a loop: the tensor whose elements along axis 0 are repeated, how often, and the shape of the result."""

    join: Node
    loop: Node
    before: tuple[Node, ...]  #: what makes the sequences
    x: str
    counts: str
    shape: tuple[int, ...]

    @classmethod
    def of(cls, join: Node, makers: Mapping[str, Node], known: Mapping[str, Known]) -> _Match | None:
        loop = makers.get(join.inputs[0])
        if int(join.attributes["axis"]) or join.attributes.get("new_axis") or loop is None or not _is(loop, "Loop"):
            return None
        body = loop.bodies.get("body")
        if body is None or len(loop.inputs) != 3 or len(loop.outputs) != 1 or len(body.outputs) != 2:
            return None
        limit, start, empty = loop.inputs
        outer = _Values(makers, known)
        goes_on = carried_condition(body, known)
        begins = not start or outer.numbers(start) == [1]
        first = makers.get(empty)
        if goes_on not in (True, "same") or not begins or first is None or not _is(first, "SequenceEmpty"):
            return None
        row = _row(body, outer)
        if row is None:
            return None
        x, counts, shape = row
        splits = (makers.get(x), makers.get(counts))
        sources = [outer.source_of_rows(split) for split in splits]
        if None in sources or outer.length_of(limit) not in sources:
            return None
        return cls(join, loop, (first, *(s for s in splits if s is not None)), str(sources[0]), str(sources[1]), shape)

    def nodes(self, opset: int) -> Inlined:
        """The nodes in place of the loop."""
        made, prefix = Inlined(), scope(self.join)

        def constant(name: str, value: Any) -> str:
            made.weights[prefix + name] = ArrayWeight(prefix + name, np.array(value, np.int64))
            return prefix + name

        def add(op_type: str, *inputs: str, into: str = "", **attributes: Any) -> str:
            name = into or f"{prefix}{op_type}{len(made.nodes)}"
            made.nodes.append(make_node(op_type, inputs, [name], opset, **attributes))
            return name

        counts = add("Cast", self.counts, to=TensorProto.INT64)
        ends = add("CumSum", counts, constant("axis", 0))
        total = add("ReduceSum", counts, keepdims=0)
        places = add("Range", constant("zero", 0), total, constant("one", 1))
        before = add("Less", add("Reshape", places, constant("column", [-1, 1])), ends)
        numbers = add("ArgMax", add("Cast", before, to=TensorProto.INT32), axis=1, keepdims=0)
        rows = add("Gather", self.x, numbers, axis=0)
        if self.shape[1:]:  # as Expand does in the loop
            rows = add("Expand", rows, constant("row", [1, *self.shape[1:]]))
        add("Reshape", rows, constant("shape", self.shape), into=self.join.outputs[0])
        return made


class _Values:
    """What is known of values by the nodes that make them."""

    def __init__(self, makers: Mapping[str, Node], known: Mapping[str, Any]) -> None:
        self._makers, self.known = makers, known

    def maker(self, name: str, op_type: str) -> Node | None:
        """The node that makes a value, if it is of this kind."""
        node = self._makers.get(name)
        return node if node is not None and _is(node, op_type) else None

    def numbers(self, name: str) -> list[Any] | None:
        """The elements of a constant."""
        weight = self.known.get(name)
        return weight.array().reshape(-1).tolist() if isinstance(weight, Weight) else None

    def are_ones(self, name: str) -> bool:
        """Whether all elements of a value are 1."""
        node = self.maker(name, "ConstantOfShape")
        value = node.attributes.get("value") if node is not None else None
        numbers = self.numbers(name) if value is None else numpy_helper.to_array(value).reshape(-1).tolist()
        return numbers is not None and {*numbers} == {1}

    def source_of_rows(self, split: Node | None) -> str | None:
        """The tensor that a SplitToSequence splits into rows along axis 0; None where it is another node or split."""
        if split is None or not _is(split, "SplitToSequence") or int(split.attributes.get("axis", 0)):
            return None
        lengths = split.inputs[1] if len(split.inputs) > 1 else ""
        single = self.are_ones(lengths) if lengths else bool(split.attributes.get("keepdims", 1))  # 0 drops axis 0
        return split.inputs[0] if single else None

    def length_of(self, name: str) -> str | None:
        """The tensor whose number of elements along axis 0 the value is."""
        while (node := self._makers.get(name)) is not None and not node.domain and node.op_type in _SAME_NUMBER:
            name = node.inputs[0]
        at = self.maker(name, "Gather")
        shape = self.maker(at.inputs[0], "Shape") if at is not None and self.numbers(at.inputs[1]) == [0] else None
        return shape.inputs[0] if shape is not None and not shape.attributes.get("start") else None


def _is(node: Node, op_type: str) -> bool:
    return node.op_type == op_type and not node.domain


def _row(body: Graph, outer: _Values) -> tuple[str, str, tuple[int, ...]] | None:
    """The sequences of elements and of counts, and the shape of the result, if a step inserts its element as often as its count
    says; None where it does anything else."""
    makers = {name: node for node in body.nodes for name in node.outputs if name}
    inner = _Values(makers, {**outer.known, **body.weights})
    number, _, state = (info.name for info in body.inputs)

    def element(name: str) -> str | None:
        node = inner.maker(name, "SequenceAt")
        return node.inputs[0] if node is not None and node.inputs[1] == number else None

    def chain(name: str, *op_types: str) -> list[Node]:
        """The nodes that make a value, the last one first, each from the first input of the one before."""
        found: list[Node] = []
        for op_type in op_types:
            node = inner.maker(name, op_type)
            if node is None:
                return []
            found.append(node)
            name = node.inputs[0]
        return found

    insert = inner.maker(body.outputs[1].name, "SequenceInsert")
    if insert is None or insert.inputs[0] != state or len([name for name in insert.inputs if name]) != 2:
        return None
    nodes = chain(insert.inputs[1], "Reshape", "Expand", "Unsqueeze")
    if not nodes:
        return None
    reshape, expand, unsqueeze = nodes
    axes = inner.numbers(unsqueeze.inputs[1]) if len(unsqueeze.inputs) > 1 else unsqueeze.attributes.get("axes")
    joined = _shape_of(inner, expand.inputs[1])
    shape, x = inner.numbers(reshape.inputs[1]), element(unsqueeze.inputs[0])
    if joined is None or shape is None or x is None or list(axes or ()) != [1] or reshape.attributes.get("allowzero"):
        return None
    elements = [element(name) for name in joined]
    places = [k for k, name in enumerate(elements) if name is not None]
    sizes = [inner.numbers(name) for name, of in zip(joined, elements, strict=True) if of is None]
    if len(places) != 1 or None in sizes:
        return None
    [before] = places
    first = [n for part in sizes[:before] for n in part or ()]
    rest = [n for part in sizes[before:] for n in part or ()]
    if first != [1] or shape != [-1, *rest] or any(n < 1 for n in rest):
        return None
    return x, str(elements[before]), tuple(shape)


def _shape_of(inner: _Values, name: str) -> tuple[str, ...] | None:
    """The parts of a shape that is concatenated. Around it the exporter replaces -1, which it does not have, by 1."""
    chosen = inner.maker(name, "Where")
    if chosen is not None:
        same = inner.maker(chosen.inputs[0], "Equal")
        product = (
            inner.maker(same.inputs[1], "Mul") if same is not None and same.inputs[0] == chosen.inputs[2] else None
        )
        factors = product.inputs if product is not None else ()
        if not any(inner.numbers(f) == [-1] for f in factors) or not all(
            inner.are_ones(f) for f in (chosen.inputs[1], *factors) if inner.numbers(f) != [-1]
        ):
            return None
        name = chosen.inputs[2]
    joined = inner.maker(name, "Concat")
    return joined.inputs if joined is not None else None
