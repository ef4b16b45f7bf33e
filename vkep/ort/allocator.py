"""OrtAllocator on vkep's arena, and OrtDataTransferImpl between its memory and the host's."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from gpu_shared.errors import GpuError
from vkep.ort.boundary import NULL, CStruct, ffi, status, value
from vkep.ort.memory import Bytes, MemoryDomain, domain_of
from vkep.ort.tensors import address, byte_count, describe, host_bytes

if TYPE_CHECKING:
    from vkep.ort.api import Ort

logger = logging.getLogger("vkep.ort")

#: OrtMemoryInfoDeviceType, OrtDeviceMemoryType, OrtAllocatorType
CPU, GPU = 0, 1
DEFAULT_MEMORY, HOST_ACCESSIBLE = 0, 5
DEVICE_ALLOCATOR, READ_ONLY_ALLOCATOR = 0, 2


class ReadOnlyAllocator(CStruct, struct="OrtAllocator"):
    """Memory for initializers: a buffer of its own each, because what stays has no use for an arena.

    ``open_domain`` gives the memory's domain (for this allocator to release) at the first allocation, so that a
    registered library whose provider nobody uses opens no device.
    """

    def __init__(self, ort: Ort, info: Any, open_domain: Callable[[], MemoryDomain]) -> None:
        super().__init__()
        self._ort, self._info, self._open = ort, info, open_domain
        self._domain: MemoryDomain | None = None

    @property
    def domain(self) -> MemoryDomain:
        if self._domain is None:
            self._domain = self._open()
        return self._domain

    @value(NULL)
    def Alloc(self, nbytes: int) -> Any:
        return self._pointer(self.domain.reserve, nbytes)

    @value(NULL)
    def Reserve(self, nbytes: int) -> Any:
        return self._pointer(self.domain.reserve, nbytes)

    @value(None)
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
            # the interface has no status here: ONNX Runtime sees a NULL and says "Allocation failed"; this says why
            logger.error("%s", error)
            return NULL

    def release(self) -> None:
        super().release()
        if self._domain is not None:
            self._domain.release()
            self._domain = None


class ArenaAllocator(ReadOnlyAllocator, struct="OrtAllocator"):
    """Memory from the context's arena, which all sessions on the context share."""

    @value(NULL)
    def Alloc(self, nbytes: int) -> Any:
        return self._pointer(self.domain.alloc, nbytes)

    @value(NULL)
    def AllocOnStream(self, nbytes: int, stream: Any) -> Any:
        # Every stream of a context is its one timeline, for which the domain allocates in any case.
        return self._pointer(self.domain.alloc, nbytes)

    @status
    def Shrink(self) -> None:
        if self._domain is not None:
            freed = self._domain.shrink()
            logger.debug("shrink of %s gave %d bytes back", self._domain.context.label, freed)


class DataTransfer(CStruct, struct="OrtDataTransferImpl"):
    """Copies between host memory and vkep's device memory, and within the latter."""

    def __init__(self, ort: Ort, vendor_ids: frozenset[int]) -> None:
        super().__init__()
        self._ort, self._vendor_ids = ort, vendor_ids

    @value(False)
    def CanCopy(self, source: Any, target: Any) -> bool:
        if self._is_host(source):
            return self._is_ours(target)
        return self._is_ours(source) and (self._is_host(target) or self._is_ours(target))

    @status
    def CopyTensors(self, sources: Any, targets: Any, streams: Any, count: int) -> None:
        copy_tensors((describe(self._ort, sources[i]), describe(self._ort, targets[i])) for i in range(count))

    @value(None)
    def Release(self) -> None:
        self.release()

    def _is_ours(self, device: Any) -> bool:
        ep_api = self._ort.ep_api
        return (
            ep_api.MemoryDevice_GetDeviceType(device) == GPU
            and ep_api.MemoryDevice_GetMemoryType(device) == DEFAULT_MEMORY
            and ep_api.MemoryDevice_GetVendorId(device) in self._vendor_ids
        )

    def _is_host(self, device: Any) -> bool:
        ep_api = self._ort.ep_api
        return (
            ep_api.MemoryDevice_GetDeviceType(device) == CPU
            or ep_api.MemoryDevice_GetMemoryType(device) == HOST_ACCESSIBLE
        )


def copy_tensors(pairs: Iterable[tuple[Any, Any]]) -> None:
    """Copy described tensors to others of the same sizes, wherever they lie: all that go to a device, or come from it, with
    one submit. ``pairs`` depend on nothing among them. Raises `ValueError`, `TypeError`, `GpuError`.
    """
    up: dict[MemoryDomain, list[tuple[int, Bytes]]] = {}
    down: dict[MemoryDomain, list[tuple[int, Bytes]]] = {}
    for source, target in pairs:
        nbytes = byte_count(source)
        if byte_count(target) != nbytes:
            raise ValueError(f"copying a tensor of {nbytes} bytes to one of {byte_count(target)}")
        if not nbytes:
            continue
        if source.on_device and target.on_device:
            _copy_on_devices(address(source.data), address(target.data), nbytes)
        elif target.on_device:
            goal = address(target.data)
            up.setdefault(domain_of(goal), []).append((goal, host_bytes(source.data, nbytes)))
        elif source.on_device:
            origin = address(source.data)
            down.setdefault(domain_of(origin), []).append((origin, host_bytes(target.data, nbytes)))
        else:
            host_bytes(target.data, nbytes)[:] = host_bytes(source.data, nbytes)
    for domain, items in up.items():
        domain.upload_all(items)
    for domain, items in down.items():
        domain.download_all(items)


def _copy_on_devices(origin: int, goal: int, nbytes: int) -> None:
    if domain_of(origin) is domain_of(goal):
        domain_of(origin).copy(origin, goal, nbytes)
    else:
        through = np.empty(nbytes, np.uint8)
        domain_of(origin).download(origin, through)
        domain_of(goal).upload(goal, through)
