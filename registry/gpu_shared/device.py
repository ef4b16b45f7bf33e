"""A logical device with one compute queue, created here or borrowed from the application."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from gpu_shared import arm_abi, query, vk
from gpu_shared.capabilities import REQUIRED_FEATURES, DeviceCapabilities, DeviceInfo
from gpu_shared.errors import ContextIncompatibleError, DeviceLostError, DeviceNotFoundError, GpuError
from gpu_shared.handles import Handle, logger
from gpu_shared.instance import Instance, select_device
from gpu_shared.lifetime import Native, Reaper
from gpu_shared.steady import steady
from gpu_shared.waiting import until_done
from gpu_shared.weak import WeakValues

Selector = int | str | DeviceInfo | DeviceCapabilities | None


#: one re-entrant lock for each queue in the process, so that two contexts on one borrowed queue exclude each other
_queue_locks: WeakValues[int, Any] = WeakValues()
_queue_locks_guard = threading.Lock()


def _after_fork_in_child() -> None:
    global _queue_locks, _queue_locks_guard
    _queue_locks, _queue_locks_guard = WeakValues(), threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def _lock_of(queue: Any) -> Any:
    key = int(vk.ffi.cast("uintptr_t", queue))
    with _queue_locks_guard:
        lock = _queue_locks.get(key)
        if lock is None:
            lock = _queue_locks[key] = threading.RLock()
        return lock


class Device(Handle):
    """A VkDevice with every available feature enabled that the runtime knows.

    ``select`` chooses the physical device (see `select_device`); ``extensions`` are enabled in addition to those in
    `query.WANTED_EXTENSIONS`, ``feature_structs`` (`vk.Struct`) join the ``pNext`` chain for features that the runtime
    does not know. Data graphs and tensors (`gpu_shared.arm_abi.EXTENSIONS`) are enabled where the device has them, by
    itself or by a layer. ``queue_family`` is None (the first with compute), ``"dedicated"`` (compute without graphics)
    or an index.

    Raises `DeviceNotFoundError`, `ContextIncompatibleError` naming what the device lacks, `GpuError`.

    ``close`` waits for the GPU. While a numpy array refers to a mapped buffer, the device is kept; it is destroyed with
    the last such array.

    ``fn`` holds its functions, ``queue`` the raw VkQueue, guarded by ``queue_lock``; ``capabilities`` has the enabled
    features.
    """

    kind = "device"

    instance: Instance
    physical_device: Any  #: raw VkPhysicalDevice
    fn: vk.Functions
    reaper: Reaper
    queue: Any  #: raw VkQueue
    queue_family: int
    queue_lock: Any  #: a `threading.RLock`
    capabilities: DeviceCapabilities
    owned: bool

    def __init__(
        self,
        instance: Instance,
        select: Selector = None,
        *,
        extensions: Sequence[str] = (),
        feature_structs: Sequence[vk.Struct] = (),
        queue_family: int | str | None = None,
        label: str = "",
    ) -> None:
        info = select_device(instance.devices(), select)
        offered = info.capabilities
        physical = instance.physical_devices()[offered.index]
        missing = [name for name in extensions if name not in offered.extensions]
        if missing:
            raise ContextIncompatibleError(
                offered.name, extensions=missing, hint="another driver, or a layer, may have them"
            )
        family = _choose_family(offered, queue_family)
        if all(name in offered.extensions for name in arm_abi.EXTENSIONS):
            helpful = [name for name in arm_abi.HELPFUL if name in offered.extensions]
            extensions = [*extensions, *arm_abi.EXTENSIONS, *helpful]
            feature_structs = [*feature_structs, *_graph_features()]
        enabled = list(
            dict.fromkeys([*extensions, *(name for name in query.WANTED_EXTENSIONS if name in offered.extensions)])
        )
        features, _ = query.feature_chain(offered.api_version, frozenset(enabled), offered.features)
        queue_info = vk.make("VkDeviceQueueCreateInfo", queueFamilyIndex=family, queueCount=1, pQueuePriorities=[1.0])
        create = vk.make(
            "VkDeviceCreateInfo",
            pNext=vk.chain(*feature_structs, features) if feature_structs else features,
            queueCreateInfoCount=1,
            pQueueCreateInfos=[queue_info],
            enabledExtensionCount=len(enabled),
            ppEnabledExtensionNames=enabled,
        )
        out = vk.out("VkDevice")
        vk.check(instance.fn.vkCreateDevice(physical, create.ptr, vk.ffi.NULL, out), "vkCreateDevice", offered.name)
        queue = vk.out("VkQueue")
        raw = out[0]
        vk.device_functions(raw).vkGetDeviceQueue(raw, family, 0, queue)
        self._setup(
            instance,
            physical,
            raw,
            queue[0],
            family,
            offered.restricted_to(enabled, offered.features),
            owned=True,
            label=label,
        )

    @classmethod
    @steady
    def borrow(
        cls,
        instance: Instance,
        *,
        physical_device: Any,
        device: Any,
        queue: Any,
        queue_family: int,
        extensions: Iterable[str],
        features: Iterable[str],
        owned: bool = False,
        label: str = "",
    ) -> Device:
        """Wrap an application's device (handles as int, ctypes or cffi).

        ``extensions`` and ``features`` are those that the application enabled (features by the names of
        `capabilities.FEATURE_NAMES` or by Vulkan's field names). The device is destroyed at the end only when
        ``owned``.

        Raises ``ValueError`` for a null handle or a queue family that does not exist, ``TypeError`` where names are
        given as one text, `ContextIncompatibleError` when the runtime's required features are not enabled.
        """
        physical = vk.handle("VkPhysicalDevice", physical_device)
        raw, raw_queue = vk.handle("VkDevice", device), vk.handle("VkQueue", queue)
        if isinstance(extensions, str):
            raise TypeError(f"extensions is the text {extensions!r}, expected a collection of names")
        offered = query.capabilities(instance.fn, physical)
        if not 0 <= queue_family < len(offered.queue_families):
            raise ValueError(
                f"queue_family is {queue_family}; {offered.name} has {len(offered.queue_families)} families"
            )
        on = query.feature_names(features)
        missing = REQUIRED_FEATURES - on
        flags = offered.queue_families[queue_family].flags
        if missing or "compute" not in flags:
            raise ContextIncompatibleError(
                label or offered.name,
                features=missing,
                queue_flags=() if "compute" in flags else ("compute",),
                hint="enable the features at vkCreateDevice and name them in features=" if missing else "",
            )
        self = cls.__new__(cls)
        self._setup(
            instance,
            physical,
            raw,
            raw_queue,
            queue_family,
            offered.restricted_to(extensions, on | query.PROPERTY_FEATURES),
            owned=owned,
            label=label,
        )
        return self

    def _setup(
        self,
        instance: Instance,
        physical: Any,
        raw: Any,
        queue: Any,
        family: int,
        capabilities: DeviceCapabilities,
        *,
        owned: bool,
        label: str,
    ) -> None:
        fn = vk.device_functions(raw, capabilities.name)
        lock = _lock_of(queue)

        def wait_idle() -> None:
            with lock:
                if owned:
                    vk.check(fn.vkDeviceWaitIdle(raw), "vkDeviceWaitIdle", capabilities.name)
                else:  # it has queues that vkep must not wait for
                    vk.check(fn.vkQueueWaitIdle(queue), "vkQueueWaitIdle", capabilities.name)

        reaper = Reaper(wait_idle, lock)
        destroy = (lambda: fn.vkDestroyDevice(raw, vk.ffi.NULL)) if owned else None
        super().__init__(
            raw,
            parent=instance,
            destroy=destroy,
            label=label or capabilities.name,
            finalize=functools.partial(_finish, reaper, wait_idle),
        )
        self.instance = instance
        self.physical_device = physical
        self.fn = fn
        self.reaper = reaper
        self.queue = queue
        self.queue_family = family
        self.queue_lock = lock
        self.capabilities = capabilities
        self.owned = owned

    @property
    def device(self) -> Device:
        return self

    @property
    def extensions(self) -> frozenset[str]:
        """Names of the enabled device extensions."""
        return self.capabilities.extensions

    @property
    def features(self) -> frozenset[str]:
        """Names of the enabled features (see `capabilities.FEATURE_NAMES`)."""
        return self.capabilities.features

    @property
    def family(self) -> Any:
        """The queue's family (`QueueFamily`)."""
        return self.capabilities.queue_families[self.queue_family]

    @steady
    def collect(self) -> int:
        """Destroy objects that were closed or garbage-collected and that the GPU has finished with; returns their
        number."""
        self.check_usable()
        return self.reaper.maintain()

    def wait_idle(self) -> None:
        """Wait for the queue, then destroy the objects that are due. Raises `DeviceLostError`."""
        self.check_usable()
        try:
            with self.queue_lock:
                vk.check(self.fn.vkQueueWaitIdle(self.queue), "vkQueueWaitIdle", self.label)
        except DeviceLostError as error:
            self.reaper.mark_lost(error)
            raise
        if self.queue_lock._is_owned():  # destroying an object may take it, in another thread
            self.reaper.maintain_later()
        else:
            self.collect()

    def wait_to_free(self) -> None:
        """Wait for the queue before something is freed. Raises as `Timeline.wait_to_free`."""
        until_done(self.wait_idle)

    def set_name(self, object_type: int, raw: Any, label: str) -> None:
        """Set a raw object's name in validation messages and debuggers (no effect without debug utils)."""
        if not self.instance.debug_names:
            return
        info = vk.make(
            "VkDebugUtilsObjectNameInfoEXT",
            objectType=object_type,
            objectHandle=int(vk.ffi.cast("uintptr_t", raw)),
            pObjectName=label,
        )
        self.instance.fn.vkSetDebugUtilsObjectNameEXT(self.raw, info.ptr)


def _graph_features() -> list[vk.Struct]:
    return [
        vk.make("VkPhysicalDeviceDataGraphFeaturesARM", dataGraph=1, dataGraphShaderModule=1),
    ]


def _finish(reaper: Reaper, wait_idle: Callable[[], None], native: Native) -> None:
    """The end of a device: its Vulkan objects may be in use until the GPU is idle."""
    try:
        until_done(wait_idle)
    except GpuError:  # objects in use cannot be destroyed: they stay until the process ends
        logger.exception("the device is not closed: it is not known to be idle")
        return
    reaper.finished = True
    reaper.maintain()
    native.retire()


def _choose_family(capabilities: DeviceCapabilities, wanted: int | str | None) -> int:
    compute = [family for family in capabilities.queue_families if "compute" in family.flags]
    if wanted is None:
        chosen = compute
    elif wanted == "dedicated":
        chosen = [family for family in compute if "graphics" not in family.flags]
    elif isinstance(wanted, int) and not isinstance(wanted, bool):
        chosen = [family for family in compute if family.index == wanted]
    else:
        raise ValueError(f"queue_family is {wanted!r}, expected None, 'dedicated' or an index")
    if not chosen:
        there = "; ".join(f"{f.index}: {', '.join(sorted(f.flags))}" for f in capabilities.queue_families)
        raise DeviceNotFoundError(
            "choosing a queue family",
            label=capabilities.name,
            hint=f"none is {wanted!r} with compute; families: {there}",
        )
    return chosen[0].index
