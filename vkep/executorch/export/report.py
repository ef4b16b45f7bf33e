"""The delegate of each node at export, and the reason: as text and as data."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

#: where a node runs that no delegate takes: ExecuTorch's portable kernels
PORTABLE = "portable"


@dataclass(frozen=True)
class NodePlacement:
    """One node of the edge graph. ``where`` is "vulkan", "vgf" or "portable"; ``partition`` counts the partitions (-1:
    none); ``declined`` has the reasons of the delegates that were offered it first and did not take it.
    """

    name: str
    target: str
    where: str
    partition: int = -1
    declined: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class PartitionReport:
    """One partition: a delegate of the program. ``note`` is a remark about it, or empty."""

    delegate: str
    nodes: int
    flops: int
    note: str = ""


@dataclass(frozen=True)
class ExportReport:
    """The report of how one method's graph was divided; ``str`` formats it."""

    prefer: str
    min_partition_size: int
    data_graphs: str
    nodes: Sequence[NodePlacement]
    partitions: Sequence[PartitionReport]

    @property
    def counts(self) -> dict[str, int]:
        """Number of nodes by place."""
        return dict(Counter(node.where for node in self.nodes))

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data."""
        return {**asdict(self), "counts": self.counts}

    def to_json(self, indent: int | None = 2) -> str:
        """The report as JSON."""
        return json.dumps(self.to_dict(), indent=indent)

    def __str__(self) -> str:
        counts = self.counts
        places = ", ".join(f"{counts[where]} {where}" for where in ("vulkan", "vgf", PORTABLE) if where in counts)
        graphs = f"; target's data graphs: {self.data_graphs}" if self.prefer == "auto" else ""
        lines = [
            f"prefer {self.prefer}, min_partition_size {self.min_partition_size}{graphs}",
            f"  nodes: {places or 'none'}",
        ]
        for index, part in enumerate(self.partitions):
            note = f" ({part.note})" if part.note else ""
            lines.append(
                f"  partition {index}: {part.delegate}, {part.nodes} nodes, {part.flops / 1e6:.2f} MFLOP{note}"
            )
        for node in self.nodes:
            for delegate, reason in node.declined.items():
                lines.append(f"  {node.where}: {node.target} {node.name!r}; declined by {delegate}: {reason}")
        return "\n".join(lines)
