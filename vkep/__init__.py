"""vkep: ONNX models on Vulkan, in a GPU context that delegates share."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

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
from vkep.errors import Decline, InvalidInputError, InvalidModelError, UnsupportedModelError, VkepError

if TYPE_CHECKING:
    from gpu_shared import DelegateLease, SharedGpuContext, live_counts
    from vkep.device.tensor import DeviceTensor
    from vkep.memory import ArenaOutOfMemory
    from vkep.session import InferenceSession, IOBinding, Report, SessionOptions

__version__ = "0.1.0"

#: names whose modules load Vulkan, numpy-heavy code or the operators: imported when first used
_LAZY = {
    "ArenaOutOfMemory": "vkep.memory",
    "DelegateLease": "gpu_shared",
    "DeviceTensor": "vkep.device.tensor",
    "IOBinding": "vkep.session",
    "InferenceSession": "vkep.session",
    "Report": "vkep.session",
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
    "ForkedProcessError",
    "GpuError",
    "IOBinding",
    "InferenceSession",
    "InvalidInputError",
    "InvalidModelError",
    "OutOfDeviceMemoryError",
    "Report",
    "SessionOptions",
    "SharedGpuCompileSpec",
    "SharedGpuContext",
    "SharedGpuContextRegistry",
    "SyncMode",
    "UnsupportedModelError",
    "VkepError",
    "devices",
    "live_counts",
    "make_shared_gpu_compile_specs",
    "parse_shared_gpu_compile_spec",
]


def devices() -> list[DeviceInfo]:
    """The Vulkan devices of this machine, with why one could not be used. Raises `DriverNotFoundError`."""
    from gpu_shared.instance import list_devices

    return list(list_devices())


def __getattr__(name: str) -> Any:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value
