"""Divides the nodes of one method between the two released partitioners.

The policy (`vkep.placement.policy`, the same as for ONNX) decides for each node which delegate is offered it first. A
delegate accepts a node if its partitioner would take it. Its accepted nodes are then proposed to it once more, without
the others, and only what its partitioner proposes becomes a partition. Nodes that a delegate does not keep (its
partition is too small, or a pattern is incomplete) are marked as refused by it and all nodes are placed again, so that
the other delegate is offered them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from executorch.exir.backend.partitioner import Partitioner
from executorch.exir.delegate import executorch_call_delegate
from torch.export.exported_program import ExportedProgram
from torch.fx import Node

from vkep.executorch.export.convex import split_cycles
from vkep.executorch.export.edge import (
    EdgeNode,
    calls,
    flops,
    graph_modules,
    is_dequantize,
    is_getitem,
    target_name,
)
from vkep.executorch.export.offers import Proposal, fused_patterns, propose
from vkep.executorch.export.report import PORTABLE, NodePlacement, PartitionReport
from vkep.placement.policy import VGF, VULKAN, Partition, Policy

KINDS = (VULKAN, VGF)
KEPT_NOTE = "kept although small: an operator that was preserved for it has no kernel elsewhere"


@dataclass
class Placement:
    """The partitions of a method (``(delegate, nodes)``), and the report's lines."""

    partitions: list[tuple[str, tuple[Node, ...]]] = field(default_factory=list)
    nodes: list[NodePlacement] = field(default_factory=list)
    reports: list[PartitionReport] = field(default_factory=list)


