"""Another owner of memory and semaphores: a Vulkan device of its own that exports them as file descriptors."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import numpy as np

from gpu_shared import Buffer, SharedGpuContext, vk
from gpu_shared.memory import USAGE, choose_type

_OPAQUE_FD = 0x1


class Exporter:
    """An application's device. What it exports stays its own; `close` gives all back."""

    def __init__(self) -> None:
        self.context = SharedGpuContext.create(app_name="exporter")
        self.device = self.context.device
        self._ends: list[Any] = []
        self.descriptors: list[int] = []

    def memory(self, nbytes: int) -> ExportedMemory:
        """Exportable memory of at least ``nbytes``."""
        return ExportedMemory(self, nbytes)

    def semaphore(self) -> tuple[Any, int]:
        """(a timeline semaphore, its descriptor)"""
        fn, raw = self.device.fn, self.device.raw
        export = vk.make("VkExportSemaphoreCreateInfo", handleTypes=_OPAQUE_FD)
        kind = vk.make("VkSemaphoreTypeCreateInfo", semaphoreType=vk.VK_SEMAPHORE_TYPE_TIMELINE, pNext=export)
        out = vk.out("VkSemaphore")
        info = vk.make("VkSemaphoreCreateInfo", pNext=kind)
        vk.check(fn.vkCreateSemaphore(raw, info.ptr, vk.ffi.NULL, out), "vkCreateSemaphore")
        semaphore = out[0]
        self._ends.append(lambda: fn.vkDestroySemaphore(raw, semaphore, vk.ffi.NULL))
        get = vk.make("VkSemaphoreGetFdInfoKHR", semaphore=semaphore, handleType=_OPAQUE_FD)
        return semaphore, self.descriptor("vkGetSemaphoreFdKHR", get)

    def counter(self, semaphore: Any) -> int:
        out = vk.out("uint64_t")
        vk.check(self.device.fn.vkGetSemaphoreCounterValue(self.device.raw, semaphore, out), "counter")
        return int(out[0])

    def signal(self, semaphore: Any, value: int) -> None:
        info = vk.make("VkSemaphoreSignalInfo", semaphore=semaphore, value=value)
        vk.check(self.device.fn.vkSignalSemaphore(self.device.raw, info.ptr), "vkSignalSemaphore")

    def descriptor(self, call: str, info: Any) -> int:
        out = vk.out("int")
        vk.check(getattr(self.device.fn, call)(self.device.raw, info.ptr, out), call)
        self.descriptors.append(out[0])
        return int(out[0])

    def close(self) -> None:
        for end in reversed(self._ends):
            end()
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.context.close()

    def __enter__(self) -> Exporter:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class ExportedMemory:
    """One allocation of the application's, for a buffer of ``nbytes``."""

    def __init__(self, owner: Exporter, nbytes: int) -> None:
        device = owner.device
        fn, raw, null = device.fn, device.raw, vk.ffi.NULL
        external = vk.make("VkExternalMemoryBufferCreateInfo", handleTypes=_OPAQUE_FD)
        info = vk.make("VkBufferCreateInfo", pNext=external, size=nbytes, usage=USAGE)
        out = vk.out("VkBuffer")
        vk.check(fn.vkCreateBuffer(raw, info.ptr, null, out), "vkCreateBuffer")
        self.buffer = out[0]
        needs = vk.out("VkMemoryRequirements")
        fn.vkGetBufferMemoryRequirements(raw, self.buffer, needs)
        self.size = int(needs.size)
        self.memory_type, _flags, _heap = choose_type(device, "device", needs.memoryTypeBits)
        parts = [
            vk.make("VkExportMemoryAllocateInfo", handleTypes=_OPAQUE_FD),
            vk.make("VkMemoryAllocateFlagsInfo", flags=vk.MEMORY_ALLOCATE_DEVICE_ADDRESS),
        ]
        allocate = vk.make("VkMemoryAllocateInfo", allocationSize=self.size, memoryTypeIndex=self.memory_type)
        memory = vk.out("VkDeviceMemory")
        vk.check(fn.vkAllocateMemory(raw, vk.chain(allocate, *parts).ptr, null, memory), "vkAllocateMemory")
        kept = memory[0]
        vk.check(fn.vkBindBufferMemory(raw, self.buffer, kept, 0), "vkBindBufferMemory")
        owner._ends.append(lambda: (fn.vkDestroyBuffer(raw, self.buffer, null), fn.vkFreeMemory(raw, kept, null)))
        get = vk.make("VkMemoryGetFdInfoKHR", memory=kept, handleType=_OPAQUE_FD)
        self.descriptor = owner.descriptor("vkGetMemoryFdKHR", get)
        self._context, self._nbytes = owner.context, nbytes

    def write(self, array: np.ndarray[Any, Any], offset: int = 0) -> None:
        """The application fills its memory, on its own queue; done on return."""
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        with Buffer(self._context.device, data.nbytes, "upload") as staging:
            assert staging.mapped is not None
            staging.mapped[:] = data.data
            self._copy(staging, self._seen(), data.nbytes, 0, offset)

    def read(self, shape: tuple[int, ...], offset: int = 0) -> np.ndarray[Any, Any]:
        """float32 values as the application sees them."""
        nbytes = 4 * int(np.prod(shape))
        with Buffer(self._context.device, nbytes, "download") as staging:
            self._copy(self._seen(), staging, nbytes, offset, 0)
            staging.invalidate()
            return np.frombuffer(bytes(staging.mapped or b""), np.float32).reshape(shape)

    def _seen(self) -> Any:
        return SimpleNamespace(raw=self.buffer, size=self._nbytes, label="exported")

    def _copy(self, source: Any, target: Any, nbytes: int, start: int, to: int) -> None:
        with self._context.lease("application") as lease:
            commands = lease.allocate().begin(one_time=True)
            commands.barrier_before_transfer()
            commands.copy_buffer(source, target, nbytes, start, to)
            commands.barrier_to_host()
            lease.wait(lease.submit(lease.prepare([commands.end()])))
            commands.close()
