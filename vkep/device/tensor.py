"""Tensors that stay on the device, for IO binding."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np

from gpu_shared.errors import ClosedError, ForkedProcessError
from gpu_shared.steady import check_wanted, closing, on_end, settle, steady
from gpu_shared.uncopied import Uncopied
from vkep.device.uses import Uses
from vkep.dtypes import DType, from_numpy
from vkep.memory.device_arena import DeviceArena, DeviceBlock, shared_device_arena
from vkep.memory.staging_ring import StagingArena, shared_staging_arena
from vkep.plan.memory import align

if TYPE_CHECKING:
    from gpu_shared.context import SharedGpuContext
    from gpu_shared.lease import DelegateLease
    from gpu_shared.memory import Buffer
    from gpu_shared.resources import SharedResource
    from gpu_shared.timeline import Timeline
    from vkep.device.delegate import VulkanDelegate
    from vkep.device.faults import RunCheck


#: alignment in bytes that kernels require of a tensor's first byte: they read up to 16 bytes at once
ALIGNMENT = 16
DLPACK_CPU, DLPACK_VULKAN = (1, 0), 7  #: a device (type, number), and a DLDeviceType


class ExternalBlock:
    """A part of a buffer that another object owns, with the attributes of a `DeviceBlock` that readers use."""

    def __init__(self, buffer: Buffer, offset: int, size: int) -> None:
        self.buffer, self.offset = buffer, offset
        self.size = self.requested = size
        self.address = buffer.address + offset

    @property
    def mapped(self) -> memoryview | None:
        """The bytes, where the host can map them. Raises `ClosedError`."""
        whole = self.buffer.mapped
        return None if whole is None else whole[self.offset : self.offset + self.size]

    def free(self, **_options: Any) -> None:
        """Does nothing: the owner frees the memory."""


class DeviceTensor(Uncopied):
    """A dense tensor in device memory (in ONNX Runtime: an `OrtValue` on the GPU).

    Made by ``InferenceSession.device_tensor`` or by a binding; any session on the same context reads it without a copy.
    It keeps the context alive until it is closed or deleted, even after the session that made it; `write` and `numpy`
    use that session's transfers, and so need it open.
    """

    _instead = "numpy() copies its content, session.device_tensor(array) makes another tensor of it"

    capacity: tuple[int, ...] = ()  #: of a view that `leading` made: the whole tensor's shape
    _whole: DeviceTensor | None = None  # the whole tensor
    in_host_memory: bool = False  #: whether runs that write the tensor must make that visible to the host

    def __init__(
        self, delegate: VulkanDelegate, dtype: DType, shape: Sequence[int], *, host_visible: bool = False
    ) -> None:
        """``host_visible``: in memory that the host maps, on any device (`host_view`); on a discrete GPU the host's own."""
        self.dtype = dtype
        self.shape = tuple(int(d) for d in shape)
        self.nbytes = int(np.prod(self.shape, dtype=np.int64)) * dtype.itemsize
        self._delegate = delegate
        self.in_host_memory = host_visible and not delegate.unified
        self._take_memory(delegate.lease)

    @steady
    def _take_memory(self, lease: DelegateLease) -> None:
        settle(here=True)  # tensors that were deleted may free memory
        arena: SharedResource[DeviceArena] | SharedResource[StagingArena]
        arena = shared_staging_arena(lease, "download") if self.in_host_memory else shared_device_arena(lease)
        try:
            block = arena.value.alloc(align(max(self.nbytes, 1)))
        except BaseException:
            arena.release()
            raise
        self._finalizer = on_end(self, _give_back, lease.timeline, block, arena, at_exit=False)
        self._context: SharedGpuContext | None = lease.context
        self._block: DeviceBlock | ExternalBlock | None = block
        self.address = block.address
        self.uses = Uses()  #: shared with its views
        self.checks: list[RunCheck] = []  #: checks of the runs that its content comes from; shared with its views

    @classmethod
    def from_numpy(cls, delegate: VulkanDelegate, array: np.ndarray[Any, Any]) -> DeviceTensor:
        """Upload an array as a tensor of its shape and dtype. Raises ``TypeError`` for a dtype that no GPU buffer
        holds, `ArenaOutOfMemory`."""
        tensor = cls(delegate, from_numpy(array.dtype), array.shape)
        try:
            tensor.write(array)
        except BaseException:
            tensor.close()
            raise
        return tensor

    def leading(self, shape: Sequence[int]) -> DeviceTensor:
        """A view of the leading elements, as numpy's ``array[:shape[0], :shape[1], ...]``, in this tensor's memory. It keeps this
        tensor alive. Of such a view, `leading` gives a view of the whole tensor again, which may be larger.

        Raises ``ValueError`` for a shape of another rank, or larger than the tensor.
        """
        sizes, capacity = checked_shape(shape), self.capacity or self.shape
        if len(sizes) != len(capacity) or any(size > most for size, most in zip(sizes, capacity, strict=True)):
            raise ValueError(f"device tensor of {self.dtype} {capacity}: it has no leading elements {sizes}")
        view = object.__new__(type(self))
        view.__dict__.update(self.__dict__, shape=sizes, capacity=capacity, _finalizer=_nothing)
        view.nbytes = math.prod(sizes) * self.dtype.itemsize
        view._whole = self._whole or self
        return view

    def reshaped(self, shape: Sequence[int]) -> DeviceTensor:
        """The same memory with another shape of as many elements. It is freed with this tensor, which must outlive the
        view.

        Raises ``ValueError`` for a shape of another size, and for a view that `leading` made.
        """
        self._check_dense()
        sizes = tuple(int(d) for d in shape)
        if int(np.prod(sizes, dtype=np.int64)) * self.dtype.itemsize != self.nbytes:
            raise ValueError(f"device tensor of {self.dtype} {self.shape}: no shape {sizes} of as many elements")
        view = object.__new__(type(self))
        view.__dict__.update(self.__dict__, shape=sizes, _finalizer=_nothing)
        return view

    def rows(self, first: int, count: int) -> DeviceTensor:
        """A view of ``count`` entries of the first axis, in this tensor's memory, which must outlive the view.

        Raises ``ValueError`` for entries out of range, whose first byte is not aligned (`ALIGNMENT`), or of a view that
                `leading` made.
        """
        self._check_dense()
        total = self.shape[0] if self.shape else 0
        if not 0 <= first <= first + count <= total:
            raise ValueError(f"device tensor of {self.dtype} {self.shape}: no entries {first} to {first + count}")
        block, each = self._open_block(), self.nbytes // max(total, 1)
        if first * each % ALIGNMENT:
            raise ValueError(
                f"device tensor of {self.dtype} {self.shape}: entry {first} starts at no multiple of {ALIGNMENT} bytes"
            )
        view = object.__new__(type(self))
        part = ExternalBlock(block.buffer, block.offset + first * each, count * each)
        sizes = (count, *self.shape[1:])
        view.__dict__.update(
            self.__dict__, shape=sizes, nbytes=count * each, _finalizer=_nothing, _block=part, address=part.address
        )
        return view

    @property
    def whole(self) -> DeviceTensor:
        """The tensor that leading elements are of; any other tensor itself."""
        return self._whole or self

    @property
    def written_at(self) -> int:
        """The timeline value of the latest submit that writes its memory."""
        return self.uses.written

    @property
    def context_key(self) -> object:
        """Identifies the context of the tensor's device; None once closed."""
        return self._context

    @property
    def closed(self) -> bool:
        """Whether `close` was called; of leading elements also for the tensor that they are of."""
        return self._block is None or (self._whole is not None and self._whole.closed)

    @property
    def block(self) -> DeviceBlock | ExternalBlock:
        """Where it is stored: a buffer and an offset in it. Raises `ClosedError`."""
        return self._open_block()

    @steady
    def write(self, array: np.ndarray[Any, Any]) -> None:
        """Replace the content, once the runs that use it have ended. Raises ``ValueError`` unless ``array`` has the tensor's
        dtype and shape (its strides may be any), `ClosedError`, `DeviceLostError`."""
        if array.dtype != self.dtype.numpy or array.shape != self.shape:
            raise ValueError(
                f"device tensor of {self.dtype} {self.shape}: got an array of {array.dtype} {array.shape}; they must be equal"
            )
        block = self._open_block()
        if self.nbytes:
            lease, mapped = self._delegate.lease, block.mapped
            last: int | None = self.uses.last(lease.context.timeline.submitted)
            if mapped is not None:  # the host writes there at once
                lease.wait(last)
                if np.may_share_memory(array, np.frombuffer(mapped, np.uint8)):
                    array = array.copy()  # it is copied in pieces, and each may overwrite the next one's source
            with self._delegate.lock:
                check_wanted()  # after an interrupt a later call may have written
                if self.capacity:
                    whole = self._downloaded(block)
                    whole[self._among_all] = array
                    array = whole
                data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
                # before its first use the memory may be in use as that of another tensor: then all runs come first
                value = self._delegate.uploader.upload(block, data, wait_value=last or None)
                self.uses.add(value, writes=True)
        self.checks.clear()

    def check(self) -> None:
        """Wait for the runs that the content comes from. Raises `InvalidInputError` where one found data that break an
        operator's specification: the content is invalid then, until the tensor is written again. `numpy` calls this."""
        for check in tuple(self.checks):
            check.verify()

    @steady
    def numpy(self) -> np.ndarray[Any, Any]:
        """A copy on the host, C-contiguous, with the tensor's shape and dtype. Waits for the submits that write the
        tensor. Raises as `check`, and `ClosedError`."""
        block = self._open_block()
        if self.nbytes:
            with self._delegate.lock:
                out = self._downloaded(block)
            out = np.ascontiguousarray(out[self._among_all]) if self.capacity else out
        else:
            out = np.empty(self.shape, self.dtype.numpy)
        self.check()
        return out

    @property
    def _among_all(self) -> tuple[slice, ...]:
        """The positions of leading elements in the tensor that they belong to."""
        return tuple(map(slice, self.shape))

    def _downloaded(self, block: DeviceBlock | ExternalBlock) -> np.ndarray[Any, Any]:
        """The content; of leading elements that of the tensor that they are of."""
        out = np.empty(self.capacity or self.shape, self.dtype.numpy)
        written = self.uses.last_write(self._delegate.lease.context.timeline.submitted)
        self._delegate.uploader.download(block, out.reshape(-1).view(np.uint8), wait_value=written)
        return out

    def _check_dense(self) -> None:
        if self.capacity:
            raise ValueError(f"{self!r}: its elements do not lie densely; take the tensor that it was made of")

    # ---- for other libraries

    def host_view(self) -> np.ndarray[Any, Any]:
        """An array of the tensor's shape and dtype that shares its memory, where the host can map device memory (CPU
        drivers, many integrated GPUs). It references the tensor, which must stay open. Waits for the submits that write
        the tensor; later submits change the array. Writing to the array is not ordered with runs: wait for those that read
        the tensor first, or use `write`.

        Raises ``BufferError`` where the host cannot map the memory, `ClosedError`, and as `check`.
        """
        mapped = self._open_block().mapped
        if mapped is None:
            raise BufferError(f"{self!r}: the host does not see this device's memory; numpy() makes a copy")
        if self.nbytes:
            lease = self._delegate.lease
            lease.wait(self.uses.last_write(lease.context.timeline.submitted))
            self._open_block().buffer.invalidate()
        self.check()
        address, sizes = np.frombuffer(mapped, np.uint8).ctypes.data, self.capacity or self.shape
        nbytes = int(np.prod(sizes, dtype=np.int64)) * self.dtype.itemsize
        shown = np.asarray(Shown((self, mapped), address, nbytes)).view(self.dtype.numpy).reshape(sizes)
        return shown[self._among_all] if self.capacity else shown

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """A copy on the host; with ``copy=False`` a `host_view`, or ``ValueError`` where there is none."""
        if copy is not False:
            return self.numpy().astype(dtype or self.dtype.numpy, copy=False)
        if dtype is not None and np.dtype(dtype) != self.dtype.numpy:
            raise ValueError(f"{self!r} as {dtype}: that takes a copy")
        try:
            return self.host_view()
        except BufferError as error:
            raise ValueError(str(error)) from None

    def __dlpack_device__(self) -> tuple[int, int]:
        """DLPack's kDLVulkan and the device's index, as `vkep.devices` counts."""
        return DLPACK_VULKAN, self._delegate.capabilities.index

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """A capsule of the content for a consumer on the host (``dl_device=(1, 0)``: ``numpy.from_dlpack(tensor,
        device="cpu")``). Memory is shared where the host can map it and ``copy`` is not True. Raises ``BufferError``
        for other consumers: Vulkan memory has no address that they could use."""
        if dl_device is None or tuple(dl_device) != DLPACK_CPU:
            asked = "" if dl_device is None else f" for the device {tuple(dl_device)}"
            raise BufferError(
                f"{self!r}: Vulkan memory has no address that other libraries could use{asked}; take numpy(), ask for the host "
                "(numpy.from_dlpack(tensor, device='cpu')), or share memory with CUDA by vkep.cuda"
            )
        if copy is not True:
            try:
                return self.host_view().__dlpack__(max_version=max_version)
            except BufferError:
                if copy is False:
                    raise
        return self.numpy().__dlpack__(max_version=max_version)

    def _open_block(self) -> DeviceBlock | ExternalBlock:
        block = self._block
        if block is None or self.closed:
            raise ClosedError(f"device tensor of {self.dtype} {self.shape}")
        if self._delegate.closed:
            raise ClosedError(f"the session that made the device tensor of {self.dtype} {self.shape}")
        return block

    @closing
    def close(self) -> None:
        """Free the memory; idempotent. Runs that were submitted keep what they use until the GPU has finished."""
        self._finalizer()
        self._context = self._block = None  # they keep the device alive

    def __enter__(self) -> DeviceTensor:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = (f" of {self.capacity}" if self.capacity else "") + (" closed" if self.closed else "")
        return f"<DeviceTensor {self.dtype} {self.shape}{state} at {self.address:#x}>"


