"""Which delegate is offered a node first, and which partitions are too small to keep (the RFC's preferences).

``vgf_first`` and ``vulkan_first`` offer every node to the one named first and then to the other; each takes what its
lowering accepts. (GatherElements is offered to Vulkan first in every mode: the RFC's example splits there.) ``auto`` is this
policy, from what vkep knows of the device:

- nodes on quantized tensors (around QuantizeLinear and DequantizeLinear) go to VGF, whose integers they are;
- where the data graphs are the driver's own, so do convolutions, matrix products and pooling; emulated data graphs run
  as compute shaders, slower than vkep's, and get only what Vulkan declines;
- a node that reads what VGF made stays there, for each crossing is a submit of its own;
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
#: a crossing costs two submits (some 50 us each on the devices measured), in which a GPU does about this much
AUTO_LEAST_FLOPS = 10_000_000
_HEAVY = frozenset(
    {"Conv", "ConvTranspose", "MatMul", "Gemm", "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"}
)
_QUANTIZING = frozenset({"QuantizeLinear", "DequantizeLinear"})


class OfferedNode(Protocol):
    """What the policy reads of a node: an ONNX node has it, and so have other graphs' nodes under ONNX's type names."""

    @property
    def name(self) -> str:
        """The node's name."""

    @property
    def op_type(self) -> str:
        """Its operator."""

    @property
    def outputs(self) -> Sequence[str]:
        """Names of its outputs."""


#: TOSA gathers rows; single elements are rows of one element each there, with an index each that must be computed first
_SINGLE_ELEMENTS = frozenset({"GatherElements"})
_WHY_ASIDE = "TOSA gathers rows, and single elements only as rows of one: Vulkan is asked first"


def key_of(node: OfferedNode) -> str:
    """What identifies a node: its first output, else its name."""
    return next((name for name in node.outputs if name), node.name)


@dataclass(frozen=True)
class Policy:
    """How nodes are shared out. ``graphs`` says where data graphs come from: "driver", "emulation layers", or "" where
    the VGF delegate takes no part, for the reason ``why_not``. ``refused`` holds why a delegate (by name) does not get a
    node (by its first output, which stays when control flow is laid out anew) any more. ``check_data``: whether kernels note
    data that break an operator's specification. ``tuned`` are tilings that measuring chose for problems.
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
        """Why a delegate is not asked first that the preference names, by delegate."""
        aside = self.graphs and self.prefer == "vgf_first" and node.op_type in _SINGLE_ELEMENTS
        return {VGF: _WHY_ASIDE} if aside else {}

    def why_refused(self, node: OfferedNode, delegate: str) -> str:
        """Why a delegate does not get a node; empty where it may have it."""
        return self.refused.get((key_of(node), delegate), "") if self.refused else ""

    def refuse(self, nodes: Iterable[OfferedNode], delegate: str, reason: str) -> Policy:
        """This policy with the nodes kept from a delegate."""
        return replace(self, refused={**self.refused, **{(key_of(node), delegate): reason for node in nodes}})

    def prune(self, partitions: Iterable[Partition]) -> Policy | None:
        """This policy with the nodes of partitions that are not worth keeping refused; None where all may stay.

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
    """An island as the policy sees it. ``replaceable``: neither quantized nor declined by the other delegate.
    ``kept``: kept however small, since no other delegate runs it.
    """

    kind: str
    nodes: tuple[OfferedNode, ...]
    flops: int = 0
    replaceable: bool = False
    kept: bool = False
