"""Which delegate is offered a node first, and which partitions are too small to keep (the RFC's preferences).

``vgf_first`` and ``vulkan_first`` offer every node to the one named first and then to the other; each takes the nodes
that its lowering accepts. (GatherElements is offered to Vulkan first in every mode: the RFC's example splits there.)
``auto`` depends on the device:

- nodes on quantized tensors (around QuantizeLinear and DequantizeLinear) go to VGF, which computes them in integers;
- where the data graphs are the driver's own, so do convolutions, matrix products and pooling; emulated data graphs run
  as compute shaders, slower than vkep's, and get only what Vulkan declines;
- a node that reads a result of VGF stays there, since each crossing is a separate submit;
- all other nodes go to Vulkan, and to VGF where that declines;
- a VGF partition that holds no quantized node and less than `AUTO_LEAST_FLOPS` is not worth its crossings.

Nodes of a partition smaller than ``min_partition_size`` are offered to the other delegate; the CPU takes them last.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

VULKAN, VGF = "vulkan", "vgf"
PREFERENCES = ("auto", "vgf_first", "vulkan_first")
#: a crossing costs two submits (about 50 us each on the measured devices), in which a GPU computes about this much
AUTO_LEAST_FLOPS = 10_000_000
_HEAVY = frozenset(
    {"Conv", "ConvTranspose", "MatMul", "Gemm", "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"}
)
_QUANTIZING = frozenset({"QuantizeLinear", "DequantizeLinear"})


class OfferedNode(Protocol):
    """The attributes of a node that the policy reads: ONNX nodes and nodes of other graphs, under ONNX's type names,
    have them."""

    @property
    def name(self) -> str:
        """The node's name."""

    @property
    def op_type(self) -> str:
        """Its operator."""

    @property
    def outputs(self) -> Sequence[str]:
        """Names of its outputs."""


#: TOSA gathers rows; there single elements are rows of one element, each with an index that must be computed first
_SINGLE_ELEMENTS = frozenset({"GatherElements"})
_WHY_ASIDE = "TOSA gathers rows, and single elements only as rows of one: Vulkan is asked first"


def key_of(node: OfferedNode) -> str:
    """The identity of a node: its first output, else its name."""
    return next((name for name in node.outputs if name), node.name)


@dataclass(frozen=True)
class Policy:
    """The policy of placement. ``graphs`` is the source of data graphs: "driver", "emulation layers", or "" where the
    VGF delegate is not used, for the reason ``why_not``. ``refused`` maps a delegate's name and a node's first output
    (which stays the same when control flow is expanded again) to the reason why the delegate does not get the node any
    more. ``check_data``: whether kernels report data that break an operator's specification. ``tuned`` are the measured
    tilings of problems.
    """

    prefer: str = "auto"
    min_partition_size: int = 1
    graphs: str = ""
    why_not: str = ""
    refused: Mapping[tuple[str, str], str] = field(default_factory=dict)
    check_data: bool = True
    tuned: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def order(self, node: OfferedNode, quantized: bool, follows_vgf: bool) -> tuple[str, ...]:
        """The delegates to offer a node to, first to last."""
        if not self.graphs:
            return (VULKAN,)
        if self.prefer == "auto":
            heavy = self.graphs == "driver" and node.op_type in _HEAVY
            vgf_first = quantized or follows_vgf or heavy or node.op_type in _QUANTIZING
        else:
            vgf_first = self.prefer == "vgf_first"
        vgf_first = vgf_first and node.op_type not in _SINGLE_ELEMENTS
        return (VGF, VULKAN) if vgf_first else (VULKAN, VGF)

    def passed_over(self, node: OfferedNode) -> dict[str, str]:
        """For each delegate that the preference names but that is not offered nodes first: the reason."""
        aside = self.graphs and self.prefer == "vgf_first" and node.op_type in _SINGLE_ELEMENTS
        return {VGF: _WHY_ASIDE} if aside else {}

    def why_refused(self, node: OfferedNode, delegate: str) -> str:
        """Why a delegate does not get a node; empty where it may get it."""
        return self.refused.get((key_of(node), delegate), "") if self.refused else ""

    def refuse(self, nodes: Iterable[OfferedNode], delegate: str, reason: str) -> Policy:
        """A copy of this policy in which a delegate does not get the nodes."""
        return replace(self, refused={**self.refused, **{(key_of(node), delegate): reason for node in nodes}})

    def prune(self, partitions: Iterable[Partition]) -> Policy | None:
        """A copy of this policy that refuses the nodes of partitions which are not worth keeping; None where all may
        stay.

        One delegate at a time, the preferred first: its nodes may make the other's partitions large enough.
        """
        found = list(partitions)
        for kind in (VULKAN, VGF) if self.prefer == "vulkan_first" else (VGF, VULKAN):
            policy = self
            for partition in found:
                reason = self._why_drop(partition) if partition.kind == kind else ""
                if reason:
                    policy = policy.refuse(partition.nodes, kind, reason)
            if policy is not self:
                return policy
        return None

    def _why_drop(self, partition: Partition) -> str:
        count = len(partition.nodes)
        if partition.kept:
            return ""
        if count < self.min_partition_size:
            return f"its partition has {count} nodes, fewer than min_partition_size={self.min_partition_size}"
        if (
            self.prefer == "auto"
            and partition.kind == VGF
            and partition.replaceable
            and partition.flops < AUTO_LEAST_FLOPS
        ):
            return f"auto: its partition has {partition.flops / 1e6:.2f} MFLOP, too few to pay for crossing delegates"
        return ""


@dataclass(frozen=True)
class Partition:
    """The properties of an island that the policy reads. ``replaceable``: neither quantized nor declined by the other
    delegate. ``kept``: kept however small, since no other delegate runs it."""

    kind: str
    nodes: tuple[OfferedNode, ...]
    flops: int = 0
    replaceable: bool = False
    kept: bool = False
