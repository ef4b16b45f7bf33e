"""OrtAllocator on vkep's arena, and OrtDataTransferImpl between its memory and the host's."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from gpu_shared.errors import GpuError
from vkep import dtypes
from vkep.graph.weights import unpack
from vkep.memory.device_arena import BufferArena, shared_arena
from vkep.ort.boundary import NULL, CStruct, ffi, lib, releases, status, value
from vkep.ort.memory.domain import NUMBER_SHIFT, MemoryDomain, acquire, domain_of
from vkep.ort.memory.tensors import address, byte_count, shape_of, tensor_array
from vkep.ort.memory.transfers import Item, in_c

if TYPE_CHECKING:
    from gpu_shared.context import SharedGpuContext
    from gpu_shared.lease import DelegateLease
    from gpu_shared.resources import SharedResource
    from vkep.arena.config import ArenaConfig
    from vkep.memory.device_arena import DeviceBlock
    from vkep.ort.api import Ort

logger = logging.getLogger("vkep.ort")

#: OrtMemoryInfoDeviceType, OrtDeviceMemoryType, OrtAllocatorType
CPU, GPU = 0, 1
DEFAULT_MEMORY, HOST_ACCESSIBLE = 0, 5
DEVICE_ALLOCATOR, READ_ONLY_ALLOCATOR = 0, 2


#: a context, and settings of an arena
OpenContext = Callable[[], "tuple[SharedGpuContext, ArenaConfig | None]"]
_MOST_VENDORS = 16  # of a VkepTransfer
_UP = 1  # vkep_copies's value for copies to the device


class ReadOnlyAllocator(CStruct, struct="OrtAllocator"):
    """Memory for initializers: one buffer each, because they live as long as the session.

    ``open_context`` opens the context at the first allocation, so that a registered library whose provider is not used opens
    no device; its arena's settings apply where nothing uses that arena yet.
    """

    def __init__(self, ort: Ort, info: Any, open_context: OpenContext) -> None:
        super().__init__()
        self._ort, self._info, self._open = ort, info, open_context
        self._domain: MemoryDomain | None = None

    @property
    def domain(self) -> MemoryDomain:
        """The domain that it allocates from, opened on first use."""
        if self._domain is None:
            self._domain = acquire(*self._open())
            self._opened(self._domain)
        return self._domain

    def _opened(self, domain: MemoryDomain) -> None:
        """Whether the domain is open."""

    @value(NULL)
    def Alloc(self, nbytes: int) -> Any:
        return self._pointer(self.domain.reserve, nbytes)

    @value(NULL)
    def Reserve(self, nbytes: int) -> Any:
        return self._pointer(self.domain.reserve, nbytes)

    @releases
    def Free(self, pointer: Any) -> None:
        if pointer != NULL:
            domain_of(address(pointer)).free(address(pointer))

    @value(NULL)
    def Info(self) -> Any:
        return self._info

    @status
    def GetStats(self, out: Any) -> None:
        stats = {} if self._domain is None else self._domain.arena.stats.to_key_values()
        out[0] = self._ort.make_pairs(stats)

    @staticmethod
    def _pointer(take: Callable[[int], int], nbytes: int) -> Any:
        if not nbytes:
            return NULL
        try:
            return ffi.cast("void *", take(nbytes))
        except (MemoryError, GpuError) as error:
            # the interface returns no status here: ONNX Runtime sees NULL and reports "Allocation failed"; this logs
            # the reason
            logger.error("%s", str(error))
            return NULL

    def release(self) -> None:
        super().release()
        if self._domain is not None:
            self._domain.release()
            self._domain = None


class ArenaAllocator(ReadOnlyAllocator, struct="OrtAllocator"):
    """Memory from the context's arena, which all sessions on the context share. Memory that the previous run freed is
    reused without calling Python (``VkepAllocator``)."""

    room = "VkepAllocator"

    def __init__(self, ort: Ort, info: Any, open_context: OpenContext) -> None:
        super().__init__(ort, info, open_context)
        memory, pointer = self._memory, self.pointer
        memory.alloc, memory.alloc_on_stream, memory.free = pointer.Alloc, pointer.AllocOnStream, pointer.Free
        pointer.Alloc, pointer.Free = ffi.addressof(lib, "vkep_alloc"), ffi.addressof(lib, "vkep_free")
        pointer.AllocOnStream = ffi.addressof(lib, "vkep_alloc_on_stream")

    def _opened(self, domain: MemoryDomain) -> None:
        self._memory.spares = domain.spares

    @value(NULL)
    def Alloc(self, nbytes: int) -> Any:
        return self._pointer(self.domain.alloc, nbytes)

    @value(NULL)
    def AllocOnStream(self, nbytes: int, stream: Any) -> Any:
        # Every stream of a context is its only timeline, for which the domain allocates anyway.
        return self._pointer(self.domain.alloc, nbytes)

    @status
    def Shrink(self) -> None:
        if self._domain is not None:
            freed = self._domain.shrink()
            logger.debug("shrink of %s gave %d bytes back", self._domain.context.label, freed)


class PinnedAllocator(ReadOnlyAllocator, struct="OrtAllocator"):
    """Host memory that the device can access, cached for the host, from an arena that all sessions on the context
    share. ONNX Runtime allocates outputs for the host there. Its pointers are host addresses; no stream orders it."""

    def __init__(self, ort: Ort, info: Any, open_context: OpenContext) -> None:
        super().__init__(ort, info, open_context)
        self._lease: DelegateLease | None = None
        self._arena: SharedResource[BufferArena] | None = None
        self._blocks: dict[int, tuple[DeviceBlock, memoryview]] = {}  # by the host's address
        self._lock = threading.Lock()

    @property
    def arena(self) -> BufferArena:
        """The arena, opened on first use: not the device arena of the context, which keeps no settings of this one."""
        with self._lock:
            if self._arena is None:
                context, config = self._open()
                label = "pinned memory of ONNX Runtime"
                make = functools.partial(BufferArena, context.device, "download", config, label=label)
                if self._lease is None:  # else making the arena failed before
                    self._lease = context.lease(label, copies_only=True)
                self._arena = shared_arena(self._lease, "pinned arena", make, config)
            return self._arena.value

    @value(NULL)
    def Alloc(self, nbytes: int) -> Any:
        return self._pointer(self._take, nbytes)

    @value(NULL)
    def Reserve(self, nbytes: int) -> Any:
        return self._pointer(self._take, nbytes)

    def _take(self, nbytes: int) -> int:
        block = self.arena.alloc(nbytes)
        seen = block.mapped
        assert seen is not None, "host-visible memory is mapped"
        place = int(ffi.cast("uintptr_t", ffi.from_buffer(seen)))
        with self._lock:
            self._blocks[place] = (block, seen)
        return place

    def holds(self, place: int) -> bool:
        """Whether a host address is in memory that it allocated."""
        with self._lock:
            return any(at <= place < at + block.size for at, (block, _seen) in self._blocks.items())

    @releases
    def Free(self, pointer: Any) -> None:
        if pointer != NULL:
            with self._lock:
                block, _seen = self._blocks.pop(address(pointer))
            block.free()

    @status
    def GetStats(self, out: Any) -> None:
        stats = {} if self._arena is None else self._arena.value.stats.to_key_values()
        out[0] = self._ort.make_pairs(stats)

    @status
    def Shrink(self) -> None:
        if self._arena is not None:
            self._arena.value.shrink()

    def release(self) -> None:
        while self._blocks:
            self._blocks.popitem()[1][0].free()
        if self._arena is not None:
            self._arena.release()
            self._arena = None
        if self._lease is not None:
            self._lease.close()
            self._lease = None
        super().release()


#: by kinds of allocator and of memory
ALLOCATORS: dict[tuple[int, int], type[ReadOnlyAllocator]] = {
    (DEVICE_ALLOCATOR, DEFAULT_MEMORY): ArenaAllocator,
    (READ_ONLY_ALLOCATOR, DEFAULT_MEMORY): ReadOnlyAllocator,
    (DEVICE_ALLOCATOR, HOST_ACCESSIBLE): PinnedAllocator,
}


class DataTransfer(CStruct, struct="OrtDataTransferImpl"):
    """Copies between host memory and vkep's device memory, and within the latter. `CanCopy` is C (`VkepTransfer`).
    Raises ``ValueError`` for devices of more vendors than it has room for."""

    room = "VkepTransfer"

    def __init__(self, ort: Ort, vendor_ids: frozenset[int]) -> None:
        if len(vendor_ids) > _MOST_VENDORS:
            raise ValueError(f"Vulkan devices of {len(vendor_ids)} vendors; there is room for {_MOST_VENDORS}")
        super().__init__()
        self._ort = ort
        self._memory.ep_api = ort.ep_api
        self._memory.vendors = sorted(vendor_ids)
        self._memory.count = len(vendor_ids)
        self.pointer.CanCopy = ffi.addressof(lib, "vkep_can_copy")

    @status
    def CopyTensors(self, sources: Any, targets: Any, streams: Any, count: int) -> None:
        ort = self._ort
        key, hosts = ffi.new("uint64_t[]", 2 * count), ffi.new("char *[]", count)
        way = lib.vkep_copies(ort.api, ort.ep_api, sources, targets, count, NUMBER_SHIFT, key, hosts)
        if way:
            domain = domain_of(key[0])
            (domain.uploads if way == _UP else domain.downloads).run(key, hosts, count)
            return
        tensors = ffi.new("VkepTensor[]", 2 * count)
        ort.check(lib.vkep_pairs(ort.api, ort.ep_api, sources, targets, count, tensors))
        copy_tensors([(tensors[2 * i], tensors[2 * i + 1]) for i in range(count)])

    @releases
    def Release(self) -> None:
        self.release()


def copy_tensors(pairs: Iterable[tuple[Any, Any]]) -> None:
    """Copy described tensors to others of the same sizes, in any memory. All copies to a device, or from it, use one
    submit. The ``pairs`` must not depend on each other. Raises `ValueError`, `TypeError`, `GpuError`."""
    within: dict[MemoryDomain, list[tuple[int, int, int]]] = {}
    up: dict[MemoryDomain, list[Item]] = {}
    down: dict[MemoryDomain, list[Item]] = {}
    for source, target in pairs:
        nbytes = byte_count(source)
        if byte_count(target) != nbytes:
            raise ValueError(f"copying a tensor of {nbytes} bytes to one of {byte_count(target)}")
        if not nbytes:
            continue
        if source.on_device and target.on_device:
            origin, goal = address(source.data), address(target.data)
            if domain_of(origin) is domain_of(goal):
                within.setdefault(domain_of(origin), []).append((origin, goal, nbytes))
            else:
                through = np.empty(nbytes, np.uint8)
                domain_of(origin).download(origin, through)
                domain_of(goal).upload(goal, through)
        elif target.on_device:
            goal = address(target.data)
            up.setdefault(domain_of(goal), []).append((goal, source.data, nbytes))
        elif source.on_device:
            origin = address(source.data)
            down.setdefault(domain_of(origin), []).append((origin, target.data, nbytes))
        else:
            lib.vkep_copy(target.data, source.data, nbytes)
    for domain, inside in within.items():
        domain.copy(inside)
    for domain, items in up.items():
        domain.uploads.run(*in_c(items))
    for domain, items in down.items():
        domain.downloads.run(*in_c(items))


def array_of(tensor: Any) -> np.ndarray[Any, Any]:
    """A copy of a described tensor in any memory. Raises `TypeError` for texts, `GpuError`."""
    if not tensor.on_device:
        return tensor_array(tensor)
    dtype = dtypes.from_onnx(tensor.type)
    assert dtype is not None
    data = np.empty(byte_count(tensor), np.uint8)
    pointer = address(tensor.data)
    if data.nbytes:
        domain_of(pointer).download(pointer, data)
    if dtype.sub_byte_bits:
        return unpack(data, dtype, shape_of(tensor))
    return data.view(dtype.numpy).reshape(shape_of(tensor))
