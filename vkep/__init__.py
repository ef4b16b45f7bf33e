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
    from vkep.device.tensor import DeviceTensor
    from vkep.graph.model import ModelMetadata
    from vkep.memory import ArenaOutOfMemory
    from vkep.session import InferenceSession, IOBinding, NodeArg, Report, SessionOptions
    from vkep.session.ort_options import ExecutionMode, GraphOptimizationLevel
    from vkep.session.ort_value import OrtValue
    from vkep.session.replicas import Replicas
    from vkep.session.run_options import RunOptions

__version__ = "0.1.0"

#: names whose modules load Vulkan, numpy-heavy code or the operators: imported when first used
_LAZY = {
    "ArenaOutOfMemory": "vkep.memory",
    "DelegateLease": "gpu_shared",
    "DeviceTensor": "vkep.device.tensor",
    "ExecutionMode": "vkep.session.ort_options",
    "GraphOptimizationLevel": "vkep.session.ort_options",
    "IOBinding": "vkep.session",
    "InferenceSession": "vkep.session",
    "ModelMetadata": "vkep.graph.model",
    "NodeArg": "vkep.session",
    "OrtValue": "vkep.session.ort_value",
    "Replicas": "vkep.session.replicas",
    "Report": "vkep.session",
    "RunOptions": "vkep.session.run_options",
    "SessionOptions": "vkep.session",
    "SharedGpuContext": "gpu_shared",
    "live_counts": "gpu_shared",
}

__all__ = [
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
    "ForkedProcessError",
    "GpuError",
    "GraphOptimizationLevel",
    "IOBinding",
    "InferenceSession",
    "InvalidInputError",
    "InvalidModelError",
    "ModelMetadata",
    "NodeArg",
    "OrtValue",
    "OutOfDeviceMemoryError",
    "Replicas",
    "Report",
    "RunOptions",
    "RunTerminatedError",
    "SessionOptions",
    "SharedGpuCompileSpec",
    "SharedGpuContext",
    "SharedGpuContextRegistry",
    "SyncMode",
    "UnsupportedModelError",
    "VkepError",
    "devices",
    "get_all_providers",
    "get_available_providers",
    "get_device",
    "live_counts",
    "make_shared_gpu_compile_specs",
    "parse_shared_gpu_compile_spec",
    "set_default_logger_severity",
]


def devices() -> list[DeviceInfo]:
    """List the Vulkan devices of this machine; an unusable one carries the reason. Raises `DriverNotFoundError`."""
    from gpu_shared.instance import list_devices

    return list(list_devices())


def get_available_providers() -> list[str]:
    """Return the execution providers of a session under ONNX Runtime's names: Vulkan, then the CPU for nodes that
    Vulkan declines."""
    from vkep.session.ort_options import CPU, VULKAN

    return [VULKAN, CPU]


get_all_providers = get_available_providers


def get_device() -> str:
    """Return ``"GPU"``: the device type of sessions, as ``onnxruntime.get_device`` reports it."""
    return "GPU"


def set_default_logger_severity(severity: int) -> None:
    """Set the minimum severity of log messages, as ``onnxruntime.set_default_logger_severity`` does: 0 (all) to 4
    (fatal).

    It sets the levels of the standard library's loggers ``vkep`` and ``gpu_shared``. Raises ``ValueError`` for another
    number.
    """
    import logging

    from vkep.session.run_options import LEVELS

    if severity not in range(len(LEVELS)):
        raise ValueError(f"severity is {severity!r}, expected 0 to {len(LEVELS) - 1}")
    for name in ("vkep", "gpu_shared"):
        logging.getLogger(name).setLevel(LEVELS[severity])


def __getattr__(name: str) -> _typing.Any:
    import importlib

    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
