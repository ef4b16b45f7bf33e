"""Where each node ran and the reason: as text and as data."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpu_shared.notebook import Readable, table
from vkep.arena.records import ArenaStats, format_bytes
from vkep.ir.program import Placement
from vkep.plan.records import Plan
from vkep.text import counted, one_line

if TYPE_CHECKING:
    from vkep.device.delegate import VulkanDelegate


#: places of nodes, sorted by importance to the user
PLACES = ("cpu", "deferred", "control", "vgf", "kompute", "vulkan", "inlined", "folded")


def _size(nbytes: int) -> str:
    return format_bytes(nbytes, exact=False)


def _flops(count: int) -> str:
    scale, unit = next((s for s in ((1e9, "GFLOP"), (1e6, "MFLOP"), (1e3, "kFLOP")) if count >= s[0]), (0, ""))
    return f"{count / scale:.2f} {unit}" if scale else f"{count} FLOP"


@dataclass(frozen=True)
class NodeReport:
    """One node: where it runs ("vulkan", "vgf", "kompute", "cpu", "folded", "deferred", "inlined", "control") and the
    reason where that is not a delegate; ``declined`` has the reasons of the delegates that were offered it first and
    did not take it."""

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
        """The report of a plan."""
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
    """One data graph of the VGF delegate: its TOSA operations, the bytes of its VGF file, of its constants (which the
    driver stores with the pipeline), and of the weights that it shares with Vulkan's kernels."""

    nodes: int
    operations: Sequence[str]
    vgf_bytes: int
    constant_bytes: int = 0
    shared_bytes: int = 0


@dataclass(frozen=True)
class KomputeReport(Readable):
    """One region of the Kompute delegate: on ``device`` by kp's own instance and device, so that ``bytes_in`` and
    ``bytes_out`` pass through the host in each run. ``last_ns`` are the last run's times for copying to kp, running in
    kp, and copying back.
    """

    nodes: int
    device: str
    submits: int
    bytes_in: int
    bytes_out: int
    runs: int
    last_ns: tuple[int, int, int]

    def __str__(self) -> str:
        text = (
            f"{counted(self.nodes, 'node')} in {counted(self.submits, 'submit')} on {self.device}, kp's own instance and "
            f"device; through the host {self.bytes_in} bytes in and {self.bytes_out} out a run"
        )
        if self.runs:
            over, inside, back = (ns / 1e3 for ns in self.last_ns)
            text += f"; last run: {over:.0f} us copying to kp, {inside:.0f} us in kp, {back:.0f} us copying back"
        return text


