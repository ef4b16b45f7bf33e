"""The device side of one ONNX Runtime session: its context, its delegate, its memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import vkep.ops  # noqa: F401  # declares the operators
from gpu_shared.capabilities import DeviceCapabilities
from vkep.device.delegate import VulkanDelegate
from vkep.ort import memory
from vkep.ort.capture import Captures
from vkep.ort.options import EpOptions, session_options
from vkep.session.contexts import resolve_context
from vkep.shaders.library import ShaderLibrary

if TYPE_CHECKING:
    from gpu_shared.context import SharedGpuContext
    from vkep.ort.api import Ort
    from vkep.ort.profiler import Profiler


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
        self.captures = Captures(options.enable_graph_capture)
        self.profilers: list[Profiler] = []  #: those that are collecting
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
