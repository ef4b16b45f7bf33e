"""Memory and semaphores of another owner: another Vulkan device of the same physical device, or the host.

Memory is imported as an opaque file descriptor (VK_KHR_external_memory_fd) or as host memory
(VK_EXT_external_memory_host), timeline semaphores as opaque file descriptors (VK_KHR_external_semaphore_fd). The
extensions are enabled where the device has them; `can_import_memory` and `can_import_semaphore` report what the driver
supports.

A descriptor is duplicated: the caller may close its own at any time. No ownership transfer between queue families is
recorded for imported buffers: order and visibility come from the semaphores.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpu_shared import vk
from gpu_shared.errors import ContextIncompatibleError, GpuError
from gpu_shared.handles import Handle
from gpu_shared.memory import HOST_CACHED, HOST_COHERENT, HOST_VISIBLE, USAGE, Buffer, choose_type
from gpu_shared.memory import OPAQUE_FD_BIT as _OPAQUE_FD_BIT

if TYPE_CHECKING:
    from gpu_shared.device import Device

OPAQUE_FD, HOST_ALLOCATION = "opaque_fd", "host_allocation"
#: kind of memory -> (the device extension it needs, VkExternalMemoryHandleTypeFlagBits)
MEMORY_KINDS = {
    OPAQUE_FD: ("VK_KHR_external_memory_fd", 0x1),
    HOST_ALLOCATION: ("VK_EXT_external_memory_host", 0x80),
}
SEMAPHORE_EXTENSION = "VK_KHR_external_semaphore_fd"
EXTENSIONS = (*(extension for extension, _ in MEMORY_KINDS.values()), SEMAPHORE_EXTENSION)
_DEDICATED_ONLY, _EXPORTABLE, _IMPORTABLE = 0x1, 0x2, 0x4  # VkExternalMemoryFeatureFlagBits
_SEMAPHORE_IMPORTABLE = 0x2
_MAPPED = HOST_VISIBLE | HOST_COHERENT | HOST_CACHED


def can_import_memory(device: Device, kind: str = OPAQUE_FD) -> bool:
    """Whether the device imports buffers' memory of this kind. Raises ``ValueError`` for an unknown kind."""
    extension, _bit = _kind(kind)
    return extension in device.extensions and bool(_memory_features(device, kind) & _IMPORTABLE)


def can_export_memory(device: Device) -> bool:
    """Whether other devices can import the device's buffer memory by opaque file descriptors."""
    extension, _bit = _kind(OPAQUE_FD)
    return extension in device.extensions and bool(_memory_features(device, OPAQUE_FD) & _EXPORTABLE)


def exported_buffer(device: Device, size: int, *, label: str = "exported buffer") -> Buffer:
    """A buffer that others may import; its memory is a dedicated allocation of ``memory_size`` bytes. Raises as `Buffer`, and
    `ContextIncompatibleError` where the device exports none.
    """
    if not can_export_memory(device):
        raise ContextIncompatibleError(
            device.label, extensions=[MEMORY_KINDS[OPAQUE_FD][0]], hint="it exports no memory by file descriptors"
        )
    return Buffer(device, size, exported=True, label=label)


def memory_descriptor(buffer: Buffer) -> int:
    """A new file descriptor for the memory of an `exported_buffer`; the caller closes it or passes it to an import."""
    device = buffer.device
    info = vk.make("VkMemoryGetFdInfoKHR", memory=buffer.memory, handleType=_OPAQUE_FD_BIT)
    out = vk.out("int")
    vk.check(device.fn.vkGetMemoryFdKHR(device.raw, info.ptr, out), "vkGetMemoryFdKHR", buffer.label)
    return int(out[0])


