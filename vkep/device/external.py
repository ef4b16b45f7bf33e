"""Memory that another owner allocated, as blocks and tensors: a session uses an application's buffers without a
copy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from gpu_shared.external import ImportedBuffer, MemorySource, exported_buffer, memory_descriptor
from gpu_shared.steady import on_end
from gpu_shared.uncopied import Uncopied
from vkep.device.tensor import ALIGNMENT, DeviceTensor, ExternalBlock, checked_shape
from vkep.device.uses import Uses
from vkep.dtypes import DTYPES, DType

if TYPE_CHECKING:
    from gpu_shared.context import SharedGpuContext
    from gpu_shared.memory import Buffer
    from gpu_shared.resources import SharedResource
    from vkep.device.delegate import VulkanDelegate

_Memory = TypeVar("_Memory", bound="ExternalMemory")


def checked_block(buffer: Buffer, offset: int, nbytes: int, what: str) -> ExternalBlock:
    """The part of an imported buffer for a tensor. Raises ``ValueError`` where the tensor does not fit or its alignment
    is too small."""
    if offset < 0 or offset + nbytes > buffer.size:
        raise ValueError(f"{what}: bytes {offset} to {offset + nbytes}, but the imported memory holds {buffer.size}")
    if (buffer.address + offset) % ALIGNMENT:
        raise ValueError(f"{what} starts at byte {offset}; kernels need multiples of {ALIGNMENT}")
    return ExternalBlock(buffer, offset, nbytes)


class ExternalMemory(Uncopied):
    """Imported memory on a context (made by ``InferenceSession.import_memory``).

    Tensors on it hold a reference: the import ends when it and they are closed and the GPU has finished with them.
    """

    _instead = "import or export the memory again"

    def __init__(self, delegate: VulkanDelegate, source: MemorySource, *, keep: object = None) -> None:
        """``keep`` is referenced as long as the import (the array that owns the memory). Raises as
        `gpu_shared.external.ImportedBuffer`."""
        self._delegate = delegate
        self._key: tuple[Any, ...] = ("vkep.external", id(self), source)
        lease = delegate.lease
        self._shared: SharedResource[_Import] = lease.shared_resource(
            self._key, lambda: _Import(ImportedBuffer(lease.device, source), keep)
        )
        self.size = self._shared.value.buffer.size

    def tensor(self, shape: Sequence[int], dtype: str = "float32", *, offset: int = 0) -> DeviceTensor:
        """A tensor at byte ``offset`` (a multiple of 16), for a binding; ``dtype`` is numpy's name. It keeps the import.

        Raises ``ValueError`` where it does not fit, ``TypeError`` for a dtype that no GPU buffer holds, `ClosedError`.
        """
        self._shared.value  # noqa: B018  # raises when closed
        if dtype not in DTYPES:
            raise TypeError(f"dtype is {dtype!r}, expected one of {sorted(DTYPES)}")
        return ExternalTensor(self._delegate, self._key, DTYPES[dtype], shape, offset)

    def close(self) -> None:
        """Release the memory; idempotent."""
        self._shared.release()

    def __enter__(self: _Memory) -> _Memory:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class ExportedMemory(ExternalMemory):
    """Memory of the context that other devices and APIs may import (made by ``InferenceSession.export_memory``)."""

    def __init__(self, delegate: VulkanDelegate, size: int) -> None:
        """Raises as `gpu_shared.external.exported_buffer`."""
        # Deliberately does not call ExternalMemory's: this memory is allocated here.
        self._delegate = delegate
        self._key = ("vkep.exported", id(self))
        lease = delegate.lease
        self._shared = lease.shared_resource(self._key, lambda: _Import(exported_buffer(lease.device, size), None))
        self.size = self._shared.value.buffer.size

    @property
    def allocation_size(self) -> int:
        """Bytes of the whole allocation, which an importing API needs. It is a dedicated allocation. Raises
        `ClosedError`."""
        return self._shared.value.buffer.memory_size

    def descriptor(self) -> int:
        """A new opaque file descriptor of the memory, which the caller must close. Raises `ClosedError`, `GpuError`."""
        return memory_descriptor(self._shared.value.buffer)


class ExternalTensor(DeviceTensor):
    """A tensor in imported memory."""

    def __init__(
        self, delegate: VulkanDelegate, key: tuple[Any, ...], dtype: DType, shape: Sequence[int], offset: int
    ) -> None:
        # Deliberately does not call DeviceTensor's: nothing is allocated. It holds a reference to the import instead.
        self.dtype, self.shape = dtype, checked_shape(shape)
        self.nbytes = int(np.prod(self.shape, dtype=np.int64)) * dtype.itemsize
        self._delegate = delegate
        shared: SharedResource[_Import] = delegate.lease.shared_resource(key, _gone)
        try:
            self._block = checked_block(shared.value.buffer, offset, self.nbytes, f"a tensor of {dtype} {self.shape}")
        except BaseException:
            shared.release()
            raise
        self._finalizer = on_end(self, shared.release, at_exit=False)
        self._context: SharedGpuContext | None = delegate.context
        self.address = shared.value.buffer.address + offset
        self.in_host_memory = shared.value.buffer.mapped is not None and not delegate.unified
        self.uses = shared.value.uses
        self.checks = []


class _Import:
    """The imported buffer, and the object that must outlive it. Tensors in it may overlap, so they share ``uses``."""

    def __init__(self, buffer: Buffer, keep: object) -> None:
        self.buffer, self._keep = buffer, keep
        self.uses = Uses()

    def close(self) -> None:
        # host memory may be freed once the GPU has finished with it
        if self._keep is not None:
            self.buffer.device.wait_to_free()
        self.buffer.close()
        self._keep = None


def _gone() -> _Import:
    raise AssertionError("a tensor is made only while its import lives")
