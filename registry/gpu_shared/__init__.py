"""A GPU runtime that delegates share: one Vulkan device, queue and timeline per context, identified by token and group.

Importing this package loads neither cffi nor Vulkan; names that need them are loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

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
from gpu_shared.lazy import lazy

if TYPE_CHECKING:
    from gpu_shared.commands import CommandBuffer, CommandPool, QueryPool
    from gpu_shared.context import SharedGpuContext
    from gpu_shared.data_graph import DataGraphPipeline, DataGraphSession, GraphConstant, GraphResource
    from gpu_shared.descriptors import BufferRange, DescriptorSetLayout, DescriptorSets
    from gpu_shared.device import Device
    from gpu_shared.external import ImportedBuffer, ImportedSemaphore, MemorySource
    from gpu_shared.handles import Handle
    from gpu_shared.instance import Instance, ValidationMessage, list_devices, select_device, validation_log
    from gpu_shared.lease import DelegateLease
    from gpu_shared.lifetime import live_counts
    from gpu_shared.memory import Buffer, HeapBudget, memory_budget
    from gpu_shared.pipeline import ComputePipeline, PipelineCache, PipelineLayout, ShaderModule
    from gpu_shared.resources import SharedResource
    from gpu_shared.tensors import ArmTensor
    from gpu_shared.timeline import PreparedSubmit, Timeline

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


__getattr__ = lazy(
    __name__,
    {
        "gpu_shared.commands": "CommandBuffer CommandPool QueryPool",
        "gpu_shared.context": "SharedGpuContext",
        "gpu_shared.data_graph": "DataGraphPipeline DataGraphSession GraphConstant GraphResource",
        "gpu_shared.descriptors": "BufferRange DescriptorSetLayout DescriptorSets",
        "gpu_shared.device": "Device",
        "gpu_shared.external": "ImportedBuffer ImportedSemaphore MemorySource",
        "gpu_shared.handles": "Handle",
        "gpu_shared.instance": "Instance ValidationMessage list_devices select_device validation_log",
        "gpu_shared.lease": "DelegateLease",
        "gpu_shared.lifetime": "live_counts",
        "gpu_shared.memory": "Buffer HeapBudget memory_budget",
        "gpu_shared.pipeline": "ComputePipeline PipelineCache PipelineLayout ShaderModule",
        "gpu_shared.resources": "SharedResource",
        "gpu_shared.tensors": "ArmTensor",
        "gpu_shared.timeline": "PreparedSubmit Timeline",
    },
)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
