"""The unified partitioner. Importing this module imports torch and executorch."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, final

import torch
from executorch.backends.arm.vgf import VgfPartitioner
from executorch.backends.vulkan.partitioner.vulkan_partitioner import VulkanPartitioner
from executorch.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult
from executorch.exir.backend.utils import tag_constant_data
from torch.export.exported_program import ExportedProgram

from vkep.executorch.export.edge import EdgeNode, is_dequantize, target_name
from vkep.executorch.export.offers import TAG
from vkep.executorch.export.placement import Placement, Placer
from vkep.executorch.export.report import ExportReport
from vkep.executorch.export.spec import UnifiedGpuCompileSpec
from vkep.placement.policy import VGF, VULKAN, Policy

logger = logging.getLogger("vkep.executorch.export")
#: where the target device's data graphs can come from (`vkep.placement.policy.Policy.graphs`)
DATA_GRAPHS = ("driver", "emulation layers")


@final
class UnifiedGpuPartitioner(Partitioner):
    """Divides each method's graph between the Vulkan and the VGF delegate (RFC, phase 1).

    ``compile_spec`` is a `UnifiedGpuCompileSpec`. ``data_graphs`` names the source of the target device's data graphs,
    which only ``prefer="auto"`` uses: "driver" (VGF gets convolutions, matrix products and pooling) or "emulation
    layers" (VGF gets only what Vulkan declines, and quantized nodes).

    For ``to_edge_transform_and_lower(exported, partitioner=[UnifiedGpuPartitioner(spec)])``. Then `report` has each
    node's delegate and the reason; `reports` has one report for each method, in the order in which they were
    partitioned.

    Raises ``TypeError`` and ``ValueError`` for arguments that are not allowed.
    """

    def __init__(self, compile_spec: UnifiedGpuCompileSpec, *, data_graphs: str = "driver") -> None:
        super().__init__()
        if not isinstance(compile_spec, UnifiedGpuCompileSpec):
            raise TypeError(f"compile_spec is {compile_spec!r}, expected a UnifiedGpuCompileSpec")
        if data_graphs not in DATA_GRAPHS:
            raise ValueError(f"data_graphs is {data_graphs!r}, expected one of {', '.join(DATA_GRAPHS)}")
        self.compile_spec = compile_spec
        self.reports: list[ExportReport] = []
        self._partitioners = {
            VULKAN: VulkanPartitioner(dict(compile_spec.vulkan_compile_options or {})),
            VGF: VgfPartitioner(compile_spec.vgf),
        }
        for partitioner in self._partitioners.values():
            partitioner.delegation_spec.compile_specs.extend(compile_spec.shared_compile_specs())
        self._policy = Policy(str(compile_spec.prefer), int(compile_spec.min_partition_size), graphs=data_graphs)

    @property
    def report(self) -> ExportReport:
        """The report of the method partitioned last. Raises ``RuntimeError`` before the first one."""
        if not self.reports:
            raise RuntimeError(
                "nothing was partitioned yet: call to_edge_transform_and_lower with this partitioner first"
            )
        return self.reports[-1]

    def transform_for_pre_decomposition(self, exported_program: ExportedProgram) -> ExportedProgram:
        """The transformation that the VGF delegate's lowering needs before decompositions."""
        return self._partitioners[VGF].transform_for_pre_decomposition(exported_program)

    def ops_to_not_decompose(
        self, ep: ExportedProgram
    ) -> tuple[list[torch._ops.OpOverload], Callable[[torch.fx.Node], bool] | None]:
        """The operators that are not decomposed: those that the first delegate in the policy's order wants whole. Where
        ``auto`` offers a node to Vulkan first, the VGF delegate must want it too, since a node whose neighbours go to
        VGF follows them."""
        wanted = {kind: part.ops_to_not_decompose(ep) for kind, part in self._partitioners.items()}

        def keep(node: torch.fx.Node) -> bool:
            return all(_wants(wanted[kind], node) for kind in self._whose_word(node))

        return list({op for ops, _ in wanted.values() for op in ops}), keep

    def _whose_word(self, node: torch.fx.Node) -> tuple[str, ...]:
        quantized = any(is_dequantize(n) for n in node.all_input_nodes)
        first = self._policy.order(EdgeNode(node), quantized, follows_vgf=False)[0]
        return (VULKAN, VGF) if self._policy.prefer == "auto" and first == VULKAN else (first,)

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        """Tag the nodes of each partition. Constants get the tag of the one partition that reads them, or a copy for
        each."""
        whole = set(self.ops_to_not_decompose(exported_program)[0])
        placer = Placer(
            exported_program,
            self._partitioners,
            self._policy,
            pinned=lambda node: getattr(node.target, "_op", node.target) in whole,
        )
        placement = placer.place()
        tags = self._tag(exported_program, placement)
        report = ExportReport(
            str(self.compile_spec.prefer),
            self._policy.min_partition_size,
            self._policy.graphs,
            tuple(placement.nodes),
            tuple(placement.reports),
        )
        self.reports.append(report)
        logger.info("%s", report)
        for node in (n for n in placer.nodes if placer.pinned(n) and TAG not in n.meta):
            logger.warning(
                "%s %r was kept whole for a delegate that does not take it: it needs a kernel of that name at run time",
                target_name(node),
                node.name,
            )
        return PartitionResult(tagged_exported_program=exported_program, partition_tags=tags)

    def _tag(self, program: ExportedProgram, placement: Placement) -> dict[str, DelegationSpec]:
        tags: dict[str, DelegationSpec] = {}
        for index, (kind, nodes) in enumerate(placement.partitions):
            tag = f"{kind}_{index}"
            tags[tag] = self._partitioners[kind].delegation_spec
            for node in nodes:
                node.meta[TAG] = tag
        tag_constant_data(program)
        if (self.compile_spec.vulkan_compile_options or {}).get("alias_buffer_mutations"):
            _tag_mutated_buffers(program)
        return tags


def _wants(wanted: tuple[list[Any], Callable[[torch.fx.Node], bool] | None], node: torch.fx.Node) -> bool:
    ops, check = wanted
    return node.target in ops and (check is None or check(node))


def _tag_mutated_buffers(program: ExportedProgram) -> None:
    """A buffer that the program changes belongs to the Vulkan partition that alone reads it (VGF graphs hold no state);
    otherwise it stays outside, and the program writes it back. This needs ``alias_buffer_mutations``: without it a
    Vulkan delegate does not record which of its results belongs to which buffer."""
    signature = program.graph_signature
    mutated = set(signature.buffers_to_mutate.values())
    for node in program.graph.nodes:
        if node.op == "placeholder" and signature.inputs_to_buffers.get(node.name) in mutated:
            tags = {user.meta.get(TAG) for user in node.users}
            tag = tags.pop() if len(tags) == 1 else None
            if tag is not None and tag.startswith(VULKAN):
                node.meta[TAG] = tag
