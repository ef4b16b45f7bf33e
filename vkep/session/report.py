"""What ran where, and why: for people to print and for programs to read."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vkep.lowering.program import Placement
from vkep.memory.records import ArenaStats
from vkep.plan.records import Plan


@dataclass(frozen=True)
class NodeReport:
    """One node: where it runs ("vulkan", "vgf", "cpu", "folded", "deferred", "inlined", "control") and the reason where
    that is no delegate; ``declined`` says why the delegates that were asked before did not take it.
    """

    name: str
    op_type: str
    domain: str
    where: str
    reason: str
    declined: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class IslandReport:
    """One island: its plan's numbers."""

    nodes: int
    dispatches: int
    barriers: int
    pipelines: int
    activation_bytes: int
    live_peak_bytes: int
    constant_bytes: int
    flops: int

    @classmethod
    def of(cls, plan: Plan, nodes: int) -> IslandReport:
        return cls(
            nodes=nodes,
            dispatches=len(plan.dispatches),
            barriers=sum(d.barrier for d in plan.dispatches),
            pipelines=len(plan.pipelines),
            activation_bytes=plan.activation_bytes,
            live_peak_bytes=plan.live_peak_bytes,
            constant_bytes=sum(c.nbytes for c in plan.constants),
            flops=sum(d.flops for d in plan.dispatches),
        )


@dataclass(frozen=True)
class GraphReport:
    """One data graph of the VGF delegate: its TOSA operations, and the bytes of its VGF file."""

    nodes: int
    operations: Sequence[str]
    vgf_bytes: int


@dataclass(frozen=True)
class Report:
    """The placement of every node for the signature that was planned last; ``str`` prints it."""

    model: str
    device: str
    context: str
    nodes: Sequence[NodeReport] = field(default_factory=tuple)
    islands: Sequence[IslandReport] = field(default_factory=tuple)
    cpu_engine: str = ""
    note: str = ""
    graphs: Sequence[GraphReport] = field(default_factory=tuple)
    graph_source: str = (
        ""  #: where data graphs come from: "driver" or "emulation layers"; "": the delegate takes no part
    )
    why_no_graphs: str = ""

    @property
    def counts(self) -> dict[str, int]:
        """Nodes by place."""
        return dict(Counter(n.where for n in self.nodes))

    @property
    def all_on_vulkan(self) -> bool:
        """Whether no node runs on the CPU or waits."""
        return bool(self.nodes) and not any(n.where in ("cpu", "deferred") for n in self.nodes)

    def to_dict(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "device": self.device,
            "context": self.context,
            "counts": self.counts,
            "cpu_engine": self.cpu_engine,
            "note": self.note,
            "nodes": [vars(n) for n in self.nodes],
            "islands": [vars(i) for i in self.islands],
            "graphs": [vars(g) for g in self.graphs],
            "graph_source": self.graph_source,
            "why_no_graphs": self.why_no_graphs,
        }

    def to_json(self, indent: int | None = 2) -> str:
        return json.dumps(self.to_dict(), indent=indent)

    def __str__(self) -> str:
        lines = [f"{self.model} on {self.device} (context {self.context})"]
        if self.note:
            lines.append(f"  {self.note}")
        if self.nodes:
            counts = self.counts
            lines.append(
                "  nodes: "
                + ", ".join(
                    f"{counts[w]} {w}"
                    for w in ("vulkan", "vgf", "folded", "inlined", "control", "cpu", "deferred")
                    if w in counts
                )
            )
        for index, island in enumerate(self.islands):
            lines.append(
                f"  island {index}: {island.nodes} nodes in {island.dispatches} dispatches, {island.barriers} barriers, "
                f"{island.pipelines} pipelines; activations {island.activation_bytes / 2**20:.1f} MiB "
                f"(live at most {island.live_peak_bytes / 2**20:.1f}), weights {island.constant_bytes / 2**20:.1f} MiB, "
                f"{island.flops / 1e9:.2f} GFLOP"
            )
        for index, graph in enumerate(self.graphs):
            lines.append(
                f"  data graph {index} ({self.graph_source}): {graph.nodes} nodes in {len(graph.operations)} TOSA operations "
                f"({', '.join(dict.fromkeys(graph.operations))}), VGF of {graph.vgf_bytes} bytes"
            )
        for node in self.nodes:
            for delegate, reason in node.declined.items():
                lines.append(f"  {node.where}: {node.op_type} {node.name!r}; declined by {delegate}: {reason}")
            if node.where in ("cpu", "deferred"):
                engine = f" ({self.cpu_engine})" if node.where == "cpu" and self.cpu_engine else ""
                lines.append(f"  {node.where}{engine}: {node.op_type} {node.name!r}: {node.reason}")
        return "\n".join(lines)


@dataclass(frozen=True)
class MemoryReport:
    """Device memory of a context: the arena's statistics and the constants by content key, in bytes."""

    arena: ArenaStats
    constants: Mapping[str, int]
    dump: str = field(repr=False)

    def __str__(self) -> str:
        weights = sum(self.constants.values())
        return f"{self.dump}\nweights: {weights / 2**20:.1f} MiB in {len(self.constants)} constants"


def node_reports(placements: Sequence[Placement]) -> list[NodeReport]:
    return [NodeReport(p.node.name, p.node.op_type, p.node.domain, p.where, p.reason, p.declined) for p in placements]
