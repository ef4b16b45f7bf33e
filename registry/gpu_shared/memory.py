"""Buffers: a VkBuffer with separate memory, an address, and a mapping where the host can access it.

Each buffer is one vkAllocateMemory, so callers create few large ones and divide them (an arena); a driver may allow as
few as 4096 allocations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, SupportsIndex

from gpu_shared import vk
from gpu_shared.errors import GpuError, OutOfDeviceMemoryError
from gpu_shared.handles import Handle
from gpu_shared.lifetime import Native
from gpu_shared.steady import End, on_end, settle

if TYPE_CHECKING:
    from gpu_shared.device import Device

DEVICE_LOCAL, HOST_VISIBLE, HOST_COHERENT, HOST_CACHED = 0x1, 0x2, 0x4, 0x8
OPAQUE_FD_BIT = 0x1  #: VkExternalMemoryHandleTypeFlagBits
_UNIFIED = DEVICE_LOCAL | HOST_VISIBLE | HOST_COHERENT | HOST_CACHED
#: transfer source and destination, storage, indirect dispatches, device address
USAGE = 0x1 | 0x2 | 0x20 | 0x100 | vk.BUFFER_USAGE_SHADER_DEVICE_ADDRESS

#: kind -> memory property sets, best first: all bits of ``need`` present, none of ``avoid``
_CHOICES: dict[str, tuple[tuple[int, int], ...]] = {
    "device": (
        (DEVICE_LOCAL, HOST_VISIBLE),
        (DEVICE_LOCAL, 0),
        (0, 0),
    ),
    "upload": (
        (HOST_VISIBLE | HOST_COHERENT, DEVICE_LOCAL | HOST_CACHED),
        (HOST_VISIBLE | HOST_COHERENT, DEVICE_LOCAL),
        (HOST_VISIBLE | HOST_COHERENT, 0),
    ),
    "download": (
        (HOST_VISIBLE | HOST_CACHED | HOST_COHERENT, 0),
        (HOST_VISIBLE | HOST_CACHED, 0),
        (HOST_VISIBLE | HOST_COHERENT, 0),
    ),
    "direct": ((DEVICE_LOCAL | HOST_VISIBLE | HOST_COHERENT, 0),),
}
KINDS = tuple(_CHOICES)


@dataclass(frozen=True)
class HeapBudget:
    """One memory heap, in bytes. Without VK_EXT_memory_budget ``budget`` is the size, ``used`` -1 and ``exact``
    False.
    """

    index: int
    size: int
    device_local: bool
    budget: int
    used: int
    exact: bool


def memory_budget(device: Device) -> tuple[HeapBudget, ...]:
    """The memory that this process may use and uses in each heap, as the driver reports (VK_EXT_memory_budget), or else
    the heaps' sizes."""
    device.check_usable()
    exact = "VK_EXT_memory_budget" in device.extensions
    properties = vk.make("VkPhysicalDeviceMemoryProperties2")
    budget = vk.make("VkPhysicalDeviceMemoryBudgetPropertiesEXT")
    if exact:
        vk.chain(properties, budget)
    device.instance.fn.vkGetPhysicalDeviceMemoryProperties2(device.physical_device, properties.ptr)
    memory = properties.ptr.memoryProperties
    return tuple(
        HeapBudget(
            index=i,
            size=memory.memoryHeaps[i].size,
            device_local=bool(memory.memoryHeaps[i].flags & 1),
            budget=budget.heapBudget[i] if exact else memory.memoryHeaps[i].size,
            used=budget.heapUsage[i] if exact else -1,
            exact=exact,
        )
        for i in range(memory.memoryHeapCount)
    )


def choose_type(device: Device, kind: str, type_bits: int) -> tuple[int, int, int]:
    """(memory type index, its property flags, its heap) for a buffer of this kind. Raises `GpuError`."""
    memory = vk.out("VkPhysicalDeviceMemoryProperties")
    device.instance.fn.vkGetPhysicalDeviceMemoryProperties(device.physical_device, memory)
    choices = _CHOICES[kind]
    if kind == "device" and device.capabilities.host_visible_device_local:
        choices = ((_UNIFIED, 0), *choices)
    for need, avoid in choices:
        for index in range(memory.memoryTypeCount):
            flags = memory.memoryTypes[index].propertyFlags
            if type_bits >> index & 1 and flags & need == need and not flags & avoid and not flags & ~0xF:
                return index, flags, memory.memoryTypes[index].heapIndex
    raise GpuError("choosing a memory type", label=device.label, hint=f"no memory type fits a {kind!r} buffer")


