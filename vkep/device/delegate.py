"""The Vulkan delegate on a context: its lease, and the context's shared pipelines, constants and arena."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gpu_shared.commands import CommandBuffer
from gpu_shared.compile_spec import SyncMode
from gpu_shared.errors import ClosedError, ForkedProcessError
from vkep.arena.config import ArenaConfig
from vkep.device.constants import ConstantStore, shared_constants
from vkep.device.pipelines import PipelineStore, shared_pipelines
from vkep.device.tuning import load_choices
from vkep.memory.device_arena import DeviceArena, shared_device_arena
from vkep.memory.results import ResultMemory
from vkep.memory.upload import Uploader
from vkep.plan.memory import piece_of
from vkep.shaders.library import ShaderLibrary

if TYPE_CHECKING:
    from gpu_shared.capabilities import DeviceCapabilities
    from gpu_shared.context import SharedGpuContext
    from gpu_shared.lease import DelegateLease


class VulkanDelegate:
    """One session's use of a context. Close it after the runners made on it.

    ``lock`` guards the lease's command pool: hold it while recording.
    """

    def __init__(
        self,
        context: SharedGpuContext | DelegateLease,
        library: ShaderLibrary,
        arena: ArenaConfig | None = None,
        *,
        sync_mode: SyncMode | str | None = None,
        name: str = "vulkan",
        tuned: Mapping[str, tuple[int, ...]] | None = None,
        max_memory: int | None = None,
    ) -> None:
        """``context``: or the lease of a present user, for whom the delegate is. ``tuned`` are measured
        tilings to prefer; None: those of the device's database. ``max_memory``: the arena's limit (bytes) until this delegate is
        closed."""
        self.lock = threading.Lock()
        self.results = ResultMemory()
        self.lease = context.lease(name, sync_mode)
        try:
            caps = _usable(self.lease.device.capabilities, library)
            self.capabilities = caps
            self.tuned = load_choices(caps) if tuned is None else tuned
            self._arena = shared_device_arena(self.lease, arena)
            self._arena.value.bound(self, max_memory)
            self._pipelines = shared_pipelines(self.lease, library)
            self._constants = shared_constants(self.lease)
            self.uploader = Uploader(self.lease)
        except BaseException:
            self.close()
            raise
        self.arena: DeviceArena = self._arena.value
        self.pipelines: PipelineStore = self._pipelines.value
        self.constants: ConstantStore = self._constants.value

    @property
    def context(self) -> SharedGpuContext:
        """The context, held by the lease. Raises `ClosedError`, `ForkedProcessError`."""
        return self.lease.context

    @property
    def piece(self) -> int:
        """Largest number of bytes of a plan's temporary buffers in one device buffer: see
        `vkep.plan.memory.piece_of`."""
        return piece_of(self.capabilities.max_buffer_size)

    @property
    def unified(self) -> bool:
        """Whether device memory is visible to the host and cached: then inputs and outputs need no staging."""
        return self.capabilities.host_visible_device_local

    @property
    def closed(self) -> bool:
        """Whether its lease was released."""
        return self.lease.closed

    @property
    def forked(self) -> bool:
        """Whether it belongs to the parent of this forked process."""
        try:
            self.lease.context  # noqa: B018  # raises
        except ForkedProcessError:
            return True
        except ClosedError:
            pass
        return False

    def allocate_commands(self, label: str) -> CommandBuffer:
        """Allocate a command buffer of the lease's pool; hold ``lock`` until recording ends."""
        return self.lease.allocate(label)

    def close(self) -> None:
        """Release everything; idempotent. The context ends with its last user."""
        self.results.close()
        if "arena" in self.__dict__ and not self.lease.closed:
            self.arena.bound(self, None)
            self.arena.release_stream(self.lease)  # memory freed by this session is available to the others now
        for name in ("uploader", "_constants", "_pipelines", "_arena", "lease"):
            part = getattr(self, name, None)
            if part is not None:
                part.close()
        for name in (
            "uploader",
            "arena",
            "pipelines",
            "constants",
        ):  # they refer to the device, which must have no users before it is destroyed
            self.__dict__.pop(name, None)


def _usable(caps: DeviceCapabilities, library: ShaderLibrary) -> DeviceCapabilities:
    """The capabilities that kernels may use: cooperative matrices only where the compiler supports them."""
    if not caps.has("cooperative_matrix") or library.supports("GL_KHR_cooperative_matrix"):
        return caps
    return caps.restricted_to(caps.extensions, caps.features - {"cooperative_matrix"})
