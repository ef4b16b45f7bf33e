"""Removes dependency cycles between the partitions of several delegates.

Each released partitioner keeps its own partitions acyclic without knowledge of the other's: two partitions that are
each convex can still depend on each other. Those are split into stages, in the same way as the partitions of an ONNX
graph.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch

from vkep.executorch.export.edge import calls


def split_cycles(
    module: torch.fx.GraphModule, partitions: Sequence[tuple[torch.fx.Node, ...]]
) -> list[list[tuple[torch.fx.Node, ...]]]:
    """For each partition the list of its pieces: the partition itself, unless it is on a dependency cycle.

    A partition on a cycle has nodes before and after another's, so it has several stages, and each split makes
    progress.
    """
    pieces: list[tuple[int, list[torch.fx.Node]]] = [(i, list(nodes)) for i, nodes in enumerate(partitions)]
    while True:
        owner = {node: i for i, (_, nodes) in enumerate(pieces) for node in nodes}
        tangled = _tangled(module, owner)
        if not tangled:
            break
        # Split one at a time, the smallest first: the others may then stay whole.
        chosen = min(tangled, key=lambda i: (len(pieces[i][1]), i))
        stages = _stages(module, owner)
        origin, nodes = pieces.pop(chosen)
        by_stage: dict[int, list[torch.fx.Node]] = {}
        for node in nodes:
            by_stage.setdefault(stages[node], []).append(node)
        pieces += [(origin, by_stage[stage]) for stage in sorted(by_stage)]
    return [[tuple(nodes) for i, nodes in pieces if i == index] for index in range(len(partitions))]


def _stages(module: torch.fx.GraphModule, owner: dict[torch.fx.Node, int]) -> dict[torch.fx.Node, int]:
    """The stage increases along every edge that leaves or enters a partition: pieces of equal stage cannot form a
    cycle."""
    stages: dict[torch.fx.Node, int] = {}
    for node in calls(module):
        own = owner.get(node)
        before = [stages[n] + (own is None or owner.get(n) != own) for n in node.all_input_nodes if n in stages]
        stages[node] = max(before, default=0)
    return stages


def _tangled(module: torch.fx.GraphModule, owner: dict[torch.fx.Node, int]) -> set[int]:
    """The partitions on a cycle of the graph in which each partition is one vertex."""
    after: dict[Hashable, set[Hashable]] = {}
    for node in calls(module):
        vertex: Hashable = owner.get(node, node)
        after.setdefault(vertex, set())
        for user in node.users:
            other: Hashable = owner.get(user, user)
            if other != vertex:
                after[vertex].add(other)
    return {vertex for vertex in set(owner.values()) if _reaches(after, vertex)}


def _reaches(after: dict[Hashable, set[Hashable]], start: Hashable) -> bool:
    """Whether a path leads from the vertex back to itself."""
    seen: set[Hashable] = set()
    pending = list(after.get(start, ()))
    while pending:
        vertex = pending.pop()
        if vertex == start:
            return True
        if vertex not in seen:
            seen.add(vertex)
            pending.extend(after.get(vertex, ()))
    return False
