"""The context that delegates share: instance, physical device, device, queue, timeline."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from gpu_shared import vk
from gpu_shared.capabilities import FEATURE_NAMES, QUEUE_FLAGS, DeviceCapabilities
from gpu_shared.commands import CommandPool
from gpu_shared.compile_spec import DEFAULT_TOKEN, SharedGpuCompileSpec, SyncMode, parse_shared_gpu_compile_spec
from gpu_shared.device import Device, Selector
from gpu_shared.errors import ClosedError, ContextIncompatibleError, ForkedProcessError
from gpu_shared.handles import logger
from gpu_shared.instance import Instance, ValidationMessage
from gpu_shared.lease import DelegateLease
from gpu_shared.memory import HeapBudget, memory_budget
from gpu_shared.resources import ResourceStore, SharedResource
from gpu_shared.steady import at_exit, closing, on_end, settle, steady
from gpu_shared.timeline import Timeline
from gpu_shared.uncopied import Uncopied
from gpu_shared.weak import WeakValues

T = TypeVar("T")
SpecLike = SharedGpuCompileSpec | Mapping[str, Any] | Iterable[Any] | None
_tokens = itertools.count(1)
_contexts: WeakValues[int, SharedGpuContext] = WeakValues()


def _on_exit() -> None:
    for context in _contexts.values():
        if not context.users:  # others are closed by their users, or end with the process
            context.close()


at_exit(_on_exit)


def _drop(*objects: object) -> None:
    """Objects that nothing else refers to are destroyed on return: where no exception interrupts their finalizers."""


def as_spec(spec: SpecLike) -> SharedGpuCompileSpec:
    """The parsed spec of a caller's argument: a spec, compile specs, a mapping of options, or None (sharing
    disabled)."""
    return spec if isinstance(spec, SharedGpuCompileSpec) else parse_shared_gpu_compile_spec(spec)


class SharedGpuContext(Uncopied):
    """The Vulkan objects that delegates share: made by `create`, or by `from_handles` around an application's own
    Vulkan objects.

    Delegates hold it strongly (through `lease`), the registry weakly. When its last reference ends, it waits for the
    GPU and destroys the objects that it owns: instance, device and timeline semaphore have a flag each.

    `close` refuses new users. While leases or shared resources exist the destruction is deferred: the context is
    invalid at once (the registry forgets it, `lease` raises), and is destroyed when the last of them ends.

    Thread-safe. In a forked child every use raises `ForkedProcessError`.
    """

    _instead = "share the object itself; another process creates its own from a spec"

    def __init__(
        self,
        device: Device,
        timeline: Timeline,
        *,
        token: str = DEFAULT_TOKEN,
        group_id: int = 0,
        sync_mode: SyncMode | str = SyncMode.TIMELINE,
    ) -> None:
        """Prefer `create` and `from_handles`; this constructor takes ownership of a device and a timeline."""
        self.token, self.group_id = token, group_id
        self.sync_mode = SyncMode(sync_mode)
        self._device, self._timeline = device, timeline
        self._owns_timeline = True
        self._generation = vk.generation
        self._lock = threading.RLock()  # re-entrant: finalizers of users may run while it is held
        self._users: dict[int, str] = {}
        self._resources = ResourceStore()
        self._closing = self._closed = False
        _contexts[next(_tokens)] = self
        on_end(self, _drop, device, timeline, at_exit=False)
        logger.debug("context %s: %s, queue family %d", self.label, device.label, device.queue_family)

    # ---- making ----

    @classmethod
    @steady
    def create(
        cls,
        spec: SpecLike = None,
        *,
        device: Selector = None,
        app_name: str = "gpu_shared",
        extra_instance_layers: Sequence[str] = (),
        layer_paths: Sequence[str | os.PathLike[str]] = (),
        extra_instance_extensions: Sequence[str] = (),
        extra_device_extensions: Sequence[str] = (),
        feature_structs: Sequence[vk.Struct] = (),
        queue_family: int | str | None = None,
        validation: bool | None = None,
    ) -> SharedGpuContext:
        """Create instance, device and timeline, all owned.

        ``spec`` names the context (token, group, sync mode); it is not registered here. ``device`` selects as in
        `gpu_shared.instance.select_device`. ``layer_paths`` are folders with manifests of ``extra_instance_layers``
        (see `gpu_shared.layers`). Raises `DriverNotFoundError`, `DeviceNotFoundError`, `ContextIncompatibleError`,
        `GpuError`; then nothing is left allocated.
        """
        parsed = as_spec(spec)
        instance = Instance(
            app_name,
            layers=extra_instance_layers,
            layer_paths=layer_paths,
            extensions=extra_instance_extensions,
            validation=validation,
        )
        try:
            made = Device(
                instance,
                device,
                extensions=extra_device_extensions,
                feature_structs=feature_structs,
                queue_family=queue_family,
            )
            return cls(made, Timeline(made), token=parsed.token, group_id=parsed.group_id, sync_mode=parsed.sync_mode)
        except BaseException:
            instance.close()
            raise

    @classmethod
    def from_handles(
        cls,
        *,
        instance: Any,
        physical_device: Any,
        device: Any,
        queue: Any,
        queue_family_index: int,
        extensions: Iterable[str],
        features: Iterable[str],
        timeline_semaphore: Any = None,
        owns_instance: bool = False,
        owns_device: bool = False,
        owns_timeline_semaphore: bool = False,
        token: str = DEFAULT_TOKEN,
        group_id: int = 0,
        sync_mode: SyncMode | str = SyncMode.TIMELINE,
    ) -> SharedGpuContext:
        """Wrap handles that the application created (int, ctypes or cffi; API 1.3), owned by separate flags.

        ``extensions`` and ``features`` are those that the application enabled in vkCreateDevice (features by Vulkan's
        field names or ours, see `gpu_shared.capabilities.FEATURE_NAMES`). Without ``timeline_semaphore`` the context
        creates and owns one; with it, only the context may signal it from then on. The application keeps the handles
        alive while the context lives, and holds `with_locked_queue` around its own submits to the same queue.

        Raises ``ValueError`` for null handles, `ContextIncompatibleError` naming the features or queue flags that the
        runtime lacks.
        """
        spec = SharedGpuCompileSpec(token=token, group_id=group_id, sync_mode=sync_mode)  # type: ignore[arg-type]  # checks them
        wrapped = Instance.borrow(instance, owned=owns_instance)
        try:
            made = Device.borrow(
                wrapped,
                physical_device=physical_device,
                device=device,
                queue=queue,
                queue_family=queue_family_index,
                extensions=extensions,
                features=features,
                owned=owns_device,
            )
        except BaseException:
            wrapped._native.destroy = None  # a refused context owns nothing: the application keeps its instance
            wrapped.close()
            raise
        try:
            timeline = (
                Timeline(made)
                if timeline_semaphore is None
                else Timeline(made, borrowed=timeline_semaphore, owned=owns_timeline_semaphore)
            )
        except BaseException:
            made._native.destroy = wrapped._native.destroy = None
            wrapped.close()
            raise
        context = cls(made, timeline, token=spec.token, group_id=spec.group_id, sync_mode=spec.sync_mode)
        context._owns_timeline = timeline_semaphore is None or owns_timeline_semaphore
        return context

    # ---- properties ----

    @property
    def key(self) -> tuple[str, int]:
        """Token and group, under which the registry keeps the context."""
        return (self.token, self.group_id)

    @property
    def label(self) -> str:
        """``token:group``, for messages."""
        return f"{self.token}:{self.group_id}"

    @property
    def owns_instance(self) -> bool:
        """Whether the VkInstance is destroyed with the context."""
        return self._device.instance.owned

    @property
    def owns_device(self) -> bool:
        """Whether the VkDevice is destroyed with the context."""
        return self._device.owned

    @property
    def owns_timeline_semaphore(self) -> bool:
        """Whether the timeline semaphore is destroyed with the context."""
        return self._owns_timeline

    @property
    def is_valid(self) -> bool:
        """Whether new users are accepted: it is neither closed nor closing, belongs to this process, and its device is
        not lost."""
        return not (self._closing or self._generation != vk.generation or self._device.closed or self._timeline.lost)

    @property
    def forked(self) -> bool:
        """Whether it belongs to the parent of this forked process."""
        return self._generation != vk.generation

    @property
    def closed(self) -> bool:
        """Whether it has been destroyed (false after a deferred `close`)."""
        return self._closed

    def check_usable(self) -> None:
        """Raise `ForkedProcessError` in a forked child, and `ClosedError` after `close`."""
        if self._generation != vk.generation:
            raise ForkedProcessError(f"context {self.label}")
        if self._closed:
            raise ClosedError(f"context {self.label}")

    @property
    def instance(self) -> Instance:
        """The instance. Raises as `check_usable`."""
        self.check_usable()
        return self._device.instance

    @property
    def device(self) -> Device:
        """The device. Raises as `check_usable`."""
        self.check_usable()
        return self._device

    @property
    def physical_device(self) -> Any:
        """The raw VkPhysicalDevice."""
        return self.device.physical_device

    @property
    def queue(self) -> Any:
        """The raw VkQueue; submit to it only within `with_locked_queue`."""
        return self.device.queue

    @property
    def queue_family_index(self) -> int:
        """The family of the queue. Raises as `check_usable`."""
        return self.device.queue_family

    @property
    def timeline(self) -> Timeline:
        """The timeline that all submits signal. Raises as `check_usable`."""
        self.check_usable()
        return self._timeline

    @property
    def capabilities(self) -> DeviceCapabilities:
        """The device's capabilities."""
        return self._device.capabilities

    @property
    def enabled_extensions(self) -> frozenset[str]:
        """The enabled device extensions."""
        return self._device.extensions

    @property
    def validation_messages(self) -> list[ValidationMessage]:
        """The messages of the validation layers on this context's instance."""
        return list(self._device.instance.messages)

    def has_extension(self, name: str) -> bool:
        """Whether the device extension is enabled."""
        return name in self._device.extensions

    def require(
        self, extensions: Iterable[str] = (), features: Iterable[str] = (), queue_flags: Iterable[str] = ()
    ) -> None:
        """Raise `ContextIncompatibleError` that names the missing device extensions, features and queue flags.

        ``features`` are names of `gpu_shared.capabilities.FEATURE_NAMES`, ``queue_flags`` of `QUEUE_FLAGS`; others
        raise ``ValueError``.
        """
        self.check_usable()
        wanted_features, wanted_flags = frozenset(features), frozenset(queue_flags)
        for got, known in ((wanted_features, FEATURE_NAMES), (wanted_flags, frozenset(QUEUE_FLAGS))):
            if got - known:
                raise ValueError(f"unknown {sorted(got - known)}, expected names of {sorted(known)}")
        missing_extensions = frozenset(extensions) - self._device.extensions
        missing_features = wanted_features - self._device.features
        missing_flags = wanted_flags - self._device.family.flags
        if missing_extensions or missing_features or missing_flags:
            raise ContextIncompatibleError(
                f"context {self.label} on {self._device.label}",
                extensions=missing_extensions,
                features=missing_features,
                queue_flags=missing_flags,
                hint="create the context with them (the delegate that needs most first), or use another token or group",
            )

    def memory_budget(self) -> tuple[HeapBudget, ...]:
        """Bytes in use and allowed in each heap, as the driver reports them."""
        return memory_budget(self.device)

    # ---- using it ----

    def create_command_pool(self, *, label: str = "command pool") -> CommandPool:
        """Create a command pool for one delegate: pools are never shared, since only one thread may use one at a
        time."""
        return CommandPool(self.device, label=label)

    @steady
    def lease(self, name: str, sync_mode: SyncMode | str | None = None, *, copies_only: bool = False) -> DelegateLease:
        """Create a delegate's lease on this context. ``sync_mode`` defaults to the context's; ``copies_only``: see
        `DelegateLease`."""
        mode = self.sync_mode if sync_mode is None else SyncMode(sync_mode)
        return DelegateLease(self, name, mode, copies_only=copies_only)

    @contextlib.contextmanager
    def with_locked_queue(self) -> Iterator[Any]:
        """Hold the queue (re-entrant) and get the raw VkQueue: ``with context.with_locked_queue() as queue: ...``.

        Where a signal handler raises at its begin or end, the queue stays locked as long as the traceback is kept."""
        device = self.device
        with device.queue_lock:
            yield device.queue

    def wait_idle(self) -> None:
        """Wait until the queue is idle. Raises `DeviceLostError`."""
        self.device.wait_idle()

    @steady
    def shared_resource(self, key: Hashable, factory: Callable[[], T]) -> SharedResource[T]:
        """The context's only object under ``key``, created by ``factory`` for the first user; each user gets a separate
        reference.

        Different keys are created in parallel. When ``factory`` fails nothing is stored, and all waiting threads get
        its error. When the last reference is released the object's ``close()``, where it has one, is called. The object
        must not refer to the context itself (to its device it may), or only the cycle collector could end both. Raises
        `ClosedError` after `close`; `DelegateLease.shared_resource` does not.
        """
        return self._shared_resource(key, factory, 0)

    def _shared_resource(self, key: Hashable, factory: Callable[[], T], user: int) -> SharedResource[T]:
        """``user`` as for `_add_user`."""
        self._check_open(user)
        entry = self._resources.acquire(key, factory)
        try:
            return SharedResource(self, entry, user)
        except BaseException:
            self._resources.drop(entry)
            raise

    # ---- users and closing ----

    def _check_open(self, user: int = 0) -> None:
        """Raise `ClosedError` after `close`, except for a present user: it is no new one by what it takes."""
        self.check_usable()
        if self._closing and user not in self._users:
            raise ClosedError(f"context {self.label}")

    def _add_user(self, what: str, user: int = 0) -> int:
        """``user``: the present user for whom it is, if there is one."""
        token = next(_tokens)
        with self._lock:
            self._check_open(user)
            self._users[token] = what
        return token

    def _remove_user(self, token: int) -> None:
        with self._lock:
            self._users.pop(token, None)
            last = self._closing and not self._users and not self._closed
            if last:
                self._closed = True
        if last:
            self._tear_down()

    @property
    def users(self) -> tuple[str, ...]:
        """Names of the live leases and shared resources; those that were dropped have ended."""
        settle()
        return tuple(self._users.values())

    @closing
    def close(self) -> None:
        """Refuse new users; destroy now, or when the last lease and shared resource end; soon after, where the garbage collector
        calls. Idempotent.

        In a forked child it does nothing: the objects belong to the parent.
        """
        if self._generation != vk.generation:
            return
        settle()  # users that were dropped
        with self._lock:
            self._closing = True
        self._remove_user(0)

    def _tear_down(self) -> None:
        logger.debug("context %s: closed", self.label)
        self._device.instance.close()  # and its children, the device and everything on it

    def __enter__(self) -> SharedGpuContext:
        self._check_open()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = " closed" if self._closed else " closing" if self._closing else ""
        return f"<SharedGpuContext {self.label} on {self._device.label!r}{state}>"
