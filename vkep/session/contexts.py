"""The shared context that a session's options name."""

from __future__ import annotations

import logging
from typing import Any

from gpu_shared.context import SharedGpuContext
from gpu_shared.context_registry import SharedGpuContextRegistry
from gpu_shared.errors import ContextIncompatibleError
from gpu_shared.instance import list_devices, select_device
from vkep.device.vgf_context import graph_support
from vkep.session.options import SessionOptions

logger = logging.getLogger("vkep.session")


def resolve_context(options: SessionOptions) -> SharedGpuContext:
    """Find or make the context, as ``options.context_mode`` says. Raises the registry's errors, and
    `ContextIncompatibleError` where the context named by a token lies on another device than the one asked for.
    """
    spec = options.compile_spec()

    def create() -> SharedGpuContext:
        layers: dict[str, Any] = {}
        if options.wants_graphs:
            support = graph_support(options.device)
            layers = support.arguments
            if support.reason:
                logger.warning("no data graphs: %s", support.reason)
        return SharedGpuContext.create(
            spec, device=options.device, app_name="vkep", validation=options.validation, **layers
        )

    context = SharedGpuContextRegistry.get().resolve(spec, create)
    if options.device is not None and options.token is not None:
        wanted = select_device(list_devices(), options.device).capabilities
        if wanted.uuid != context.capabilities.uuid:
            raise ContextIncompatibleError(
                f"context {context.label} lies on {context.capabilities.name}",
                hint=f"the session asks for {wanted.name}: use another token or group for another device",
            )
    return context
