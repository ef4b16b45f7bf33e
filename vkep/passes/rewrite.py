"""Rewriting of operations by rules: the index of producers and users in which a rule looks for its pattern, and the walk that
applies a rule to each operation.

A rule looks at one operation. Where its pattern matches there, it returns which operations replace which. It changes none itself.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gpu_shared.capabilities import DeviceCapabilities
from vkep.ir.ops import KernelOp, Op, Pointwise, is_elementwise, reads
from vkep.ir.tensor import Storage, Tensor
from vkep.kernels.problem import Problem
from vkep.kernels.select import bind, supports

#: the operations that replace an operation, in its place: none where others do its work
Changes = Mapping[Op, Sequence[Op]]


@dataclass(frozen=True)
class Goal:
    """What passes must keep: the tensors that exist at the end, on a device. ``shared``: ports of outputs that are in the memory
    of an input, each with the input's port."""

    results: list[Tensor]
    caps: DeviceCapabilities
    shared: Mapping[int, int] = field(default_factory=dict)


class Graph:
    """The operations of an island in order, and the producers and users of each storage. Only `replace` changes it."""

    def __init__(self, ops: Iterable[Op], goal: Goal) -> None:
        self.caps = goal.caps
        self.results = {t.storage for t in goal.results}  #: of the tensors that exist at the end
        self.given = list(ops)  #: the operations before any was replaced
        self._order = [[op] for op in self.given]
        self._places = {op: k for k, op in enumerate(self.given)}
        #: by an input's port, the outputs in its memory
        self._overwrites: dict[int | None, list[Storage]] = defaultdict(list)
        for t in goal.results:
            if t.storage.port is not None and t.storage.port in goal.shared:
                self._overwrites[goal.shared[t.storage.port]].append(t.storage)

    def __contains__(self, op: Op) -> bool:
        return op in self._places

    @property
    def ops(self) -> list[Op]:
        """The operations, in order."""
        return [op for place in self._order for op in place]

    @functools.cached_property
    def _index(self) -> tuple[dict[Storage, dict[Op, None]], dict[Storage, dict[Op, None]]]:
        producers: dict[Storage, dict[Op, None]] = defaultdict(dict)
        users: dict[Storage, dict[Op, None]] = defaultdict(dict)
        for op in self._places:
            _add(op, producers, users)
        return producers, users

    def producers(self, storage: Storage) -> list[Op]:
        """The operations that write to a storage."""
        return list(self._index[0].get(storage, ()))

    def users(self, storage: Storage) -> list[Op]:
        """The operations that read a storage that is no constant."""
        return list(self._index[1].get(storage, ()))

    def producer(self, storage: Storage, *users: Op) -> Op | None:
        """The operation that computes all of a storage that only ``users`` read; None where there is no such one."""
        if storage.weight is not None or storage.port is not None or storage in self.results:
            return None
        producers, readers = (index.get(storage, ()) for index in self._index)
        if len(producers) != 1 or any(reader not in users for reader in readers):
            return None
        [producer] = producers
        return producer if all(t.is_whole for t in producer.outputs if t.storage is storage) else None

    @functools.cached_property
    def _chain_lengths(self) -> dict[Storage, int]:
        """The longest chain of given operations that ends in each storage: of several products, an epilogue goes to the last."""
        depths: dict[Storage, int] = {}
        for op in self.given:
            depth = 1 + max([depths.get(storage, 0) for storage in read_by(op)], default=0)
            depths |= {storage: max(depth, depths.get(storage, 0)) for storage in written_by(op)}
        return depths

    def depth(self, op: Op) -> tuple[int, int]:
        """The length of the longest chain of operations that ends with a given one, and its place."""
        return self._chain_lengths[op.outputs[0].storage], self._places[op]

    def fused(
        self, problem: Problem, inputs: Sequence[Tensor], outputs: Sequence[Tensor], parts: Sequence[Op]
    ) -> KernelOp | None:
        """One operation that does the work of ``parts``, with the labels of all, the node of the last kernel, and the epilogue
        that a part has; None where no kernel of the device computes it."""
        if not supports(problem.placed(bind(problem, inputs, outputs)), self.caps):
            return None
        kernels = [op for op in parts if isinstance(op, KernelOp)]
        [end] = [op for op in kernels if op.epilogue is not None] or kernels[:1]
        labels = list(dict.fromkeys([label for op in parts for label in op.labels]))
        return KernelOp(problem, list(inputs), list(outputs), labels, kernels[-1].node, end.epilogue, end.epilogue_of)

    def fuse(
        self, problem: Problem, inputs: Sequence[Tensor], outputs: Sequence[Tensor], parts: Sequence[Op]
    ) -> Changes | None:
        """The changes that put the operation of `fused` in the place of the last part."""
        fused = self.fused(problem, inputs, outputs, parts)
        return None if fused is None else {**dict.fromkeys(parts, ()), parts[-1]: [fused]}

    def overwritten(self, changes: Changes) -> set[Storage]:
        """The outputs in an input's memory that would be written no later than an operation of ``changes`` reads that input: by
        another operation, or by itself where it is not elementwise. Operations that stay are not asked: the rules that run with
        shared outputs (`Pass.shares`) move writes only to later places."""
        found: set[Storage] = set()
        places = {op: self._places[old] for old, new in changes.items() for op in new}
        for op, place in places.items():
            for t in reads(op):
                for output in self._overwrites.get(t.storage.port, ()):
                    writers = {p: self._places[p] for p in self.producers(output) if p not in changes}
                    writers |= {p: k for p, k in places.items() if p is not op and output in written_by(p)}
                    overwrites_itself = output in written_by(op) and not is_elementwise(op, t)
                    if overwrites_itself or any(k <= place for k in writers.values()):
                        found.add(output)
        return found

    def replace(self, changes: Changes) -> None:
        """Put operations in the places of others."""
        producers, users = self._index
        for old, new in changes.items():
            for storage in written_by(old):
                del producers[storage][old]
            for storage in read_by(old):
                del users[storage][old]
            place = self._places.pop(old)
            k = self._order[place].index(old)
            self._order[place][k : k + 1] = new
            for op in new:
                self._places[op] = place
                _add(op, producers, users)


def _add(op: Op, producers: dict[Storage, dict[Op, None]], users: dict[Storage, dict[Op, None]]) -> None:
    for storage in written_by(op):
        producers[storage][op] = None
    for storage in read_by(op):
        users[storage][op] = None


def written_by(op: Op) -> list[Storage]:
    """The storages that an operation writes to."""
    return [op.out.storage] if isinstance(op, Pointwise) else list(dict.fromkeys([t.storage for t in op.outputs]))


def read_by(op: Op) -> set[Storage]:
    """The storages that an operation reads, without constants."""
    return {t.storage for t in reads(op) if t.storage.weight is None}


#: what an operation and others are replaced by where a pattern matches at it; None where it does not
Rule = Callable[[Op, Graph], Changes | None]


def rewrite(ops: Iterable[Op], goal: Goal, rule: Rule, *, backward: bool = False) -> list[Op]:
    """The operations after a rule was applied to each of them, in order or from the last to the first."""
    graph = Graph(ops, goal)
    for op in reversed(graph.given) if backward else graph.given:
        changes = rule(op, graph) if op in graph else None
        if changes and not graph.overwritten(changes):
            graph.replace(changes)
    return graph.ops
