"""Graphics interop: which context a device's importers, streams, allocators and sessions use, for applications that use Vulkan
themselves.

The keys of ``OrtGraphicsInteropConfig.additional_options``, all optional:

- ``token``, ``group_id``: the shared context, instead of the device's own default.
- ``memory_type``: the Vulkan memory type of the allocations that will be imported.
- ``instance``, ``physical_device``, ``device``, ``queue_family`` and ``extensions``, ``features`` (comma-separated
  names; those that vkCreateDevice enabled), with the VkQueue as ``command_queue``: the application's own device. It
  becomes the context, and work on it needs no import. Handles as numbers, decimal or 0x. ``timeline_semaphore``: one of
  the application's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gpu_shared.context_registry import SharedGpuContextRegistry
from gpu_shared.errors import ContextNotFoundError
from vkep.ort.boundary import NULL
from vkep.ort.memory.tensors import address
from vkep.ort.options import EpOptions, session_options

if TYPE_CHECKING:
    from gpu_shared.capabilities import DeviceCapabilities
    from gpu_shared.context import SharedGpuContext

_VULKAN = 2  # OrtGraphicsApi
_FIRST_LEVEL = 25
_HANDLES = ("instance", "physical_device", "device", "queue_family", "extensions", "features")
_KEYS = (*_HANDLES, "timeline_semaphore", "token", "group_id", "memory_type")


@dataclass
class Interop:
    """An application's objects for one device."""

    token: str | None = None
    group_id: int = 0
    memory_type: int | None = None
    context: SharedGpuContext | None = None  #: around the application's device

    def applied(self, options: EpOptions) -> EpOptions:
        """Add the application's device to a session's options, unless these name a context."""
        if options.token is not None or self.token is None:
            return options
        return replace(options, token=self.token, group_id=self.group_id)

    def close(self) -> None:
        """Stop sharing the application's device with new users; existing users must end first."""
        if self.context is not None:
            registry = SharedGpuContextRegistry.get()
            try:
                if registry.lookup(self.context.key) is self.context:
                    registry.unregister_context(self.context.key)
            except ContextNotFoundError:
                pass
            self.context.close()
            self.context = None


def make_interop(device: DeviceCapabilities, config: Any, options: Mapping[str, str]) -> Interop:
    """Read an OrtGraphicsInteropConfig. Raises ``NotImplementedError`` for another graphics interface than Vulkan,
    ``ValueError`` for options that do not parse, `ContextExistsError` where sessions already have a context under the
    key, `ContextIncompatibleError` where the application's device lacks a requirement.
    """
    if config.version < _FIRST_LEVEL:
        raise ValueError(f"the configuration's version is {config.version}, expected ORT_API_VERSION")
    if config.graphics_api != _VULKAN:
        raise NotImplementedError(f"graphics interface {config.graphics_api}: vkep works with Vulkan (2)")
    unknown = [key for key in options if key not in _KEYS]
    if unknown:
        raise ValueError(f"unknown graphics interop option {unknown[0]!r}; known: {', '.join(_KEYS)}")
    made = Interop(options.get("token"), _number(options, "group_id", 0) or 0, _number(options, "memory_type", None))
    given = [key for key in _HANDLES if key in options]
    queue = address(config.command_queue) if config.command_queue != NULL else 0
    if given or queue:
        missing = [key for key in _HANDLES if key not in options] + ([] if queue else ["command_queue"])
        if missing:
            raise ValueError(f"graphics interop on the application's own device: {', '.join(missing)} are missing")
        made.context = _borrow(device, options, queue, made)
    return made


def _borrow(device: DeviceCapabilities, options: Mapping[str, str], queue: int, made: Interop) -> SharedGpuContext:
    from gpu_shared.context import SharedGpuContext

    spec = session_options(device, EpOptions(token=made.token, group_id=made.group_id)).compile_spec()
    context = SharedGpuContext.from_handles(
        instance=_number(options, "instance"),
        physical_device=_number(options, "physical_device"),
        device=_number(options, "device"),
        queue=queue,
        queue_family_index=_number(options, "queue_family") or 0,
        extensions=_names(options["extensions"]),
        features=_names(options["features"]),
        timeline_semaphore=_number(options, "timeline_semaphore", None),
        token=spec.token,
        group_id=spec.group_id,
    )
    try:
        if context.capabilities.uuid != device.uuid:
            raise ValueError(
                f"the application's device is {context.capabilities.name}, and this OrtEpDevice is {device.name}"
            )
        SharedGpuContextRegistry.get().register_context(None, context)
    except BaseException:
        context.close()
        raise
    return context


def _names(text: str) -> list[str]:
    return [name for name in re.split(r"[,\s]+", text) if name]


def _number(options: Mapping[str, str], key: str, default: int | None = 0) -> int | None:
    text = options.get(key)
    if text is None:
        return default
    try:
        return int(text, 0)
    except ValueError:
        raise ValueError(f"graphics interop option {key!r} is {text!r}, expected a number") from None
