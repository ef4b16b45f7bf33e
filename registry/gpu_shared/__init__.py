"""A GPU runtime that delegates share: one Vulkan device, queue and timeline per context, identified by token and group.

Importing this package loads neither cffi nor Vulkan; names that need them are loaded on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from gpu_shared.capabilities import CooperativeMatrixShape, DeviceCapabilities, DeviceInfo, MemoryHeap, QueueFamily
from gpu_shared.compile_spec import (
    CompileSpec,
    ContextMode,
    Prefer,
    SharedGpuCompileSpec,
    SyncMode,
    make_shared_gpu_compile_specs,
    parse_shared_gpu_compile_spec,
)
from gpu_shared.context_registry import SharedGpuContextRegistry
from gpu_shared.errors import (
    ClosedError,
    ContextExistsError,
    ContextIncompatibleError,
    ContextNotFoundError,
    DeviceLostError,
    DeviceNotFoundError,
    DriverNotFoundError,
    ForkedProcessError,
    GpuError,
    OutOfDeviceMemoryError,
    OutOfHostMemoryError,
)

if TYPE_CHECKING:
    from gpu_shared.commands import CommandBuffer, CommandPool, QueryPool
    from gpu_shared.context import SharedGpuContext
    from gpu_shared.data_graph import DataGraphPipeline, DataGraphSession, GraphConstant, GraphResource
    from gpu_shared.descriptors import BufferRange, DescriptorSetLayout, DescriptorSets
    from gpu_shared.device import Device
    from gpu_shared.handles import Handle
    from gpu_shared.instance import Instance, ValidationMessage, list_devices, select_device, validation_log
    from gpu_shared.lease import DelegateLease
    from gpu_shared.lifetime import live_counts
    from gpu_shared.memory import Buffer, HeapBudget, memory_budget
    from gpu_shared.pipeline import ComputePipeline, PipelineCache, PipelineLayout, ShaderModule
    from gpu_shared.resources import SharedResource
    from gpu_shared.tensors import ArmTensor
    from gpu_shared.timeline import PreparedSubmit, Timeline

_LAZY = {
    "Buffer": "memory",
    "BufferRange": "descriptors",
    "CommandBuffer": "commands",
    "CommandPool": "commands",
    "ComputePipeline": "pipeline",
    "DataGraphPipeline": "data_graph",
    "DataGraphSession": "data_graph",
    "DelegateLease": "lease",
    "DescriptorSetLayout": "descriptors",
    "DescriptorSets": "descriptors",
    "Device": "device",
    "GraphConstant": "data_graph",
    "GraphResource": "data_graph",
    "Handle": "handles",
    "HeapBudget": "memory",
    "ImportedBuffer": "external",
    "ImportedSemaphore": "external",
    "Instance": "instance",
    "MemorySource": "external",
    "PipelineCache": "pipeline",
    "PipelineLayout": "pipeline",
    "PreparedSubmit": "timeline",
    "QueryPool": "commands",
    "ShaderModule": "pipeline",
    "SharedGpuContext": "context",
    "SharedResource": "resources",
    "ArmTensor": "tensors",
    "Timeline": "timeline",
    "ValidationMessage": "instance",
    "list_devices": "instance",
    "live_counts": "lifetime",
    "memory_budget": "memory",
    "select_device": "instance",
    "validation_log": "instance",
}

__all__ = [
    "Buffer",
    "BufferRange",
    "ClosedError",
    "CommandBuffer",
    "CommandPool",
    "CompileSpec",
    "ComputePipeline",
    "ContextExistsError",
    "ContextIncompatibleError",
    "ContextMode",
    "ContextNotFoundError",
    "CooperativeMatrixShape",
    "DataGraphPipeline",
    "DataGraphSession",
    "DelegateLease",
    "DescriptorSetLayout",
    "DescriptorSets",
    "Device",
    "DeviceCapabilities",
    "DeviceInfo",
    "DeviceLostError",
    "DeviceNotFoundError",
    "DriverNotFoundError",
    "ForkedProcessError",
    "GpuError",
    "GraphConstant",
    "GraphResource",
    "Handle",
    "HeapBudget",
    "ImportedBuffer",
    "ImportedSemaphore",
    "Instance",
    "MemoryHeap",
    "MemorySource",
    "OutOfDeviceMemoryError",
    "OutOfHostMemoryError",
    "PipelineCache",
    "PipelineLayout",
    "Prefer",
    "PreparedSubmit",
    "QueryPool",
    "QueueFamily",
    "ShaderModule",
    "SharedGpuCompileSpec",
    "SharedGpuContext",
    "SharedGpuContextRegistry",
    "SharedResource",
    "SyncMode",
    "ArmTensor",
    "Timeline",
    "ValidationMessage",
    "list_devices",
    "live_counts",
    "make_shared_gpu_compile_specs",
    "memory_budget",
    "parse_shared_gpu_compile_spec",
    "select_device",
    "validation_log",
]


def __getattr__(name: str) -> Any:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