def has_direct(device: Device) -> bool:
    """Whether the device has memory of its own that the host may write (``"direct"``): on PCI, a window for the host."""
    try:
        choose_type(device, "direct", 0xFFFFFFFF)
    except GpuError:
        return False
    return True


class Buffer(Handle):
    """``size`` bytes of GPU memory with storage, transfer and device-address usage.

    ``memory_kind`` is ``"device"`` (device-local; mapped too on unified memory), ``"upload"`` (host-visible, coherent:
    the host writes, the GPU reads) or ``"download"`` (host-visible, cached: the GPU writes, the host reads);
    ``"direct"`` is the device's own, where the host may write (`has_direct`).

    ``memory_types`` limits the memory types (bits) where another resource will be bound to the same memory.
    ``exported``: other devices and APIs may import it, by file descriptors (`gpu_shared.external.memory_descriptor`).

    ``address`` is the device address (int), ``mapped`` a writable memoryview of all bytes or None where the host cannot
    see them. An array over ``mapped`` keeps the memory alive: it is freed with the last one, even after ``close()``.

    Raises ``ValueError`` for a size below 1 or an unknown kind, ``TypeError`` for a size that is no integer,
    `OutOfDeviceMemoryError` with the requested and the available bytes.
    """

    kind = "buffer"
    _unmapped: End | None = None

    def __init__(
        self,
        device: Device,
        size: SupportsIndex,
        memory_kind: str = "device",
        *,
        memory_types: int = 0xFFFFFFFF,
        exported: bool = False,
        label: str = "buffer",
    ) -> None:
        if memory_kind not in _CHOICES:
            raise ValueError(f"memory_kind is {memory_kind!r}, expected one of {KINDS}")
        if isinstance(size, bool) or not hasattr(size, "__index__"):
            raise TypeError(f"size is {size!r} of type {type(size).__name__}, expected an integer")
        size = size.__index__()
        if size < 1:
            raise ValueError(f"size is {size}, expected at least 1 byte")
        self.size = size
        self.memory_kind = memory_kind
        device_raw, fn = device.raw, device.fn
        null = vk.ffi.NULL
        _check_limits(device, size, label)
        info = vk.make("VkBufferCreateInfo", size=size, usage=USAGE, sharingMode=vk.VK_SHARING_MODE_EXCLUSIVE)
        if exported:
            info = vk.chain(info, vk.make("VkExternalMemoryBufferCreateInfo", handleTypes=OPAQUE_FD_BIT))
        out = vk.out("VkBuffer")
        vk.check(fn.vkCreateBuffer(device_raw, info.ptr, null, out), "vkCreateBuffer", label)
        raw = out[0]
        memory = None
        try:
            requirements = vk.out("VkMemoryRequirements")
            fn.vkGetBufferMemoryRequirements(device_raw, raw, requirements)
            index, flags, heap = choose_type(device, memory_kind, requirements.memoryTypeBits & memory_types)
            memory = _allocate(device, requirements.size, index, heap, label, raw if exported else None)
            vk.check(fn.vkBindBufferMemory(device_raw, raw, memory, 0), "vkBindBufferMemory", label)
            address = vk.make("VkBufferDeviceAddressInfo", buffer=raw)
            self.address: int = fn.vkGetBufferDeviceAddress(device_raw, address.ptr)
            pointer = None
            if flags & HOST_VISIBLE and (memory_kind != "device" or flags & _UNIFIED == _UNIFIED):
                where = vk.out("void *")
                vk.check(fn.vkMapMemory(device_raw, memory, 0, vk.WHOLE_SIZE, 0, where), "vkMapMemory", label)
                pointer = where[0]
            device.set_name(vk.VK_OBJECT_TYPE_BUFFER, raw, label)
        except BaseException:
            fn.vkDestroyBuffer(device_raw, raw, null)
            if memory is not None:
                fn.vkFreeMemory(device_raw, memory, null)
            raise
        self._memory = memory
        self.memory_size: int = requirements.size
        self.memory_type = index
        self.property_flags = flags
        self.heap = heap

        def destroy() -> None:
            fn.vkDestroyBuffer(device_raw, raw, null)
            fn.vkFreeMemory(device_raw, memory, null)  # unmaps

        super().__init__(raw, parent=device, destroy=destroy, label=label, reaper=device.reaper)
        self._mapped = self._views(pointer)

    def _views(self, pointer: Any) -> memoryview | None:
        if pointer is None:
            return None
        # the views hold this pointer; it holds the buffer's native until the last view is gone
        mapping = Native("mapping", None, self._native, self._native.reaper, counted=False)
        held = vk.ffi.cast("char *", pointer)
        self._unmapped = on_end(held, mapping.retire, at_exit=False)
        return memoryview(vk.ffi.buffer(held, self.size)).cast("B")

    @property
    def memory(self) -> Any:
        """The raw VkDeviceMemory (``memory_size`` bytes of type ``memory_type``), for binding a tensor to it as
        well."""
        self.check_usable()
        return self._memory

    @property
    def mapped(self) -> memoryview | None:
        """All bytes, writable (format ``B``), or None. Raises `ClosedError`."""
        self.check_usable()
        return self._mapped

    @property
    def coherent(self) -> bool:
        """Whether `flush` and `invalidate` have no effect."""
        return bool(self.property_flags & HOST_COHERENT)

    def flush(self) -> None:
        """Make the host's writes to a mapped buffer visible to the GPU (nothing to do on coherent memory)."""
        self._sync("vkFlushMappedMemoryRanges")

    def invalidate(self) -> None:
        """Make the GPU's writes visible to the host's reads (nothing to do on coherent memory)."""
        self._sync("vkInvalidateMappedMemoryRanges")

    def _sync(self, call: str) -> None:
        raw = self.device.raw
        if self.mapped is None:
            raise ValueError(f"{self.label}: a {self.memory_kind!r} buffer that the host cannot see")
        if not self.coherent:
            whole = vk.make("VkMappedMemoryRange", memory=self._memory, offset=0, size=vk.WHOLE_SIZE)
            vk.check(getattr(self.device.fn, call)(raw, 1, whole.ptr), call, self.label)

    def _before_retire(self) -> None:
        self._mapped = None
        if self._unmapped is not None and self._unmapped.due:
            self._unmapped()  # now, so that the memory is freed with the buffer


