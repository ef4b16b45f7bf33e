"""Vulkan and loader calls that fail on request, for `tools.fuzz.faults`."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gpu_shared import vk

LOST = -4
_MEMORY = (-1, -2)  # VK_ERROR_OUT_OF_HOST_MEMORY, VK_ERROR_OUT_OF_DEVICE_MEMORY
_MAY_LOSE = (*_MEMORY, LOST)
_NO_CAPTURE, _NO_HANDLE = -1000257000, -1000072003
#: the error results that the specification lists, where they differ from `_MEMORY`
RESULTS: dict[str, tuple[int, ...]] = {
    "vkCreateInstance": (*_MEMORY, -3, -6, -7, -9),
    "vkEnumerateInstanceExtensionProperties": (*_MEMORY, -6),
    "vkEnumeratePhysicalDevices": (*_MEMORY, -3),
    "vkEnumerateDeviceExtensionProperties": (*_MEMORY, -6),
    "vkCreateDevice": (*_MEMORY, -3, LOST, -7, -8, -10),
    "vkCreateBuffer": (*_MEMORY, _NO_CAPTURE),
    "vkAllocateMemory": (*_MEMORY, _NO_HANDLE, _NO_CAPTURE),
    "vkBindBufferMemory": (*_MEMORY, _NO_CAPTURE),
    "vkMapMemory": (*_MEMORY, -5),
    "vkGetSemaphoreCounterValue": _MAY_LOSE,
    "vkWaitSemaphores": _MAY_LOSE,
    "vkQueueSubmit": _MAY_LOSE,
    "vkQueueWaitIdle": _MAY_LOSE,
    "vkDeviceWaitIdle": _MAY_LOSE,
    "vkGetQueryPoolResults": _MAY_LOSE,
    "vkCreateShaderModule": (*_MEMORY, -1000012000),
    "vkCreateComputePipelines": (*_MEMORY, -1000012000),
    "vkCreateDescriptorPool": (*_MEMORY, -1000161000),
    "vkAllocateDescriptorSets": (*_MEMORY, -12, -1000069000),
    "vkResetCommandBuffer": (-2,),
    "vkGetMemoryFdKHR": (-10, -1),
    "vkGetMemoryHostPointerPropertiesEXT": (-1, _NO_HANDLE),
    "vkImportSemaphoreFdKHR": (-1, _NO_HANDLE),
    "vkCreateDebugUtilsMessengerEXT": (-1,),
    "vkCreateTensorARM": (*_MEMORY, _NO_CAPTURE),
}
#: the largest number of error results of a call
MOST_RESULTS = max(map(len, RESULTS.values()))

#: number of submits shortly before a fault that begin late
_SHORTLY = 8  #: calls
_HELD_BYTES, _HELD_TIMES = 4 << 20, 256
_WAITS_FOR_IDLE = ("vkQueueWaitIdle", "vkDeviceWaitIdle")
#: calls that only one thread at a time may make on a queue
_OF_THE_QUEUE = ("vkQueueSubmit", *_WAITS_FOR_IDLE)

_fetch = vk.Functions.__getattr__


class DeviceUnderTest:
    """A device whose calls fail on request, in place of the driver's own functions."""

    def __init__(self, raw: Any) -> None:
        self._raw, self._fn = raw, vk.device_functions(raw)
        self.lock = threading.RLock()  # held in calls `_OF_THE_QUEUE`
        self.lost = False
        self._made: list[tuple[str, Any]] = []  # objects by kind
        self._work: vk.Struct | None = None  # a submit that takes some time

    def _call(self, name: str, *arguments: Any) -> None:
        vk.check(_fetch(self._fn, name)(self._raw, *arguments), f"the injector's {name}")

    def _make(self, create: str, kind: str, info: vk.Struct) -> Any:
        out = vk.out(f"Vk{kind}")
        self._call(f"vk{create}{kind}", info.ptr, vk.ffi.NULL, out)
        self._made.append((kind, out[0]))
        return out[0]

    def lose(self, function: Any, arguments: tuple[Any, ...] | None) -> int:
        """Mark the device as lost; returns that result. What was submitted is still executed: a wait for an idle device
        (``arguments``) ends with it, as on a real one."""
        with self.lock:
            self.lost = True
            if arguments is not None:
                function(*arguments)
        return LOST

    def hold(self, queue: Any) -> None:
        """Make the next submit to the queue begin late: it still runs when a wait for it fails. The lock is held."""
        if self._work is None:
            self._work = self._fills()
        vk.check(
            _fetch(self._fn, "vkQueueSubmit")(queue, 1, self._work.ptr, vk.ffi.NULL), "the injector's vkQueueSubmit"
        )

    def _fills(self) -> vk.Struct:
        """Record and submit commands that write a buffer over and over, to keep the queue busy."""
        usage = vk.VK_BUFFER_USAGE_TRANSFER_DST_BIT
        buffer = self._make("Create", "Buffer", vk.make("VkBufferCreateInfo", size=_HELD_BYTES, usage=usage))
        needs = vk.out("VkMemoryRequirements")
        _fetch(self._fn, "vkGetBufferMemoryRequirements")(self._raw, buffer, needs)
        kind = (needs.memoryTypeBits & -needs.memoryTypeBits).bit_length() - 1
        info = vk.make("VkMemoryAllocateInfo", allocationSize=needs.size, memoryTypeIndex=kind)
        out = vk.out("VkDeviceMemory")
        self._call("vkAllocateMemory", info.ptr, vk.ffi.NULL, out)
        self._made.append(("DeviceMemory", out[0]))
        self._call("vkBindBufferMemory", buffer, out[0], 0)
        pool = self._make("Create", "CommandPool", vk.make("VkCommandPoolCreateInfo"))
        info = vk.make("VkCommandBufferAllocateInfo", commandPool=pool, commandBufferCount=1)
        commands = vk.out("VkCommandBuffer")
        self._call("vkAllocateCommandBuffers", info.ptr, commands)
        begin = vk.make("VkCommandBufferBeginInfo", flags=vk.VK_COMMAND_BUFFER_USAGE_SIMULTANEOUS_USE_BIT)
        vk.check(_fetch(self._fn, "vkBeginCommandBuffer")(commands[0], begin.ptr), "vkBeginCommandBuffer")
        everything = vk.VK_PIPELINE_STAGE_ALL_COMMANDS_BIT
        access = vk.VK_ACCESS_MEMORY_WRITE_BIT
        barrier = vk.make("VkMemoryBarrier", srcAccessMask=access, dstAccessMask=access)
        for _ in range(_HELD_TIMES):
            _fetch(self._fn, "vkCmdFillBuffer")(commands[0], buffer, 0, _HELD_BYTES, 0)
            arguments = (everything, everything, 0, 1, barrier.ptr, 0, vk.ffi.NULL, 0, vk.ffi.NULL)
            _fetch(self._fn, "vkCmdPipelineBarrier")(commands[0], *arguments)
        vk.check(_fetch(self._fn, "vkEndCommandBuffer")(commands[0]), "vkEndCommandBuffer")
        return vk.make("VkSubmitInfo", commandBufferCount=1, pCommandBuffers=[commands[0]])

    def end(self) -> None:
        """Called before the device is destroyed, when it is idle."""
        for kind, raw in self._made:
            end = "vkFreeMemory" if kind == "DeviceMemory" else f"vkDestroy{kind}"
            _fetch(self._fn, end)(self._raw, raw, vk.ffi.NULL)