@dataclass(frozen=True)
class Report(Readable):
    """The placement of every node for the signature that was planned last; ``str`` prints it."""

    model: str
    device: str
    context: str
    nodes: Sequence[NodeReport] = field(default_factory=tuple)
    islands: Sequence[IslandReport] = field(default_factory=tuple)
    cpu_engine: str = ""
    note: str = ""
    graphs: Sequence[GraphReport] = field(default_factory=tuple)
    graph_source: str = ""  #: source of data graphs: "driver" or "emulation layers"; "": the delegate is not used
    why_no_graphs: str = ""
    kompute: Sequence[KomputeReport] = field(default_factory=tuple)

    @property
    def counts(self) -> dict[str, int]:
        """Number of nodes by place."""
        return dict(Counter(n.where for n in self.nodes))

    @property
    def all_on_vulkan(self) -> bool:
        """Whether no node runs on the CPU or waits."""
        return bool(self.nodes) and not any(n.where in ("cpu", "deferred") for n in self.nodes)

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data."""
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
            "kompute": [vars(k) for k in self.kompute],
        }

    def to_json(self, indent: int | None = 2) -> str:
        """The report as JSON."""
        return json.dumps(self.to_dict(), indent=indent)

    def __str__(self) -> str:
        lines = [f"{self.model} on {self.device} (context {self.context})"]
        if self.note:
            lines.append(f"  {self.note}")
        if self.nodes:
            counts = self.counts
            lines.append("  nodes: " + ", ".join(f"{counts[where]} {where}" for where in PLACES if where in counts))
        for node in by_importance(self.nodes):
            for delegate, reason in node.declined.items():
                lines.append(f"  {node.where}: {node.op_type} {node.name!r}; declined by {delegate}: {reason}")
            if node.where in ("cpu", "deferred"):
                engine = f" ({self.cpu_engine})" if node.where == "cpu" and self.cpu_engine else ""
                lines.append(f"  {node.where}{engine}: {node.op_type} {node.name!r}: {node.reason}")
        for index, island in enumerate(self.islands):
            lines.append(
                f"  island {index}: {counted(island.nodes, 'node')} in {counted(island.dispatches, 'dispatch')}, "
                f"{counted(island.barriers, 'barrier')}, {counted(island.pipelines, 'pipeline')}; "
                f"activations {_size(island.activation_bytes)} (live at most {_size(island.live_peak_bytes)}), "
                f"weights {_size(island.constant_bytes)}, {_flops(island.flops)}"
            )
        for index, graph in enumerate(self.graphs):
            lines.append(
                f"  data graph {index} ({self.graph_source}): {counted(graph.nodes, 'node')} in "
                f"{counted(len(graph.operations), 'TOSA operation')} "
                f"({', '.join(dict.fromkeys(graph.operations))}), "
                f"VGF of {graph.vgf_bytes} bytes, {graph.constant_bytes} of them constants; {graph.shared_bytes} bytes of "
                f"weights shared with Vulkan"
            )
        lines += [f"  kompute region {index}: {region}" for index, region in enumerate(self.kompute)]
        return "\n".join(lines)

    def _tables(self) -> str:
        off = [n for n in by_importance(self.nodes) if n.declined or n.where in ("cpu", "deferred")]
        reasons = [
            (n.where, n.op_type, one_line(n.name), *line)
            for n in off
            for line in [*([("", n.reason)] if n.reason else []), *n.declined.items()]
        ]
        kinds = ("nodes", "dispatches", "barriers", "pipelines", "activations", "weights", "arithmetic")
        islands = [
            (i.nodes, i.dispatches, i.barriers, i.pipelines)
            + (_size(i.activation_bytes), _size(i.constant_bytes), _flops(i.flops))
            for i in self.islands
        ]
        graphs = [
            (g.nodes, ", ".join(dict.fromkeys(g.operations)), _size(g.vgf_bytes), _size(g.shared_bytes))
            for g in self.graphs
        ]
        counts = self.counts
        places = [(where, counts[where]) for where in PLACES if where in counts]
        title = one_line(f"{self.model} on {self.device} (context {self.context})")
        return "".join(
            (
                table(title, ("place", "nodes"), places or [(self.note or "nothing is planned", "")]),
                table("Nodes elsewhere", ("place", "operator", "node", "declined by", "reason"), reasons),
                table("Islands on Vulkan", kinds, islands),
                table("Data graphs", ("nodes", "TOSA operations", "VGF", "weights shared"), graphs),
                table("Kompute regions", (), [(str(region),) for region in self.kompute]),
            )
        )


@dataclass(frozen=True)
class MemoryReport(Readable):
    """Device memory of a context: the arena's statistics and the constants by content key, in bytes; for this session's
    data graphs the weights that they share with kernels (``shared_bytes``) and those that the driver holds separately.
    """

    arena: ArenaStats
    constants: Mapping[str, int]
    dump: str = field(repr=False)
    shared_bytes: int = 0
    graph_constant_bytes: int = 0
    users: Mapping[str, int] = field(default_factory=dict)  #: plans that use each constant, by key

    @classmethod
    def of(cls, delegate: VulkanDelegate, shared_bytes: int = 0, graph_constant_bytes: int = 0) -> MemoryReport:
        """The present use of memory on the delegate's context."""
        arena, store = delegate.arena, delegate.constants
        return cls(arena.stats, store.resident, arena.dump(), shared_bytes, graph_constant_bytes, store.users)

    def _tables(self) -> str:
        arena, weights = self.arena, sum(self.constants.values())
        rows = [
            ("activations and tensors in use", _size(arena.bytes_in_use)),
            ("at most until now", _size(arena.max_bytes_in_use)),
            ("held from the driver for them", _size(arena.total_allocated_bytes)),
            ("limit", _size(arena.bytes_limit) if arena.bytes_limit else "none"),
            (f"weights, in {counted(len(self.constants), 'constant')}", _size(weights)),
        ]
        if self.shared_bytes or self.graph_constant_bytes:
            rows.append(("of these read by data graphs", _size(self.shared_bytes)))
            rows.append(("constants of data graphs alone", _size(self.graph_constant_bytes)))
        return table("Device memory of the context", (), rows)

    def __str__(self) -> str:
        weights = sum(self.constants.values())
        text = f"{self.dump}\nweights: {_size(weights)} in {counted(len(self.constants), 'constant')}"
        often = [key for key, users in self.users.items() if users > 1]
        if often:
            saved = sum(self.constants.get(key, 0) * (self.users[key] - 1) for key in often)
            text += f", {len(often)} of them used by several plans ({_size(saved)} not stored again)"
        if self.shared_bytes or self.graph_constant_bytes:
            text += (
                f"; data graphs read {_size(self.shared_bytes)} of them in place and have "
                f"{_size(self.graph_constant_bytes)} of constants of their own"
            )
        return text


def node_reports(placements: Sequence[Placement]) -> list[NodeReport]:
    """One report for each node, in the placements' order."""
    return [NodeReport(p.node.name, p.node.op_type, p.node.domain, p.where, p.reason, p.declined) for p in placements]


def by_importance(nodes: Sequence[NodeReport], nanoseconds: Mapping[str, float] | None = None) -> list[NodeReport]:
    """Nodes in the order of `PLACES`; within a place first those that a delegate declined, then the slowest, where
    ``nanoseconds`` has their times by name."""
    times = nanoseconds or {}
    return sorted(nodes, key=lambda n: (PLACES.index(n.where), not n.declined, -times.get(n.name, 0.0)))
