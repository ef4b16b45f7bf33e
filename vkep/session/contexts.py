"""Finds the shared context that a session's options name."""

from __future__ import annotations

import contextlib
import logging
from typing import Any

from gpu_shared import vk
from gpu_shared.compile_spec import ContextMode
from gpu_shared.context import SharedGpuContext
from gpu_shared.context_registry import SharedGpuContextRegistry
from gpu_shared.errors import ContextIncompatibleError, GpuError
from gpu_shared.instance import list_devices, select_device
from gpu_shared.lease import DelegateLease
from gpu_shared.steady import Started, settle
from vkep.session.options import SessionOptions

logger = logging.getLogger("vkep.session")


def resolve_context(options: SessionOptions) -> SharedGpuContext:
    """Find or create the context, by ``options.context_mode``. Raises the registry's errors, and
    `ContextIncompatibleError` where the context of a token is on another device than the requested one."""
    spec = options.compile_spec()

    def create() -> SharedGpuContext:
        layers: dict[str, Any] = {}
        if options.wants_graphs:
            from vkep.device.datagraph.context import graph_support

            support = graph_support(options.device)
            layers = support.arguments
            if support.reason:
                logger.warning("no data graphs: %s", support.reason)
        return SharedGpuContext.create(
            spec, device=options.device, app_name="vkep", validation=options.validation, **layers
        )

    context = SharedGpuContextRegistry.get().find_or_create(spec, create)
    if options.token is not None:
        check_device(options, context)
    if options.validation and not context.device.instance.validation:
        logger.warning(
            "validation: the context %s was created without the layers; use another token or group", context.label
        )
    return context


def check_device(options: SessionOptions, context: SharedGpuContext) -> None:
    """Raise `ContextIncompatibleError` where the options name another device than the context's."""
    if options.device is not None and options.device != context.capabilities.uuid:  # listing opens a Vulkan instance
        wanted = select_device(list_devices(), options.device).capabilities
        if wanted.uuid != context.capabilities.uuid:
            raise ContextIncompatibleError(
                f"context {context.label} lies on {context.capabilities.name}",
                hint=f"the session asks for {wanted.name}: use another token or group for another device",
            )


class ContextAhead:
    """A session's context, which a thread opens while the session imports modules and reads its model: most of that
    time is the driver's. A context manager: when it exits the thread has ended, and after an error no context is
    left."""

    def __init__(
        self, options: SessionOptions, context: SharedGpuContext | DelegateLease | None = None, *, start: bool = True
    ) -> None:
        """``context`` is an existing one to use; without ``start`` none is opened before `result`."""
        self._options, self._context, self._start = options, context, start
        self._opening: Started[SharedGpuContext] | None = None

    def __enter__(self) -> ContextAhead:
        if self._start and self._context is None and not self._is_there():
            # The thread should soon be in the driver; two threads that import wait for each other.
            with contextlib.suppress(GpuError):  # raised by `result`
                vk.load()
                vk.extra_ffi()
            self._opening = Started(lambda: resolve_context(self._options))
        return self

    def _is_there(self) -> bool:
        """Whether finding the context takes no time, or fails."""
        spec = self._options.compile_spec()
        if spec.mode is ContextMode.DISABLED:
            return False
        registry = SharedGpuContextRegistry.get()
        try:
            found = registry.lookup(spec)
        except GpuError:  # raised by `result`
            return True
        # this thread waits for a context that is being created: it may be the creating thread itself, which is an error
        return found is not None or spec.mode is ContextMode.LOOKUP_ONLY or registry.is_making(spec)

    def result(self) -> SharedGpuContext | DelegateLease:
        """The context. Raises as `resolve_context`."""
        if self._context is not None:
            there = self._context.context if isinstance(self._context, DelegateLease) else self._context
            check_device(self._options, there)
            return self._context
        return resolve_context(self._options) if self._opening is None else self._opening.result()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._opening is not None:
            with contextlib.suppress(Exception):  # raised by `result`, or another exception is in progress
                self._opening.result()
        self._context = self._opening = None  # releases a context that was opened and not used
        if kind is not None:
            settle()  # in which another thread destroys it
