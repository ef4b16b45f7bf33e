"""Exports the nets of the catalog: a program for each variant, with inputs and eager float32 outputs."""

from __future__ import annotations

import copy
import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tools.executorch_data.catalog import CATALOG, Entry, Inputs

#: the shared context of the programs whose variant is unified
TOKEN = "executorch_data"


def partitioners(variant: str, options: Mapping[str, Any]) -> list[Any]:
    """The partitioners of a variant. The unified ones keep partitions of one node: small nets have few."""
    from executorch.backends.arm.vgf import VgfCompileSpec, VgfPartitioner
    from executorch.backends.vulkan.partitioner.vulkan_partitioner import VulkanPartitioner

    from vkep.executorch.export import UnifiedGpuCompileSpec, UnifiedGpuPartitioner

    if variant == "portable":
        return []
    if variant == "vulkan":
        return [VulkanPartitioner(dict(options))]
    if variant == "vgf":
        return [VgfPartitioner(VgfCompileSpec())]
    spec = UnifiedGpuCompileSpec(
        vgf=VgfCompileSpec(),
        vulkan_compile_options=dict(options),
        shared_context_token=TOKEN,
        min_partition_size=1,
        prefer=variant,
    )
    return [UnifiedGpuPartitioner(spec)]


def quantized(net: nn.Module, inputs: Inputs, how: str) -> nn.Module:
    """The net with observers run once on the inputs and converted (PT2E)."""
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    quantizer: Any
    if how == "vgf":
        from executorch.backends.arm.quantizer import VgfQuantizer, get_symmetric_quantization_config
        from executorch.backends.arm.vgf import VgfCompileSpec

        quantizer = VgfQuantizer(VgfCompileSpec())
        quantizer.set_global(get_symmetric_quantization_config())
    else:
        from executorch.backends.vulkan.quantizer import vulkan_quantizer

        quantizer = vulkan_quantizer.VulkanQuantizer()
        quantizer.set_global(vulkan_quantizer.get_symmetric_quantization_config(is_dynamic=how == "vulkan_dynamic"))
    prepared = prepare_pt2e(torch.export.export(net, inputs).module(), quantizer)
    prepared(*inputs)
    return convert_pt2e(prepared)


def program(entry: Entry, variant: str) -> Any:
    """The executorch program manager of a variant, and the modules and inputs that its outputs come from."""
    from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig, to_edge_transform_and_lower

    torch.manual_seed(0)
    modules = {name: net.eval() for name, net in entry.methods().items()}
    torch.manual_seed(1)
    inputs = entry.inputs()
    more = entry.more_inputs() if entry.more_inputs else ()
    if entry.quantize:
        modules = {name: quantized(net, inputs[name], entry.quantize) for name, net in modules.items()}
    dynamic = entry.dynamic() if entry.dynamic else None
    exported = {
        name: torch.export.export(
            copy.deepcopy(net), inputs[name], dynamic_shapes=dynamic if name == "forward" else None
        )
        for name, net in modules.items()
    }
    lowered = to_edge_transform_and_lower(
        exported,
        partitioner={name: partitioners(variant, entry.vulkan_options) for name in exported},
        compile_config=EdgeCompileConfig(_check_ir_validity=False),
    )
    config = ExecutorchBackendConfig(external_constants=entry.external)
    return (
        lowered.to_executorch(config),
        modules,
        [(name, inputs[name]) for name in modules] + [("forward", given) for given in more],
    )


def write(name: str, variant: str, folder: Path) -> list[Path]:
    """Write ``<variant>.pte`` (and .ptd) and, once for a model, ``cases.npz`` with ``cases.json``."""
    entry = CATALOG[name]
    manager, modules, cases = program(entry, variant)
    folder.mkdir(parents=True, exist_ok=True)
    written = [folder / f"{variant}.pte"]
    with written[0].open("wb") as file:
        manager.write_to_file(file)
    if entry.external:
        written += _write_constants(manager, folder, variant)
    write_cases(folder, entry, modules, cases)
    return written


def _write_constants(manager: Any, folder: Path, variant: str) -> list[Path]:
    """``<variant>.ptd``, or ``<variant>.<k>.ptd`` where there are several files of constants."""
    with tempfile.TemporaryDirectory() as made:
        manager.write_tensor_data_to_file(made)
        files = sorted(Path(made).iterdir())
        names = [f"{variant}.ptd"] if len(files) == 1 else [f"{variant}.{k}.ptd" for k in range(len(files))]
        return [Path(shutil.move(file, folder / name)) for file, name in zip(files, names, strict=True)]


def write_cases(folder: Path, entry: Entry, modules: Mapping[str, nn.Module], cases: list[tuple[str, Inputs]]) -> None:
    arrays: dict[str, Any] = {}
    described: list[dict[str, Any]] = []
    for method, inputs in cases:
        for _ in range(entry.runs):
            index = len(described)
            with torch.no_grad():
                outputs: Any = modules[method](*inputs)
            outputs = [outputs] if isinstance(outputs, Tensor) else list(outputs)
            arrays.update({f"case{index}_input{k}": v.numpy() for k, v in enumerate(inputs)})
            arrays.update({f"case{index}_expected{k}": v.numpy() for k, v in enumerate(outputs)})
            described.append({"method": method, "inputs": len(inputs), "outputs": len(outputs)})
    np.savez_compressed(folder / "cases.npz", **arrays)
    (folder / "cases.json").write_text(json.dumps({"tolerance": entry.tolerance, "cases": described}, indent=1) + "\n")
