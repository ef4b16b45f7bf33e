"""Small nets as edge programs. Imports torch: only for tests that ask for the fixture ``exporting``."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
import torch.nn.functional as F
from executorch.backends.arm.vgf import VgfCompileSpec
from executorch.exir import EdgeCompileConfig, to_edge, to_edge_transform_and_lower
from executorch.exir._serialize._program import deserialize_pte_binary
from torch import Tensor, nn

from tools.executorch_data.nets import Counter as CounterNet
from tools.executorch_data.nets import Mlp, UnifiedVgfVulkan
from vkep.executorch.export import ExportReport, UnifiedGpuCompileSpec, UnifiedGpuPartitioner


class Crossing(nn.Module):
    """Two chains through both delegates, in opposite orders."""

    index: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("index", torch.tensor([2, 0, 1]))

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return torch.index_select(torch.reciprocal(x), 0, self.index), torch.reciprocal(
            torch.index_select(y, 0, self.index)
        )


class Convolution(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.conv(x))


class Pooled(nn.Module):
    """Max pooling, whose edge operator has two results."""

    def forward(self, x: Tensor) -> Tensor:
        return F.max_pool2d(x, 2) + 1.0


class TopOfAll(nn.Module):
    """An operator that no delegate takes."""

    def forward(self, x: Tensor) -> Tensor:
        values, _ = torch.topk(x * 2.0, 2)
        return values


def rfc() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return UnifiedVgfVulkan(), (torch.linspace(-0.8, 0.8, 192).reshape(1, 3, 8, 8),)


def counter() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return CounterNet(), (torch.randn(4),)


def batched() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Mlp(), (torch.randn(4, 24),)


def batch() -> Any:
    """From one to eight rows."""
    return ({0: torch.export.Dim("batch", min=1, max=8)},)


def spec(**fields: Any) -> UnifiedGpuCompileSpec:
    return UnifiedGpuCompileSpec(**{"vgf": VgfCompileSpec(), "min_partition_size": 1, **fields})


def edge(net: nn.Module, inputs: tuple[Tensor, ...]) -> Any:
    """The edge program, decomposed for no one."""
    config = EdgeCompileConfig(_check_ir_validity=False)
    return to_edge(torch.export.export(net.eval(), inputs), compile_config=config).exported_program()


def partition(net: nn.Module, inputs: tuple[Tensor, ...], data_graphs: str = "driver", **fields: Any) -> ExportReport:
    """How the net is shared out, nothing being lowered."""
    partitioner = UnifiedGpuPartitioner(spec(**fields), data_graphs=data_graphs)
    program = edge(net, inputs)
    before = [(node.name, node.target) for node in program.graph.nodes]
    result = partitioner.partition(program)
    assert before == [(node.name, node.target) for node in program.graph.nodes]
    tags = {node.meta["delegation_tag"] for node in program.graph.nodes if "delegation_tag" in node.meta}
    assert tags == set(result.partition_tags)
    return partitioner.report


def lower(net: nn.Module, inputs: tuple[Tensor, ...], dynamic: Any = None, **fields: Any) -> tuple[Any, ExportReport]:
    """The program as the file says it, read back, and the report."""
    partitioner = UnifiedGpuPartitioner(spec(**fields))
    exported = torch.export.export(net.eval(), inputs, dynamic_shapes=dynamic)
    manager = to_edge_transform_and_lower(exported, partitioner=[partitioner])
    return deserialize_pte_binary(manager.to_executorch().buffer).program, partitioner.report


def delegates(program: Any, method: int = 0) -> list[str]:
    return [delegate.id for delegate in program.execution_plan[method].delegates]


def kinds(report: ExportReport) -> Counter[str]:
    """Partitions by delegate."""
    return Counter(part.delegate for part in report.partitions)


def where(report: ExportReport) -> dict[str, str]:
    """Place by operator (of several nodes of one operator, the last)."""
    return {node.target: node.where for node in report.nodes}
