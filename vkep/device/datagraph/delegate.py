"""The VGF delegate on a context: its lease and command pool."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from gpu_shared.data_graph import check_data_graphs
from vkep.device.datagraph.weights import ConstantTensor
from vkep.device.tensor import DeviceTensor

if TYPE_CHECKING:
    from gpu_shared.compile_spec import SyncMode
    from gpu_shared.context import SharedGpuContext
    from vkep.device.delegate import VulkanDelegate

#: an input of a graph that is read only: a tensor, or a constant of the context's store
GraphTensor = DeviceTensor | ConstantTensor


class VgfDelegate:
    """The VGF delegate on a context: its lease and command pool. It shares the arena, constants and transfers of the
    Vulkan delegate. Close it after the runners made on it.
    """

    def __init__(self, memory: VulkanDelegate, *, sync_mode: SyncMode | str | None = None, name: str = "vgf") -> None:
        """``memory`` is the Vulkan delegate of the same session. Raises `ContextIncompatibleError` where the context
        cannot run data graphs.
        """
        check_data_graphs(memory.context.device)
        self.memory = memory
        self.lock = threading.Lock()
        self.lease = memory.lease.lease(name, sync_mode)

    @property
    def context(self) -> SharedGpuContext:
        """The context, held by the lease. Raises `ClosedError`, `ForkedProcessError`."""
        return self.lease.context

    def close(self) -> None:
        """Release the lease, once the GPU has finished its submits."""
        self.lease.close()