def _check_limits(device: Device, size: int, label: str) -> None:
    capabilities = device.capabilities
    # maxMemoryAllocationSize is not a limit: drivers allow more, and a refusal is reported
    limit = capabilities.max_buffer_size
    if size > limit:
        raise OutOfDeviceMemoryError(
            "creating a buffer",
            label=label,
            hint=f"{size} bytes asked, but one buffer on {capabilities.name} holds at most {limit}",
            asked=size,
            budget=limit,
        )


def _allocate(device: Device, size: int, type_index: int, heap: int, label: str, exported: Any = None) -> Any:
    """``exported``: the buffer for whose dedicated, exportable memory this is."""
    heap_size = device.capabilities.memory_heaps[heap].size
    result = vk.VK_ERROR_OUT_OF_DEVICE_MEMORY  # larger than the heap: it is invalid to call the driver
    out = vk.out("VkDeviceMemory")
    if size <= heap_size:
        flags = vk.make("VkMemoryAllocateFlagsInfo", flags=vk.MEMORY_ALLOCATE_DEVICE_ADDRESS)
        info = vk.make("VkMemoryAllocateInfo", pNext=flags, allocationSize=size, memoryTypeIndex=type_index)
        if exported is not None:
            export = vk.make("VkExportMemoryAllocateInfo", handleTypes=OPAQUE_FD_BIT)
            own = vk.make("VkMemoryDedicatedAllocateInfo", buffer=exported)
            info = vk.chain(
                vk.make("VkMemoryAllocateInfo", allocationSize=size, memoryTypeIndex=type_index), flags, export, own
            )
        result = device.fn.vkAllocateMemory(device.raw, info.ptr, vk.ffi.NULL, out)
        if result == vk.VK_ERROR_OUT_OF_DEVICE_MEMORY:
            settle()  # buffers that were dropped a moment ago
            if device.reaper.retired and device.collect():
                result = device.fn.vkAllocateMemory(device.raw, info.ptr, vk.ffi.NULL, out)
    if result in (vk.VK_ERROR_OUT_OF_DEVICE_MEMORY, vk.VK_ERROR_OUT_OF_HOST_MEMORY):
        budget = memory_budget(device)[heap]
        used = f", {budget.used} of them used by this process" if budget.used >= 0 else ""
        raise OutOfDeviceMemoryError(
            "vkAllocateMemory",
            vk.result_name(result),
            label,
            f"{size} bytes asked; heap {heap} of {device.label} has {budget.size} bytes, budget {budget.budget}{used}; "
            "close sessions, lower the arena's limit, or use a smaller model or batch",
            asked=size,
            budget=budget.budget,
            used=budget.used,
        )
    vk.check(result, "vkAllocateMemory", label)
    return out[0]