class Shown:
    """Bytes at a host address for numpy, whose array keeps this and so ``owner``."""

    def __init__(self, owner: object, address: int, nbytes: int) -> None:
        self._owner = owner
        self.__array_interface__ = {"version": 3, "typestr": "|u1", "shape": (nbytes,), "data": (address, False)}


def on_host(value: Any) -> Any:
    """A run's value on the host: a copy of a device tensor; any other value unchanged."""
    return value.numpy() if isinstance(value, DeviceTensor) else value


def refuse_failed(inputs: Iterable[DeviceTensor], outputs: Iterable[DeviceTensor]) -> None:
    """Raise `InvalidInputError` where one of ``inputs`` is known to come from a failed run.

    Drops the known failures of the runs before from ``outputs``: a step that is staged for the same submit may read these tensors
    before the submit replaces their checks.
    """
    for value in inputs:
        for check in value.checks:
            if check.reason:
                check.verify()
    for target in outputs:
        if target.checks:
            target.checks[:] = [check for check in target.checks if not check.reason]


def open_checks(values: Iterable[DeviceTensor]) -> list[RunCheck]:
    """The checks that decide whether results computed from ``values`` are valid, except those known to have passed."""
    found: dict[RunCheck, None] = {}
    for value in values:
        if value.checks:
            found |= dict.fromkeys(
                c for c in value.checks if c.word is not None or c.reason
            )  # in this order: another thread sets the reason first
    return list(found)


def checked_shape(shape: Sequence[SupportsIndex]) -> tuple[int, ...]:
    """A caller's shape. Raises `TypeError` where it is no sequence of integers, `ValueError` for a negative size."""
    try:
        sizes = tuple(map(operator.index, shape))
    except TypeError:
        raise TypeError(f"shape is {shape!r}, expected a sequence of integers") from None
    if min(sizes, default=0) < 0:
        raise ValueError(f"shape is {sizes}, expected sizes of 0 or more")
    return sizes


def _nothing() -> None:
    """The finalizer of a view does nothing: its memory belongs to another tensor."""


def _give_back(
    timeline: Timeline, block: DeviceBlock, arena: SharedResource[DeviceArena] | SharedResource[StagingArena]
) -> None:
    try:
        timeline.check_usable()
    except ForkedProcessError:  # the memory belongs to the parent
        return
    # by value: the arena reuses the memory once the timeline has passed what is submitted now
    block.free(stream=timeline, sync_value=timeline.submitted)
    arena.release()
