"""Export for ExecuTorch: one partitioner that divides a graph between the Vulkan and the VGF delegate (the RFC's phase
1, pytorch/executorch issue 19298).

    from vkep.executorch.export import UnifiedGpuCompileSpec, UnifiedGpuPartitioner

    spec = UnifiedGpuCompileSpec(vgf=VgfCompileSpec(), shared_context_token="scene", prefer="vgf_first")
    lowered = to_edge_transform_and_lower(exported, partitioner=[UnifiedGpuPartitioner(spec)])

Only this package needs torch and executorch (``pip install vkep[executorch]``); it imports them on the first use of the
partitioner.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from gpu_shared.compile_spec import make_shared_gpu_compile_specs
from vkep.executorch.export.report import ExportReport, NodePlacement, PartitionReport
from vkep.executorch.export.spec import UnifiedGpuCompileSpec

if TYPE_CHECKING:
    from vkep.executorch.export.partitioner import UnifiedGpuPartitioner

__all__ = [
    "UnifiedGpuCompileSpec",
    "UnifiedGpuPartitioner",
    "make_shared_gpu_compile_specs",
    "ExportReport",
    "NodePlacement",
    "PartitionReport",
]


def __getattr__(name: str) -> Any:
    """``UnifiedGpuPartitioner`` is a subclass of executorch's ``Partitioner``: importing its module imports torch."""
    if name != "UnifiedGpuPartitioner":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = importlib.import_module("vkep.executorch.export.partitioner")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("vkep"):
            raise
        raise ModuleNotFoundError(
            f"exporting for ExecuTorch needs the package {error.name!r}: pip install 'vkep[executorch]'",
            name=error.name,
        ) from error
    return module.UnifiedGpuPartitioner