def can_import_semaphore(device: Device) -> bool:
    """Whether the device imports timeline semaphores as opaque file descriptors."""
    if SEMAPHORE_EXTENSION not in device.extensions:
        return False
    timeline = vk.make("VkSemaphoreTypeCreateInfo", semaphoreType=vk.VK_SEMAPHORE_TYPE_TIMELINE)
    info = vk.make("VkPhysicalDeviceExternalSemaphoreInfo", pNext=timeline, handleType=_OPAQUE_FD_BIT)
    out = vk.make("VkExternalSemaphoreProperties")
    device.instance.fn.vkGetPhysicalDeviceExternalSemaphoreProperties(device.physical_device, info.ptr, out.ptr)
    return bool(out.ptr.externalSemaphoreFeatures & _SEMAPHORE_IMPORTABLE)


def host_alignment(device: Device) -> int:
    """The alignment of the address and the size of imported host memory, in bytes."""
    host = vk.make("VkPhysicalDeviceExternalMemoryHostPropertiesEXT")
    properties = vk.make("VkPhysicalDeviceProperties2", pNext=host)
    device.instance.fn.vkGetPhysicalDeviceProperties2(device.physical_device, properties.ptr)
    return int(host.ptr.minImportedHostPointerAlignment)


@dataclass(frozen=True)
class MemorySource:
    """What to import: a file descriptor, or a host address.

    size: bytes of the whole allocation (``VkMemoryAllocateInfo.allocationSize`` where Vulkan exported it). memory_type:
        of an exported allocation; None: the type of a device-local buffer here, which an exporter with the same driver
        and the same choice also uses.
    dedicated: whether the exporter's was a dedicated allocation for its buffer.
    """

    kind: str
    handle: int
    size: int
    memory_type: int | None = None
    dedicated: bool = False


class ImportedBuffer(Buffer):
    """A buffer over memory of another owner; ``size`` is rounded down to the driver's alignment of buffers.

    Closing it releases the memory; the exporter's own reference is not touched. Imported host memory must stay valid
    until the buffer is closed and the GPU has finished.

    Raises `ContextIncompatibleError` where the device does not import the kind, ``ValueError`` for an impossible size,
    address or descriptor, `GpuError` where the driver refuses it.
    """

    kind = "imported buffer"

    def __init__(self, device: Device, source: MemorySource, *, label: str = "imported buffer") -> None:
        extension, bit = _kind(source.kind)
        features = _memory_features(device, source.kind) if extension in device.extensions else 0
        if not features & _IMPORTABLE:
            raise ContextIncompatibleError(
                device.label, extensions=[extension], hint=f"it imports no memory of the kind {source.kind!r}"
            )
        _check_source(device, source)
        fn, raw_device = device.fn, device.raw
        raw, requirements, self.size = _create(device, source.size, bit, label)
        memory = None
        try:
            allowed = requirements.memoryTypeBits
            if source.kind == HOST_ALLOCATION:
                allowed &= _host_types(device, bit, source.handle, label)
            index = source.memory_type
            if index is None:
                index = choose_type(device, "device", allowed)[0]
            elif not allowed >> index & 1:
                raise ValueError(
                    f"{label}: memory type {index} holds no such buffer; allowed are the bits {allowed:#x}"
                )
            dedicated = source.dedicated or bool(features & _DEDICATED_ONLY)
            memory = _import(device, source, bit, index, raw if dedicated else None, label)
            vk.check(fn.vkBindBufferMemory(raw_device, raw, memory, 0), "vkBindBufferMemory", label)
            info = vk.make("VkBufferDeviceAddressInfo", buffer=raw)
            self.address: int = fn.vkGetBufferDeviceAddress(raw_device, info.ptr)
            flags, heap = _flags(device, index)
            pointer = None
            if source.kind == HOST_ALLOCATION:
                pointer = vk.ffi.cast("void *", source.handle)
            elif flags & _MAPPED == _MAPPED:
                where = vk.out("void *")
                vk.check(fn.vkMapMemory(raw_device, memory, 0, vk.WHOLE_SIZE, 0, where), "vkMapMemory", label)
                pointer = where[0]
            device.set_name(vk.VK_OBJECT_TYPE_BUFFER, raw, label)
        except BaseException:
            fn.vkDestroyBuffer(raw_device, raw, vk.ffi.NULL)
            if memory is not None:
                fn.vkFreeMemory(raw_device, memory, vk.ffi.NULL)
            raise
        self._memory, self.memory_type, self.memory_size = memory, index, source.size
        self.memory_kind, self.property_flags, self.heap = "device", flags, heap

        def destroy() -> None:
            fn.vkDestroyBuffer(raw_device, raw, vk.ffi.NULL)
            fn.vkFreeMemory(raw_device, memory, vk.ffi.NULL)

        # Deliberately does not call Buffer's: the memory exists already.
        Handle.__init__(self, raw, parent=device, destroy=destroy, label=label, reaper=device.reaper)
        self._mapped = self._views(pointer)


