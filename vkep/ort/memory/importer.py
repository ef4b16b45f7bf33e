"""OrtExternalResourceImporterImpl: an application's Vulkan memory as OrtValues, its timeline semaphores on our streams.

Applications reach it through ``OrtInteropApi``. Memory is an opaque file descriptor or host memory, semaphores are
opaque file descriptors. Descriptors are duplicated: the caller still owns its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gpu_shared.external import (
    HOST_ALLOCATION,
    OPAQUE_FD,
    ImportedBuffer,
    ImportedSemaphore,
    MemorySource,
    can_import_memory,
    can_import_semaphore,
)
from vkep import dtypes
from vkep.device.external import checked_block
from vkep.device.tensor import ExternalBlock
from vkep.ort.boundary import NULL, CStruct, OrtError, behind, ffi, lib, owned, releases, status, value
from vkep.ort.memory import domain as memory
from vkep.ort.memory.streams import SyncStream
from vkep.ort.memory.tensors import address

if TYPE_CHECKING:
    from vkep.ort.api import Ort

#: OrtExternalMemoryHandleType, OrtExternalSemaphoreType
_MEMORY = {3: OPAQUE_FD, 4: HOST_ALLOCATION}
_TIMELINE_FD = 2
_FIRST_LEVEL = 24  # interface versions that introduced these structures; later versions only add fields


class MemoryHandle(CStruct, struct="OrtExternalMemoryHandle"):
    """Imported memory. Its tensors do not keep it alive: release them first. It may outlive its importer. Raises
    ``ValueError`` for an offset outside the allocation, and as `ImportedBuffer`."""

    def __init__(self, domain: memory.MemoryDomain, ep_device: Any, descriptor: Any, memory_type: int | None) -> None:
        kind, offset, size = _MEMORY[descriptor.handle_type], descriptor.offset_bytes, descriptor.size_bytes
        if offset >= size:
            raise ValueError(f"offset_bytes is {offset}, and the allocation has {size} bytes")
        source = MemorySource(kind, _number(descriptor.native_handle), size, memory_type)
        self._domain = memory.acquire(domain.context)
        try:
            self.buffer = ImportedBuffer(domain.context.device, source, label="onnxruntime import")
        except BaseException:
            self._domain.release()
            raise
        self.offset = offset
        self.start = self._domain.adopt(ExternalBlock(self.buffer, 0, self.buffer.size))
        super().__init__()
        self.pointer.ep_device = ep_device
        self.pointer.descriptor = descriptor[0]

    @releases
    def Release(self) -> None:
        self.release()
        self._domain.disown(self.start)
        self.buffer.close()
        self._domain.release()


class SemaphoreHandle(CStruct, struct="OrtExternalSemaphoreHandle"):
    """An imported timeline semaphore."""

    def __init__(self, domain: memory.MemoryDomain, ep_device: Any, descriptor: Any) -> None:
        self._domain = memory.acquire(domain.context)
        try:
            self.semaphore = ImportedSemaphore(domain.context.device, _number(descriptor.native_handle))
        except BaseException:
            self._domain.release()
            raise
        super().__init__()
        self.pointer.ep_device = ep_device
        self.pointer.descriptor = descriptor[0]

    @releases
    def Release(self) -> None:
        self.release()
        self.semaphore.close()
        self._domain.release()


class Importer(CStruct, struct="OrtExternalResourceImporterImpl"):
    """Imports for one device's context.

    Args:
        info: the OrtMemoryInfo of the device's memory.
        domain: the context's memory, for this importer to release.
        memory_type: of memory that is imported by descriptor (see `gpu_shared.external.MemorySource`).
    """

    def __init__(
        self, ort: Ort, ep_device: Any, info: Any, domain: memory.MemoryDomain, memory_type: int | None
    ) -> None:
        self._ort, self._ep_device, self._info, self._domain = ort, ep_device, info, domain
        self._memory_type = memory_type
        super().__init__()

    # ---- memory

    @value(False)
    def CanImportMemory(self, kind: int) -> bool:
        return kind in _MEMORY and can_import_memory(self._domain.context.device, _MEMORY[kind])

    @status
    def ImportMemory(self, descriptor: Any, out: Any) -> None:
        out[0] = NULL
        _check_version(descriptor)
        if not self.CanImportMemory(descriptor.handle_type):
            raise NotImplementedError(
                f"{self._domain.context.device.label} imports no memory of OrtExternalMemoryHandleType "
                f"{descriptor.handle_type}; ask CanImportMemory first"
            )
        exported = self._memory_type if _MEMORY[descriptor.handle_type] == OPAQUE_FD else None
        out[0] = MemoryHandle(self._domain, self._ep_device, descriptor, exported).pointer

    @releases
    def ReleaseMemory(self, handle: Any) -> None:
        behind(handle).Release()

    @status
    def CreateTensorFromMemory(self, handle: Any, descriptor: Any, out: Any) -> None:
        out[0] = NULL
        _check_version(descriptor)
        held: MemoryHandle = behind(handle)
        element_type = lib.vkep_onnx_type(descriptor.element_type)
        dtype = dtypes.from_onnx(element_type)
        if dtype is None or dtype.sub_byte_bits:
            raise TypeError(f"a tensor of {dtypes.onnx_name(element_type)} cannot lie in imported memory")
        shape = tuple(descriptor.shape[0 : descriptor.rank]) if descriptor.rank else ()
        if any(d < 0 for d in shape):
            raise ValueError(f"the shape {shape} has a negative dimension")
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        offset = held.offset + descriptor.offset_bytes
        checked_block(held.buffer, offset, nbytes, f"a tensor of {dtype} {shape}")
        data = ffi.cast("void *", held.start + offset)
        dims = ffi.new("int64_t[]", list(shape) or [0])
        make = self._ort.api.CreateTensorWithDataAsOrtValue
        out[0] = self._ort.get(make, "OrtValue *", self._info, data, nbytes, dims, len(shape), descriptor.element_type)

    # ---- semaphores

    @value(False)
    def CanImportSemaphore(self, kind: int) -> bool:
        return kind == _TIMELINE_FD and can_import_semaphore(self._domain.context.device)

    @status
    def ImportSemaphore(self, descriptor: Any, out: Any) -> None:
        out[0] = NULL
        _check_version(descriptor)
        if not self.CanImportSemaphore(descriptor.type):
            raise NotImplementedError(
                f"{self._domain.context.device.label} imports no semaphore of OrtExternalSemaphoreType {descriptor.type}; "
                "ask CanImportSemaphore first"
            )
        out[0] = SemaphoreHandle(self._domain, self._ep_device, descriptor).pointer

    @releases
    def ReleaseSemaphore(self, handle: Any) -> None:
        behind(handle).Release()

    @status
    def WaitSemaphore(self, handle: Any, stream: Any, number: int) -> None:
        self._domain.context.timeline.enqueue(self._on_stream(handle, stream).semaphore, wait=number)

    @status
    def SignalSemaphore(self, handle: Any, stream: Any, number: int) -> None:
        self._domain.context.timeline.enqueue(self._on_stream(handle, stream).semaphore, signal=number)

    def _on_stream(self, handle: Any, stream: Any) -> SemaphoreHandle:
        mine = None if stream == NULL else owned(lib.vkep_working_stream(self._ort.ep_api.SyncStream_GetImpl(stream)))
        if not isinstance(mine, SyncStream) or mine.domain is not self._domain:
            raise ValueError("the stream is not of this importer's device and context")
        held = behind(handle)
        if not isinstance(held, SemaphoreHandle):
            raise OrtError("the handle is not of a semaphore")
        return held

    @releases
    def Release(self) -> None:
        self.release()
        self._domain.release()


def _number(native_handle: Any) -> int:
    return address(native_handle)


def _check_version(descriptor: Any) -> None:
    if descriptor.version < _FIRST_LEVEL:
        raise ValueError(f"the descriptor's version is {descriptor.version}, expected ORT_API_VERSION")
