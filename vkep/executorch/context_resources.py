"""A program's resources on contexts: one set for each context that its delegates name, usually one for all."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Sequence

from gpu_shared.compile_spec import SyncMode
from gpu_shared.context import SharedGpuContext
from gpu_shared.lease import DelegateLease
from vkep.device.datagraph.delegate import VgfDelegate
from vkep.device.delegate import VulkanDelegate
from vkep.executorch.options import ProgramOptions
from vkep.pte.method import Delegate
from vkep.session.contexts import resolve_context
from vkep.session.options import SessionOptions, spirv_folder
from vkep.shaders.library import ShaderLibrary


class ContextResources:
    """A program's resources on one context: a lease for its Vulkan delegates, and one for its VGF delegates."""

    def __init__(self, options: SessionOptions, context: SharedGpuContext | DelegateLease) -> None:
        self.options = options
        library = ShaderLibrary(cache_dir=spirv_folder(options))
        self.vulkan = VulkanDelegate(context, library, options.arena_config(), sync_mode=options.sync_mode)
        self._vgf: VgfDelegate | None = None

    @property
    def vgf(self) -> VgfDelegate:
        """The lease for VGF delegates. Raises `ContextIncompatibleError` where the context cannot run data graphs."""
        if self._vgf is None:
            self._vgf = VgfDelegate(self.vulkan, sync_mode=self.options.sync_mode)
        return self._vgf

    def close(self) -> None:
        """Release the delegates and the context; idempotent. A forked child releases nothing."""
        if self.vulkan.forked:  # the device objects belong to the parent process
            return
        try:
            if self._vgf is not None:
                self._vgf.close()
        finally:
            self.vulkan.close()


class ProgramResources:
    """A program's resources on all its contexts, created when a method with delegates is loaded. Thread-safe."""

    def __init__(self, options: ProgramOptions, context: SharedGpuContext | None, graphs: bool) -> None:
        """``context`` is used instead of those that compile specs and options name; ``graphs``: some delegate of the
        program is a VGF."""
        self.options, self._context, self._graphs = options, context, graphs
        self._held: dict[tuple[Hashable, SyncMode], ContextResources] = {}
        self._lock = threading.Lock()

    def of(self, delegate: Delegate, where: str) -> ContextResources:
        """The resources on a delegate's context, of the delegates with its sync mode. Raises the errors of resolving a
        context."""
        options = self.options.session_options(delegate.compile_specs, self._graphs, where)
        spec = options.compile_spec()
        key = ("given",) if self._context is not None else (*spec.key, spec.mode is spec.mode.DISABLED)
        with self._lock:
            others = [resources for (other, _), resources in self._held.items() if other == key]
            resources = self._held.get((key, spec.sync_mode))
            if resources is None:
                context = others[0].vulkan.lease if others else self._context or resolve_context(options)
                resources = self._held[key, spec.sync_mode] = ContextResources(options, context)
            return resources

    def all(self) -> Sequence[ContextResources]:
        """One for each context in use."""
        with self._lock:
            return list(self._held.values())

    @property
    def forked(self) -> bool:
        """Whether they belong to the parent of this process."""
        return any(resources.vulkan.forked for resources in list(self._held.values()))

    def close(self) -> None:
        """Close all of them; idempotent."""
        with self._lock:
            closing, self._held = list(self._held.values()), {}
        for resources in closing:
            resources.close()