class ImportedSemaphore(Handle):
    """A timeline semaphore of another device, from an opaque file descriptor.

    `Timeline.enqueue` makes the queue wait for a value of it or signal one. Raises `ContextIncompatibleError` where the
    device does not import such, `GpuError` where the driver refuses the descriptor.
    """

    kind = "imported semaphore"

    def __init__(self, device: Device, descriptor: int, *, label: str = "imported semaphore") -> None:
        if not can_import_semaphore(device):
            raise ContextIncompatibleError(
                device.label, extensions=[SEMAPHORE_EXTENSION], hint="it imports no timeline semaphores"
            )
        fn, raw_device = device.fn, device.raw
        timeline = vk.make("VkSemaphoreTypeCreateInfo", semaphoreType=vk.VK_SEMAPHORE_TYPE_TIMELINE)
        out = vk.out("VkSemaphore")
        info = vk.make("VkSemaphoreCreateInfo", pNext=timeline)
        vk.check(fn.vkCreateSemaphore(raw_device, info.ptr, vk.ffi.NULL, out), "vkCreateSemaphore", label)
        raw = out[0]
        copy = -1
        try:
            copy = _duplicate(descriptor, label)
            given = vk.make("VkImportSemaphoreFdInfoKHR", semaphore=raw, handleType=_OPAQUE_FD_BIT, fd=copy)
            vk.check(fn.vkImportSemaphoreFdKHR(raw_device, given.ptr), "vkImportSemaphoreFdKHR", label)
        except BaseException:
            _take_back(copy, descriptor)
            fn.vkDestroySemaphore(raw_device, raw, vk.ffi.NULL)
            raise
        super().__init__(
            raw,
            parent=device,
            destroy=lambda: fn.vkDestroySemaphore(raw_device, raw, vk.ffi.NULL),
            label=label,
            reaper=device.reaper,
        )


# ---- the calls


def _kind(kind: str) -> tuple[str, int]:
    try:
        return MEMORY_KINDS[kind]
    except KeyError:
        raise ValueError(f"kind is {kind!r}, expected one of {tuple(MEMORY_KINDS)}") from None


def _memory_features(device: Device, kind: str) -> int:
    info = vk.make("VkPhysicalDeviceExternalBufferInfo", usage=USAGE, handleType=_kind(kind)[1])
    out = vk.make("VkExternalBufferProperties")
    device.instance.fn.vkGetPhysicalDeviceExternalBufferProperties(device.physical_device, info.ptr, out.ptr)
    return int(out.ptr.externalMemoryProperties.externalMemoryFeatures)


def _check_source(device: Device, source: MemorySource) -> None:
    if source.size < 1:
        raise ValueError(f"importing memory: its size is {source.size}, expected at least 1 byte")
    if source.kind == HOST_ALLOCATION:
        step = host_alignment(device)
        if not source.handle or source.handle % step or source.size % step:
            raise ValueError(
                f"importing host memory: {source.size} bytes at {source.handle:#x}; address and size must be multiples of "
                f"{step} on {device.label}"
            )


