"""Decides where a Concat writes its result, if a run writes that result to the memory of an input (`ValueSpec.capacity`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from vkep.graph.model import Node
from vkep.graph.weights import Weight
from vkep.ir.infer import Known
from vkep.ir.place import Place
from vkep.ir.program import Over, ValueSpec
from vkep.ir.tensor import Tensor


class _Part(NamedTuple):
    """A Concat's result that another Concat joins to others."""

    joined: Node  #: the other Concat
    position: int  #: among its inputs


class Growing:
    """The outputs that a run writes to an input's memory. If that memory has room for more, also the places of these outputs, and
    of the results that they are joined of: the layers' caches of a model with one cache for all, or stacked keys and values.
    """

    def __init__(self, nodes: Sequence[Node], over: Over, known: Mapping[str, Known]) -> None:
        """``known``: the properties of all values that are lowered when `place` is called."""
        self._known, self._over = known, over
        self._past = {
            output: source
            for output, source in over
            if isinstance(value := known.get(source), ValueSpec) and value.capacity
        }
        self._parts: dict[str, _Part] = {}
        self._made = {name: n for n in nodes for name in n.outputs} if self._past else {}
        for output, source in list(self._past.items()):
            while (node := self._made.get(output)) is not None and node.op_type == "Identity":
                output = node.inputs[0]
                self._past[output] = source
            if node is not None and _joins(node):
                for position, name in enumerate(node.inputs):
                    self._parts[self._unstacked(name)[0]] = _Part(node, position)

    def _unstacked(self, name: str) -> tuple[str, int | None]:
        """The value that an Unsqueeze gives one more axis, and that axis; the value itself, and None."""
        node = self._made.get(name)
        if node is None or node.op_type != "Unsqueeze":
            return name, None
        given = self._known.get(node.inputs[1]) if len(node.inputs) > 1 else None
        axes = given.array().tolist() if isinstance(given, Weight) else node.attributes.get("axes")
        return (node.inputs[0], int(axes[0])) if axes is not None and len(axes) == 1 else (name, None)

    def place(self, node: Node, tensor: Callable[[str], Tensor]) -> Place | None:
        """The place for the result of a node; None: any. ``tensor`` returns the tensor of an input."""
        if not _joins(node):
            return None
        output, part = node.outputs[0], self._parts.get(node.outputs[0])
        source = self._past.get(output if part is None else part.joined.outputs[0])
        if source is None:
            return None
        past, spec = tensor(source), self._known[source]
        assert isinstance(spec, ValueSpec)
        place = Place(past.view(spec.capacity, past.strides), past.shape)
        return place if part is None else self._within(place, part)

    def _within(self, place: Place, part: _Part) -> Place | None:
        """The place of a part; None where it is not known yet."""
        rank = len(place.past)
        axis = int(part.joined.attributes["axis"]) % rank
        start = 0
        for name in part.joined.inputs[: part.position]:
            stacked = self._unstacked(name)[1]
            value = self._known.get(name)
            if stacked is not None and stacked % rank == axis:
                start += 1
            elif isinstance(value, ValueSpec):
                start += value.shape[axis]
            else:
                return None
        if start >= place.past[axis]:
            return None
        memory = place.memory
        capacity, past, strides = list(memory.shape), list(place.past), list(memory.strides)
        first = start * strides[axis]
        capacity[axis], past[axis] = capacity[axis] - start, past[axis] - start
        stacked = self._unstacked(part.joined.inputs[part.position])[1]
        if stacked is not None:
            for sizes in (capacity, past, strides):
                del sizes[stacked % rank]
        return Place(memory.view(capacity, strides, memory.offset + first), tuple(past))

    def over(self, wanted: set[str], read: set[str]) -> dict[str, str]:
        """Maps outputs to the inputs whose memory an island may write them to: the island alone reads that input (it is
        not ``wanted``), which has no other output. Where the output has capacity for more, none of the steps that
        ``read`` values uses it."""
        outputs = Counter([output for output, _ in self._over])
        return {
            output: source
            for output, source in self._over
            if outputs[output] == 1 and source not in wanted and not (output in self._past and output in read)
        }


def _joins(node: Node) -> bool:
    return node.op_type == "Concat" and not node.domain and "axis" in node.attributes
