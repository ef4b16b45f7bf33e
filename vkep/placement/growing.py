"""The destination of a Concat's result that a run writes to the memory of its past (`ValueSpec.room`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from vkep.graph.model import Node
from vkep.ir.infer import Known
from vkep.ir.place import Place
from vkep.ir.program import Over, ValueSpec
from vkep.ir.tensor import Tensor


class _Part(NamedTuple):
    """A value that a Concat joins to others."""

    joined: Node
    position: int  #: among that Concat's inputs


class Growing:
    """The outputs that a run writes to an input's memory. For memory with capacity for more: their places, and the
    inputs that they are joined from (the layers' caches, where a model has one input for all)."""

    def __init__(self, nodes: Sequence[Node], over: Over, known: Mapping[str, Known]) -> None:
        """``known``: of all values, as far as they are lowered when `place` asks."""
        self._known, self._over = known, over
        self._past = {
            output: source
            for output, source in over
            if isinstance(value := known.get(source), ValueSpec) and value.room
        }
        self._parts: dict[str, _Part] = {}
        made = {name: n for n in nodes for name in n.outputs} if self._past else {}
        for output, source in list(self._past.items()):
            while output in made and made[output].op_type == "Identity":
                output = made[output].inputs[0]
                self._past[output] = source
            if output in made and _joins(made[output]):
                found = [(k, name) for k, name in enumerate(made[output].inputs) if name in made and _joins(made[name])]
                self._parts |= {name: _Part(made[output], k) for k, name in found}

    def place(self, node: Node, tensor: Callable[[str], Tensor]) -> Place | None:
        """The place of a node's result; None: anywhere. ``tensor`` returns the tensor of an input."""
        output, part = node.outputs[0], self._parts.get(node.outputs[0])
        if part is not None:
            output = part.joined.outputs[0]
        if output not in self._past or not _joins(node):
            return None
        past = tensor(self._past[output])
        spec = self._known[self._past[output]]
        assert isinstance(spec, ValueSpec)
        if part is None:
            return Place(past.view(spec.room, past.strides), past.shape)
        axis = int(part.joined.attributes["axis"]) % past.rank
        before = [self._known.get(name) for name in part.joined.inputs[: part.position]]
        sizes = [value.shape[axis] for value in before if isinstance(value, ValueSpec)]
        start = sum(sizes)
        if len(sizes) != len(before) or start >= past.shape[axis]:
            return None
        room, rest = list(spec.room), list(past.shape)
        room[axis], rest[axis] = room[axis] - start, rest[axis] - start
        return Place(past.view(room, past.strides, start * past.strides[axis]), tuple(rest))

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