def _create(device: Device, size: int, bit: int, label: str) -> tuple[Any, Any, int]:
    """(buffer, its requirements, its size): the largest buffer that fits an allocation of ``size`` bytes."""
    fn, raw_device = device.fn, device.raw
    requirements = vk.out("VkMemoryRequirements")
    usable = size
    while usable:
        external = vk.make("VkExternalMemoryBufferCreateInfo", handleTypes=bit)
        info = vk.make(
            "VkBufferCreateInfo", pNext=external, size=usable, usage=USAGE, sharingMode=vk.VK_SHARING_MODE_EXCLUSIVE
        )
        out = vk.out("VkBuffer")
        vk.check(fn.vkCreateBuffer(raw_device, info.ptr, vk.ffi.NULL, out), "vkCreateBuffer", label)
        fn.vkGetBufferMemoryRequirements(raw_device, out[0], requirements)
        if requirements.size <= size:
            return out[0], requirements, usable
        fn.vkDestroyBuffer(raw_device, out[0], vk.ffi.NULL)
        usable = min(usable - 1, size - size % requirements.alignment)
    raise ValueError(
        f"{label}: an allocation of {size} bytes holds no buffer, which takes multiples of {requirements.alignment}; "
        "give the size of the whole allocation"
    )


def _host_types(device: Device, bit: int, address: int, label: str) -> int:
    out = vk.make("VkMemoryHostPointerPropertiesEXT")
    call = "vkGetMemoryHostPointerPropertiesEXT"
    pointer = vk.ffi.cast("void *", address)
    vk.check(getattr(device.fn, call)(device.raw, bit, pointer, out.ptr), call, label)
    return int(out.ptr.memoryTypeBits)


def _import(device: Device, source: MemorySource, bit: int, index: int, dedicated_for: Any, label: str) -> Any:
    parts = [vk.make("VkMemoryAllocateFlagsInfo", flags=vk.MEMORY_ALLOCATE_DEVICE_ADDRESS)]
    if dedicated_for is not None:
        parts.append(vk.make("VkMemoryDedicatedAllocateInfo", buffer=dedicated_for))
    copy = -1
    if source.kind == OPAQUE_FD:
        copy = _duplicate(source.handle, label)
        parts.append(vk.make("VkImportMemoryFdInfoKHR", handleType=bit, fd=copy))
    else:
        pointer = vk.ffi.cast("void *", source.handle)
        parts.append(vk.make("VkImportMemoryHostPointerInfoEXT", handleType=bit, pHostPointer=pointer))
    info = vk.make("VkMemoryAllocateInfo", allocationSize=source.size, memoryTypeIndex=index)
    out = vk.out("VkDeviceMemory")
    result = device.fn.vkAllocateMemory(device.raw, vk.chain(info, *parts).ptr, vk.ffi.NULL, out)
    if result < 0:
        _take_back(copy, source.handle)
        vk.check(
            result,
            "vkAllocateMemory",
            label,
            f"the driver does not take {source.size} bytes of {source.kind} memory of type {index}: size and type must be "
            "those of the exporter's allocation, on the same device and driver",
        )
    return out[0]


def _duplicate(descriptor: int, label: str) -> int:
    try:
        return os.dup(descriptor)
    except (OSError, OverflowError) as error:
        raise ValueError(f"{label}: {descriptor} is no open file descriptor ({error})") from error


def _take_back(copy: int, original: int) -> None:
    """Close a duplicate that an import refused. Only success transfers it to the driver, but some drivers close it in
    some failures too: so it is closed only if it still refers to the same file."""
    if copy >= 0:
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(copy), os.fstat(original)):
                os.close(copy)


def _flags(device: Device, index: int) -> tuple[int, int]:
    """(property flags, heap) of a memory type."""
    memory = vk.out("VkPhysicalDeviceMemoryProperties")
    device.instance.fn.vkGetPhysicalDeviceMemoryProperties(device.physical_device, memory)
    if index >= memory.memoryTypeCount:
        raise GpuError("importing memory", hint=f"there is no memory type {index}")
    return int(memory.memoryTypes[index].propertyFlags), int(memory.memoryTypes[index].heapIndex)