class Injector:
    """Stands between the runtime and the driver: counts the calls that return a VkResult, and has one fail."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fails_at, self._which = -1, 0
        self._sticky = False
        self.count = 0
        self.results: list[int] = []  #: number of error results of each counted call
        self.hit = ""  #: the call that failed, and its result
        self.quiet = False  #: whether calls are neither counted nor fail

    def arm(self, fails_at: int, which: int, sticky: bool) -> None:
        """Have call ``fails_at`` fail with result number ``which`` of its results (lost: of those alone that lose)."""
        self.count, self.hit, self.results = 0, "", []
        self._fails_at, self._which, self._sticky = fails_at, which, sticky

    def _result(self, name: str) -> int | None:
        """The result that the current call fails with; None where it is not to fail."""
        with self._lock:
            codes = (LOST,) if self._sticky else RESULTS.get(name, _MEMORY)
            if self.quiet or (self._sticky and LOST not in RESULTS.get(name, ())):
                return None
            self.count += 1
            self.results.append(len(codes))
            if self.count - 1 != self._fails_at or self._which >= len(codes):
                return None
            self.hit = f"{name} {vk.result_name(codes[self._which])}"
            return codes[self._which]

    @property
    def _is_soon(self) -> bool:
        return not self.quiet and 0 <= self._fails_at - self.count < _SHORTLY

    def _wrapped(self, name: str, function: Any, device: DeviceUnderTest | None) -> Any:
        if name == "vkDestroyDevice" and device is not None:
            return lambda *arguments: self._destroy(function, arguments, device)
        kind = vk.load().ffi.typeof(function)
        kind = kind.item if kind.kind == "pointer" else kind
        if "VkResult" not in str(kind.result.cname):
            return function

        def call(*arguments: Any) -> Any:
            gone = device is not None and device.lost and LOST in RESULTS.get(name, ())
            failed = LOST if gone else self._result(name)
            if failed == LOST and device is not None:
                return device.lose(function, arguments if name in _WAITS_FOR_IDLE else None)
            if failed is not None:
                return failed
            if device is None or name not in _OF_THE_QUEUE:
                return function(*arguments)
            with device.lock:
                if device.lost:
                    return device.lose(function, arguments if name in _WAITS_FOR_IDLE else None)
                if name == "vkQueueSubmit" and self._is_soon:
                    device.hold(arguments[0])
                return function(*arguments)

        return call

    def _destroy(self, function: Any, arguments: tuple[Any, ...], device: DeviceUnderTest) -> None:
        device.end()
        function(*arguments)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Context in which created contexts fail on request."""
        loader = vk.load().lib

        def fetch(functions: vk.Functions, name: str) -> Any:
            known = functions.__dict__
            if known["_loader"] == "vkGetDeviceProcAddr" and "_under_test" not in known:
                known["_under_test"] = DeviceUnderTest(known["_raw"])
            made = known[name] = self._wrapped(name, _fetch(functions, name), known.get("_under_test"))
            return made

        class Loader:
            def __getattr__(loader_self, name: str) -> Any:
                value = getattr(loader, name)
                return (
                    self._wrapped(name, value, None) if name.startswith("vk") and not name.endswith("Addr") else value
                )

        vk.Functions.__getattr__ = fetch  # type: ignore[method-assign]
        vk.lib = Loader()
        try:
            yield
        finally:
            vk.Functions.__getattr__ = _fetch  # type: ignore[method-assign]
            vk.lib = loader