class Placer:
    """Places the nodes of one program. ``pinned`` decides whether a node has no kernel outside of delegates."""

    def __init__(
        self,
        program: ExportedProgram,
        partitioners: Mapping[str, Partitioner],
        policy: Policy,
        pinned: Callable[[Node], bool],
    ) -> None:
        self.program, self.partitioners, self.policy, self.pinned = program, partitioners, policy, pinned
        self.modules = graph_modules(program.graph_module)
        self.nodes = [n for m in self.modules for n in calls(m) if n.target is not executorch_call_delegate]
        self.edge = {node: EdgeNode(node) for node in self.nodes}
        self._proposals: dict[tuple[str, frozenset[Node]], Proposal] = {}

    def place(self) -> Placement:
        """Place the nodes. Nodes that no delegate takes are reported as portable."""
        self.claims = {kind: self._propose(kind, self.nodes) for kind in KINDS}
        if self.policy.prefer == "auto":
            self._keep_patterns()
        while True:
            placed = self._assign()
            partitions = self._partitions(placed)
            if partitions is None:
                continue
            offered = [self._offered(kind, nodes) for kind, nodes in partitions]
            pruned = self.policy.prune(offered)
            if pruned is None:
                return self._result(partitions, offered)
            self.policy = pruned

    def _propose(self, kind: str, nodes: list[Node]) -> Proposal:
        key = (kind, frozenset(nodes))
        if key not in self._proposals:
            self._proposals[key] = propose(self.partitioners[kind], self.program, key[1])
        return self._proposals[key]

    def _keep_patterns(self) -> None:
        """Where VGF declines a part of a pattern that the Vulkan delegate fuses, VGF gets no part of the pattern."""
        takes = {kind: self.claims[kind].nodes for kind in KINDS}
        for pattern in fused_patterns(self.program.graph_module):
            nodes = [n for n in self.nodes if n in pattern]
            if set(nodes) <= takes[VULKAN] and not set(nodes) <= takes[VGF]:
                self._refuse([n for n in nodes if n in takes[VGF]], VGF, "auto: part of a pattern that Vulkan fuses")

    def _assign(self) -> dict[str, list[Node]]:
        """Assign each node to the first delegate in its order that accepts it and has not refused it."""
        takes = {kind: self.claims[kind].nodes for kind in KINDS}
        placed: dict[str, list[Node]] = {kind: [] for kind in KINDS}
        where: dict[Node, str] = {}
        for node in self.nodes:
            edge = self.edge[node]
            if is_getitem(node):  # it has no cost: it follows the node whose result it selects
                order: tuple[str, ...] = tuple(where[n] for n in node.all_input_nodes if n in where)
            else:
                follows = any(where.get(n) == VGF for n in node.all_input_nodes)
                order = self.policy.order(edge, self._is_quantized(node), follows)
            for kind in order:
                if node in takes[kind] and not self.policy.why_refused(edge, kind):
                    where[node] = kind
                    placed[kind].append(node)
                    break
        return placed

    def _partitions(self, placed: Mapping[str, list[Node]]) -> list[tuple[str, tuple[Node, ...]]] | None:
        """The delegates' proposals for the nodes placed with them; None where one does not take all of them: those are
        marked as refused by it."""
        found: list[tuple[str, tuple[Node, ...]]] = []
        for kind in KINDS:
            proposal = self._propose(kind, placed[kind])
            found += [(kind, nodes) for nodes in proposal.partitions]
            lost = [n for n in placed[kind] if n not in proposal.nodes]
            for node in lost:
                why = proposal.reasons.get(node, "without its neighbours it is nothing to the partitioner")
                self._refuse([node], kind, why)
            if lost:
                return None
        result = []
        for module in self.modules:
            here = [(kind, nodes) for kind, nodes in found if nodes[0].graph is module.graph]
            for (kind, _), pieces in zip(here, split_cycles(module, [n for _, n in here]), strict=True):
                for piece in pieces:
                    if len(pieces) > 1 and not self._stands_alone(kind, piece):
                        return None
                    result.append((kind, piece))
        order = {node: index for index, node in enumerate(self.nodes)}
        return sorted(result, key=lambda item: min(order[n] for n in item[1]))

    def _stands_alone(self, kind: str, piece: tuple[Node, ...]) -> bool:
        proposal = self._propose(kind, list(piece))
        lost = [n for n in piece if n not in proposal.nodes]
        self._refuse(lost, kind, "its partition had to be split where delegates wait for each other")
        return not lost

    def _refuse(self, nodes: list[Node], kind: str, reason: str) -> None:
        if nodes:
            self.policy = self.policy.refuse([self.edge[n] for n in nodes], kind, reason)

    def _is_quantized(self, node: Node) -> bool:
        return any(is_dequantize(n) for n in node.all_input_nodes)

    def _offered(self, kind: str, nodes: tuple[Node, ...]) -> Partition:
        """A partition in the form that the policy weighs: nodes that only select a result do not count."""
        other = VULKAN if kind == VGF else VGF
        accepted = self.claims[other].nodes
        swap = not any(self._is_quantized(n) or is_dequantize(n) for n in nodes) and set(nodes) <= accepted
        kept = any(
            self.pinned(n) and (n not in accepted or self.policy.why_refused(self.edge[n], other)) for n in nodes
        )
        counted = tuple(self.edge[n] for n in nodes if not is_getitem(n))
        return Partition(kind, counted, sum(map(flops, nodes)), swap, kept)

    def _result(self, partitions: list[tuple[str, tuple[Node, ...]]], offered: list[Partition]) -> Placement:
        where = {node: (kind, index) for index, (kind, nodes) in enumerate(partitions) for node in nodes}
        result = Placement(partitions)
        for node in self.nodes:
            kind, index = where.get(node, (PORTABLE, -1))
            result.nodes.append(NodePlacement(node.name, target_name(node), kind, index, self._declined(node, kind)))
        for part in offered:
            small = part.kept and len(part.nodes) < self.policy.min_partition_size
            result.reports.append(PartitionReport(part.kind, len(part.nodes), part.flops, KEPT_NOTE if small else ""))
        return result

    def _declined(self, node: Node, taken_by: str) -> dict[str, str]:
        """Why the delegates that were offered the node first did not take it."""
        edge, reasons = self.edge[node], {}
        if is_getitem(node):
            return {}
        follows = False
        for kind in self.policy.order(edge, self._is_quantized(node), follows):
            if kind == taken_by:
                break
            refused = self.policy.why_refused(edge, kind)
            if refused:
                reasons[kind] = refused
            elif node not in self.claims[kind].nodes:
                reasons[kind] = self.claims[kind].reasons.get(
                    node, "its partitioner does not take it, and says no reason"
                )
        return reasons
