"""The device side of one ONNX Runtime session: its context, its delegate, its memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import vkep.ops  # noqa: F401  # declares the operators
from gpu_shared.capabilities import DeviceCapabilities
from gpu_shared.instance import list_devices, select_device
from vkep.device.delegate import VulkanDelegate
from vkep.ort import memory
from vkep.ort.options import EpOptions
from vkep.session.contexts import resolve_context
from vkep.session.options import SessionOptions
from vkep.shaders.library import ShaderLibrary

if TYPE_CHECKING:
    from gpu_shared.context import SharedGpuContext
    from vkep.ort.api import Ort


class Runtime:
    """Made for each OrtEp. `close` gives everything back."""

    def __init__(self, ort: Ort, device: DeviceCapabilities, options: EpOptions) -> None:
        self.ort, self.device, self.options = ort, device, options
        session = session_options(device, options)
        context = resolve_context(session)
        self.delegate = VulkanDelegate(
            context, ShaderLibrary(), session.arena_config(), sync_mode=options.sync_mode, name="onnxruntime"
        )
        try:
            self.domain = memory.acquire(context, session.arena_config())
        except BaseException:
            self.delegate.close()
            raise
        self._closed = False

    @property
    def context(self) -> SharedGpuContext:
        return self.delegate.context

    def close(self) -> None:
        """Idempotent."""
        if not self._closed:
            self._closed = True
            self.domain.release()
            self.delegate.close()


def session_options(device: DeviceCapabilities, options: EpOptions) -> SessionOptions:
    """The options that find a session's context: on the default device that of plain vkep sessions."""
    token = options.token
    if token is None:
        default = select_device(list_devices()).capabilities.uuid == device.uuid
        token = "default" if default else f"device:{device.uuid}"
    return SessionOptions(
        device=device.uuid,
        token=token,
        group_id=options.group_id,
        context_mode=options.context_mode,
        sync_mode=options.sync_mode,
        arena=dict(options.arena),
    )
