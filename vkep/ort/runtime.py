"""The device side of one ONNX Runtime session: its context, its delegate, its memory."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from gpu_shared.capabilities import DeviceCapabilities
from vkep.device.datagraph.delegate import VgfDelegate
from vkep.device.delegate import VulkanDelegate
from vkep.ort.memory import domain as memory
from vkep.ort.nodes.checks import RunChecks
from vkep.ort.options import EpOptions, session_options
from vkep.session.contexts import resolve_context
from vkep.session.execution.vgf import session_policy
from vkep.shaders.library import ShaderLibrary

if TYPE_CHECKING:
    from gpu_shared.context import SharedGpuContext
    from vkep.ort.api import Ort
    from vkep.ort.profiler import Profiler
    from vkep.placement.policy import Policy
    from vkep.session.options import SessionOptions

logger = logging.getLogger("vkep.ort")


class Runtime:
    """The device objects of one OrtEp. `close` frees everything.

    ``graphs``: whether the VGF delegate may be used (compiled models contain only Vulkan plans).
    """

    def __init__(self, ort: Ort, device: DeviceCapabilities, options: EpOptions, *, graphs: bool = True) -> None:
        self.ort, self.device, self.options = ort, device, options
        session = session_options(device, options)
        context = resolve_context(session)
        self.delegate = VulkanDelegate(
            context,
            ShaderLibrary(),
            session.arena_config(),
            sync_mode=options.sync_mode,
            name="onnxruntime",
            max_memory=options.max_memory,
        )
        self.graphs: VgfDelegate | None = None
        try:
            self.policy: Policy = _policy(session, context, graphs)
            if self.policy.graphs:
                self.graphs = VgfDelegate(self.delegate, sync_mode=options.sync_mode)
            self.domain = memory.acquire(context)  # the delegate has set the arena's options
        except BaseException:
            if self.graphs is not None:
                self.graphs.close()
            self.delegate.close()
            raise
        self.checks = RunChecks()
        self.profilers: list[Profiler] = []  #: profilers that are active
        self._closed = False

    @property
    def context(self) -> SharedGpuContext:
        """The shared context of the provider's sessions on the device."""
        return self.delegate.context

    def close(self) -> None:
        """Idempotent."""
        if not self._closed:
            self._closed = True
            self.domain.release()
            if self.graphs is not None:
                self.graphs.close()
            self.delegate.close()


def _policy(session: SessionOptions, context: SharedGpuContext, graphs: bool) -> Policy:
    """The policy of node placement. With Vulkan alone, islands that are too small are dropped when nodes are claimed,
    and lowering a claimed one again must not split it."""
    policy = session_policy(session, context)
    if not graphs and policy.graphs:
        why = "a compiled model carries Vulkan plans only"
        if session.prefer == "vgf_first":
            logger.warning("prefer='vgf_first', but the VGF delegate takes no part: %s", why)
        policy = replace(policy, graphs="", why_not=why)
    return policy if policy.graphs else replace(policy, min_partition_size=1)
