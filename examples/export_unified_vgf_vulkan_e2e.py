"""Export the RFC's model to one .pte for both delegates: `python examples/export_unified_vgf_vulkan_e2e.py --out_dir FOLDER`.

Needs `pip install vkep[executorch]`, and model-converter (of ai-ml-sdk-model-converter) on PATH. It writes
unified_vgf_vulkan.pte, input0.bin and expected0.bin (float32, as executor_runner takes and writes them), and says which
node went to which delegate. The options are those of pytorch/executorch issue 19298.
"""

import argparse
import sys
from pathlib import Path
from typing import Any


def model() -> Any:
    """TOSA-friendly ends around an island of index operations that the VGF delegate does not take."""
    import torch
    import torch.nn.functional as F

    class UnifiedVgfVulkanModel(torch.nn.Module):
        channel_index: torch.Tensor
        row_index: torch.Tensor
        col_gather_index: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            order = torch.tensor([3, 1, 2, 0], dtype=torch.int64)
            self.register_buffer("channel_index", torch.tensor([2, 0, 1], dtype=torch.int64))
            self.register_buffer("row_index", order)
            self.register_buffer("col_gather_index", order.view(1, 1, 1, 4).repeat(1, 3, 4, 1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = F.avg_pool2d(x.transpose(-1, -2), kernel_size=2, stride=2)
            x = torch.index_select(x, dim=1, index=self.channel_index)
            x = torch.gather(x, dim=3, index=self.col_gather_index)
            x = torch.index_select(x, dim=2, index=self.row_index)
            return (torch.sin(x) * torch.reciprocal(torch.cos(x))).transpose(-1, -2)

    return UnifiedVgfVulkanModel().eval()


def export(given: argparse.Namespace) -> None:
    """Write the three files, and print the report."""
    import torch
    from executorch.backends.arm.vgf import VgfCompileSpec
    from executorch.exir import to_edge_transform_and_lower

    from vkep.executorch.export import UnifiedGpuCompileSpec, UnifiedGpuPartitioner

    net = model()
    x = torch.linspace(-0.8, 0.8, steps=1 * 3 * 8 * 8, dtype=torch.float32).reshape(1, 3, 8, 8)
    spec = UnifiedGpuCompileSpec(
        vgf=VgfCompileSpec(),
        shared_context_token=given.token,
        shared_context_mode="lookup_or_create",
        shared_sync_mode=given.sync_mode,
        shared_group_id=given.group_id,
        min_partition_size=given.min_partition_size,
        prefer=given.prefer,
    )
    partitioner = UnifiedGpuPartitioner(spec)
    program = to_edge_transform_and_lower(torch.export.export(net, (x,)), partitioner=[partitioner]).to_executorch()

    given.out_dir.mkdir(parents=True, exist_ok=True)
    with (given.out_dir / "unified_vgf_vulkan.pte").open("wb") as file:
        program.write_to_file(file)
    (given.out_dir / "input0.bin").write_bytes(x.numpy().tobytes())
    with torch.no_grad():
        (given.out_dir / "expected0.bin").write_bytes(net(x).contiguous().numpy().tobytes())
    print(partitioner.report)
    print("delegates:", " -> ".join(d.id for d in program.executorch_program.execution_plan[0].delegates))
    print("wrote", given.out_dir / "unified_vgf_vulkan.pte")


def main() -> int:
    parser = argparse.ArgumentParser(description="Export the RFC's model for the VGF and the Vulkan delegate.")
    parser.add_argument("--out_dir", type=Path, default=Path("unified_gpu"), help="folder to write to")
    parser.add_argument("--token", default="vgf_vk_unified_e2e", help="the shared context's token")
    parser.add_argument("--group_id", type=int, default=7, help="the shared context's group")
    parser.add_argument("--prefer", choices=("auto", "vgf_first", "vulkan_first"), default="vgf_first")
    parser.add_argument("--min_partition_size", type=int, default=1, help="smaller partitions are dissolved")
    parser.add_argument("--sync_mode", choices=("timeline", "queue_wait_idle", "none"), default="timeline")
    given = parser.parse_args()
    try:
        export(given)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] not in ("torch", "executorch", "torchao"):
            raise
        print(f"this example needs {error.name}: pip install 'vkep[executorch]'", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
