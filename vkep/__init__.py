"""vkep: ONNX models on Vulkan, in a GPU context that delegates share."""

import typing as _typing

from gpu_shared import (
    ClosedError,
    ContextExistsError,
    ContextIncompatibleError,
    ContextMode,
    ContextNotFoundError,
    DeviceCapabilities,
    DeviceInfo,
    DeviceLostError,
    DeviceNotFoundError,
    DriverNotFoundError,
    ForkedProcessError,
    GpuError,
    OutOfDeviceMemoryError,
    SharedGpuCompileSpec,
    SharedGpuContextRegistry,
    SyncMode,
    make_shared_gpu_compile_specs,
    parse_shared_gpu_compile_spec,
)
from gpu_shared.lazy import lazy as _lazy
from vkep.errors import (
    Decline,
    InvalidInputError,
    InvalidModelError,
    RunTerminatedError,
    UnsupportedModelError,
    VkepError,
)

if _typing.TYPE_CHECKING:
    from gpu_shared import DelegateLease, SharedGpuContext, live_counts
    from gpu_shared.capabilities import DeviceList
    from vkep.device.tensor import DeviceTensor
    from vkep.graph.model import ModelMetadata
    from vkep.memory import ArenaOutOfMemory
    from vkep.session import InferenceSession, IOBinding, NodeArg, Report, SessionOptions
    from vkep.session.ort_interface.adapters import AdapterFormat, LoraAdapter
    from vkep.session.ort_interface.capi import capi as capi
    from vkep.session.ort_interface.devices import (
        OrtAllocatorType,
        OrtDevice,
        OrtDeviceMemoryType,
        OrtDeviceVendorId,
        OrtEpAssignedNode,
        OrtEpAssignedSubgraph,
        OrtEpDevice,
        OrtExecutionProviderDevicePolicy,
        OrtHardwareDevice,
        OrtHardwareDeviceType,
        OrtMemoryInfo,
        OrtMemoryInfoDeviceType,
        OrtMemType,
        get_ep_devices,
    )
    from vkep.session.ort_interface.module import (
        OrtArenaCfg,
        copy_tensors,
        create_and_register_allocator,
        create_and_register_allocator_v2,
        disable_telemetry_events,
        enable_telemetry_events,
        has_collective_ops,
        preload_dlls,
        set_default_logger_callback,
        set_default_logger_severity,
        set_default_logger_verbosity,
        set_global_thread_pool_sizes,
        set_seed,
    )
    from vkep.session.ort_interface.options import ExecutionMode, ExecutionOrder, GraphOptimizationLevel
    from vkep.session.ort_interface.sparse import OrtSparseFormat, SparseTensor
    from vkep.session.ort_interface.value import OrtValue
    from vkep.session.replicas import Replicas
    from vkep.session.run_options import RunOptions

__version__ = "0.1.0"

__all__ = [
    "AdapterFormat",
    "LoraAdapter",
    "ArenaOutOfMemory",
    "ClosedError",
    "ContextExistsError",
    "ContextIncompatibleError",
    "ContextMode",
    "ContextNotFoundError",
    "Decline",
    "DelegateLease",
    "DeviceCapabilities",
    "DeviceInfo",
    "DeviceLostError",
    "DeviceNotFoundError",
    "DeviceTensor",
    "DriverNotFoundError",
    "ExecutionMode",
    "ExecutionOrder",
    "ForkedProcessError",
    "GpuError",
    "GraphOptimizationLevel",
    "IOBinding",
    "InferenceSession",
    "InvalidInputError",
    "InvalidModelError",
    "ModelMetadata",
    "NodeArg",
    "OrtAllocatorType",
    "OrtArenaCfg",
    "OrtDevice",
    "OrtDeviceMemoryType",
    "OrtDeviceVendorId",
    "OrtEpAssignedNode",
    "OrtEpAssignedSubgraph",
    "OrtEpDevice",
    "OrtExecutionProviderDevicePolicy",
    "OrtHardwareDevice",
    "OrtHardwareDeviceType",
    "OrtMemType",
    "OrtMemoryInfo",
    "OrtMemoryInfoDeviceType",
    "OrtValue",
    "OutOfDeviceMemoryError",
    "Replicas",
    "Report",
    "RunOptions",
    "RunTerminatedError",
    "OrtSparseFormat",
    "SessionOptions",
    "SparseTensor",
    "SharedGpuCompileSpec",
    "SharedGpuContext",
    "SharedGpuContextRegistry",
    "SyncMode",
    "UnsupportedModelError",
    "VkepError",
    "copy_tensors",
    "create_and_register_allocator",
    "create_and_register_allocator_v2",
    "devices",
    "disable_telemetry_events",
    "enable_telemetry_events",
    "get_all_providers",
    "get_available_providers",
    "get_build_info",
    "get_device",
    "get_ep_devices",
    "get_version_string",
    "has_collective_ops",
    "live_counts",
    "make_shared_gpu_compile_specs",
    "parse_shared_gpu_compile_spec",
    "preload_dlls",
    "print_debug_info",
    "set_default_logger_callback",
    "set_default_logger_severity",
    "set_default_logger_verbosity",
    "set_global_thread_pool_sizes",
    "set_seed",
]


