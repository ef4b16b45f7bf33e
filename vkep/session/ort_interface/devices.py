"""Devices under the names of ``onnxruntime``: `get_ep_devices`, `OrtDevice`, and the enumerations that go with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

from vkep.session.ort_interface.options import CPU, VULKAN

if TYPE_CHECKING:
    from gpu_shared.capabilities import DeviceCapabilities

#: names of a GPU that callers use
GPU_NAMES = ("gpu", "vulkan", "cuda", "dml", "webgpu", "cann")


class OrtHardwareDeviceType(IntEnum):
    """The kind of an `OrtHardwareDevice`."""

    CPU = 0
    GPU = 1
    NPU = 2


class OrtDeviceMemoryType(IntEnum):
    """Where memory of a device is."""

    DEFAULT = 0
    HOST_ACCESSIBLE = 5


class OrtMemType(IntEnum):
    """Which side of a device memory is on."""

    CPU_INPUT = -2
    CPU_OUTPUT = -1
    CPU = -1
    DEFAULT = 0


class OrtAllocatorType(IntEnum):
    """Kinds of allocators."""

    INVALID = -1
    ORT_DEVICE_ALLOCATOR = 0
    ORT_ARENA_ALLOCATOR = 1


class OrtExecutionProviderDevicePolicy(IntEnum):
    """For `SessionOptions.set_provider_selection_policy`."""

    DEFAULT = 0
    PREFER_CPU = 1
    PREFER_NPU = 2
    PREFER_GPU = 3
    MAX_PERFORMANCE = 4
    MAX_EFFICIENCY = 5
    MIN_OVERALL_POWER = 6


class OrtDeviceVendorId(IntEnum):
    """PCI numbers of vendors. Source: ONNX Runtime's enumeration of this name."""

    NONE = 0x0000
    AMD = 0x1002
    NVIDIA = 0x10DE
    ARM = 0x13B5
    MICROSOFT = 0x1414
    HUAWEI = 0x19E5
    QUALCOMM = 0x5143
    INTEL = 0x8086


class OrtMemoryInfoDeviceType(IntEnum):
    """The kind of device of an `OrtMemoryInfo`."""

    CPU = 0
    GPU = 1
    FPGA = 2
    NPU = 3


@dataclass(frozen=True)
class OrtMemoryInfo:
    """Where a value is: the name of a memory, and the device's number."""

    name: str
    allocator_type: OrtAllocatorType
    device_id: int
    mem_type: OrtMemType
    device_mem_type: OrtDeviceMemoryType = OrtDeviceMemoryType.DEFAULT
    device_vendor_id: int = 0

    @staticmethod
    def create_v2(
        name: str,
        device_type: OrtMemoryInfoDeviceType,
        vendor_id: int,
        device_id: int,
        device_mem_type: OrtDeviceMemoryType,
        alignment: int,
        allocator_type: OrtAllocatorType,
        /,
    ) -> OrtMemoryInfo:
        """One with the vendor's PCI number and the kind of memory. ``device_type`` and ``alignment`` (bytes) are not kept."""
        return OrtMemoryInfo(name, allocator_type, device_id, OrtMemType.DEFAULT, device_mem_type, vendor_id)


@dataclass(frozen=True)
class OrtHardwareDevice:
    """A device: ``type``, PCI numbers (0 for the CPU), ``metadata`` as texts."""

    type: OrtHardwareDeviceType
    vendor_id: int
    vendor: str
    device_id: int
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class OrtEpDevice:
    """A device of an execution provider; ``ep_options`` are the provider's options that choose it."""

    ep_name: str
    ep_vendor: str
    ep_metadata: Mapping[str, str]
    ep_options: Mapping[str, str]
    device: OrtHardwareDevice

    def memory_info(self, memory_type: OrtDeviceMemoryType, /) -> OrtMemoryInfo | None:
        """The memory for `OrtValue.ortvalue_from_shape_and_type`; None for the CPU, and for host-accessible memory, which
        only `vkep.ort` has."""
        if self.ep_name == CPU or memory_type != OrtDeviceMemoryType.DEFAULT:
            return None

        kind, index = OrtAllocatorType.ORT_DEVICE_ALLOCATOR, int(self.ep_options["device"])
        return OrtMemoryInfo("Vulkan", kind, index, OrtMemType.DEFAULT, memory_type, self.device.vendor_id)


class OrtDevice:
    """A device by its name. `OrtDevice.make` makes one."""

    def __init__(self, name: str, device_id: int, vendor_id: int) -> None:
        self._name, self._device_id, self._vendor_id = name, device_id, vendor_id

    @staticmethod
    def make(ort_device_name: str, device_id: int, vendor_id: int = -1) -> OrtDevice:
        """A device by the name that `OrtValue` takes. Raises ``ValueError`` for another one."""
        on_gpu(ort_device_name)
        return OrtDevice(ort_device_name, device_id, max(vendor_id, 0))

    def device_id(self) -> int:
        """The number of the device."""
        return self._device_id

    def device_type(self) -> int:
        """0: the host, 1: a GPU."""
        return int(self._name != "cpu")

    def device_vendor_id(self) -> int:
        """The PCI number of the vendor; 0 where none was given."""
        return self._vendor_id

    def device_mem_type(self) -> int:
        """Always 0, `OrtDeviceMemoryType.DEFAULT`."""
        return int(OrtDeviceMemoryType.DEFAULT)


@dataclass(frozen=True)
class OrtEpAssignedNode:
    """A node of the model."""

    name: str
    op_type: str
    domain: str


@dataclass(frozen=True)
class OrtEpAssignedSubgraph:
    """The nodes that one provider runs."""

    ep_name: str
    nodes: tuple[OrtEpAssignedNode, ...]

    def get_nodes(self) -> list[OrtEpAssignedNode]:
        """The nodes, in the model's order."""
        return list(self.nodes)


def get_ep_devices() -> list[OrtEpDevice]:
    """The usable Vulkan devices of this machine, each as a device of ``VulkanExecutionProvider``, and the CPU. Raises
    `DriverNotFoundError`."""
    from gpu_shared.instance import list_devices

    found = [ep_device(info.capabilities) for info in list_devices() if not info.problems]
    return [*found, OrtEpDevice(CPU, "vkep", {}, {}, OrtHardwareDevice(OrtHardwareDeviceType.CPU, 0, "", 0))]


def ep_device(caps: DeviceCapabilities) -> OrtEpDevice:
    """A Vulkan device as one of ``VulkanExecutionProvider``. CPU drivers count as GPUs: they are what the provider runs on."""
    names = {vendor.value: vendor.name for vendor in OrtDeviceVendorId if vendor}
    metadata = {
        "vulkan_uuid": caps.uuid,
        "vulkan_device_name": caps.name,
        "vulkan_device_type": caps.device_type,
        "vulkan_driver": f"{caps.driver_name} {caps.driver_info}".strip(),
    }
    vendor = names.get(caps.vendor_id, "")
    hardware = OrtHardwareDevice(OrtHardwareDeviceType.GPU, caps.vendor_id, vendor, caps.device_id)
    return OrtEpDevice(VULKAN, "vkep", metadata, {"device": str(caps.index)}, hardware)


def on_gpu(device_type: str) -> bool:
    """Whether a caller's name of a device means a GPU. Raises ``ValueError`` for a name that means neither a GPU nor
    the host."""
    if device_type not in ("cpu", *GPU_NAMES):
        raise ValueError(f"device_type is {device_type!r}, expected 'cpu' or one of {GPU_NAMES}")
    return device_type != "cpu"
