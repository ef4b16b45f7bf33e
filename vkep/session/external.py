"""An application's memory and semaphores in a session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gpu_shared.external import HOST_ALLOCATION, OPAQUE_FD, ImportedSemaphore, MemorySource
from gpu_shared.uncopied import Uncopied
from vkep.device.external import ExternalMemory

if TYPE_CHECKING:
    from vkep.device.delegate import VulkanDelegate


def import_memory(
    delegate: VulkanDelegate,
    source: int | np.ndarray[Any, Any],
    size: int | None,
    memory_type: int | None,
    dedicated: bool,
) -> ExternalMemory:
    """See ``InferenceSession.import_memory``."""
    if isinstance(source, np.ndarray):
        if not source.flags.c_contiguous or not source.flags.writeable:
            raise ValueError("importing an array: it must be contiguous and writable")
        given = MemorySource(HOST_ALLOCATION, source.ctypes.data, source.nbytes)
        return ExternalMemory(delegate, given, keep=source)
    if size is None:
        raise TypeError("importing a file descriptor: size, the bytes of the whole allocation, is missing")
    return ExternalMemory(delegate, MemorySource(OPAQUE_FD, source, size, memory_type, dedicated))


class ExternalSemaphore(Uncopied):
    """A timeline semaphore of the application (made by ``InferenceSession.import_semaphore``): the session's queue
    waits for its values and signals them."""

    _instead = "import the semaphore again"

    def __init__(self, delegate: VulkanDelegate, descriptor: int) -> None:
        self._context = delegate.context
        self._semaphore = ImportedSemaphore(self._context.device, descriptor)

    def wait(self, value: int) -> None:
        """Make later submits wait until the semaphore has reached ``value``. Returns at once."""
        self._context.timeline.enqueue(self._semaphore, wait=value)

    def signal(self, value: int) -> None:
        """Signal ``value`` once all earlier submits are done. Returns at once."""
        self._context.timeline.enqueue(self._semaphore, signal=value)

    def close(self) -> None:
        """Idempotent; the semaphore is kept until the GPU has finished with it."""
        self._semaphore.close()