def devices() -> "DeviceList":
    """List the Vulkan devices of this machine; an unusable one carries the reason. Raises `DriverNotFoundError`."""
    from gpu_shared.capabilities import DeviceList
    from gpu_shared.instance import list_devices

    return DeviceList(list_devices())


def get_available_providers() -> list[str]:
    """Return the execution providers of a session under ONNX Runtime's names: Vulkan, then the CPU for nodes that
    Vulkan declines."""
    from vkep.session.ort_interface.options import CPU, VULKAN

    return [VULKAN, CPU]


get_all_providers = get_available_providers


def get_device() -> str:
    """Return ``"GPU"``: the device type of sessions, as ``onnxruntime.get_device`` reports it."""
    return "GPU"


def get_version_string() -> str:
    """Return vkep's version."""
    return __version__


def get_build_info() -> str:
    """Return vkep's version and the target of its shaders."""
    return f"vkep Build Info: {__version__}, Vulkan 1.3, SPIR-V 1.6"


def print_debug_info() -> None:
    """Print the versions of vkep and Python, the platform, and the Vulkan devices. Raises `DriverNotFoundError`."""
    import platform

    print(f"vkep version: {__version__}\npython: {platform.python_version()}\nplatform: {platform.platform()}")
    for device in devices():
        print(device)


#: names whose modules load Vulkan, numpy-heavy code or the operators: imported when first used
__getattr__ = _lazy(
    __name__,
    {
        "gpu_shared": "DelegateLease SharedGpuContext live_counts",
        "vkep.device.tensor": "DeviceTensor",
        "vkep.graph.model": "ModelMetadata",
        "vkep.memory": "ArenaOutOfMemory",
        "vkep.session": "IOBinding InferenceSession NodeArg Report SessionOptions",
        "vkep.session.ort_interface.adapters": "AdapterFormat LoraAdapter",
        "vkep.session.ort_interface.capi": "capi",
        "vkep.session.ort_interface.devices": (
            "OrtAllocatorType OrtDevice OrtDeviceMemoryType OrtDeviceVendorId OrtEpAssignedNode OrtEpAssignedSubgraph "
            "OrtEpDevice OrtExecutionProviderDevicePolicy OrtHardwareDevice OrtHardwareDeviceType OrtMemType OrtMemoryInfo "
            "OrtMemoryInfoDeviceType get_ep_devices"
        ),
        "vkep.session.ort_interface.module": (
            "OrtArenaCfg copy_tensors create_and_register_allocator create_and_register_allocator_v2 "
            "disable_telemetry_events enable_telemetry_events has_collective_ops preload_dlls set_default_logger_callback "
            "set_default_logger_severity set_default_logger_verbosity set_global_thread_pool_sizes set_seed"
        ),
        "vkep.session.ort_interface.options": "ExecutionMode ExecutionOrder GraphOptimizationLevel",
        "vkep.session.ort_interface.sparse": "OrtSparseFormat SparseTensor",
        "vkep.session.ort_interface.value": "OrtValue",
        "vkep.session.replicas": "Replicas",
        "vkep.session.run_options": "RunOptions",
    },
)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
