"""Tensors whose bytes CUDA and Vulkan share, on a GPU that both see: no copy, and nothing through the host.

Vulkan allocates the memory (VK_KHR_external_memory_fd) and CUDA's driver imports it; the driver's library is all that
is needed.

    shared = vkep.cuda.empty(session, (1, 3, 224, 224), "float32")
    x = torch.as_tensor(shared, device=f"cuda:{shared.device}")   # the same bytes; so cupy.asarray(shared)
    x.normal_()
    shared.to_vulkan()                           # CUDA's work is done: Vulkan may read
    binding.bind_input("x", shared.tensor)

Sources: CUDA driver API, "External Resource Interoperability"; CUDA array interface, version 3.
"""

from __future__ import annotations

import ctypes
import math
import os
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gpu_shared.steady import closing
from gpu_shared.uncopied import Uncopied
from vkep.errors import VkepError

if TYPE_CHECKING:
    from vkep.device.tensor import DeviceTensor
    from vkep.session import InferenceSession

_LIBRARIES = ("libcuda.so.1", "libcuda.so", "nvcuda.dll")
_OPAQUE_FD, _DEDICATED = 1, 1  # CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD, CUDA_EXTERNAL_MEMORY_DEDICATED
#: numpy's letters for kinds of elements
_KINDS = {"float": "f", "int": "i", "uint": "u", "bool": "b"}


class CudaError(VkepError, RuntimeError):
    """A call of CUDA's driver failed, or there is no driver."""


class _Handle(ctypes.Union):
    _fields_ = (("fd", ctypes.c_int), ("pointers", ctypes.c_void_p * 2))


class MemoryHandleDesc(ctypes.Structure):
    """CUDA_EXTERNAL_MEMORY_HANDLE_DESC."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("handle", _Handle),
        ("size", ctypes.c_ulonglong),
        ("flags", ctypes.c_uint),
        ("reserved", ctypes.c_uint * 16),
    )


class MemoryBufferDesc(ctypes.Structure):
    """CUDA_EXTERNAL_MEMORY_BUFFER_DESC."""

    _fields_ = (
        ("offset", ctypes.c_ulonglong),
        ("size", ctypes.c_ulonglong),
        ("flags", ctypes.c_uint),
        ("reserved", ctypes.c_uint * 16),
    )


class _Driver:
    """CUDA's driver, and the primary context of one of its devices."""

    def __init__(self, uuid: str) -> None:
        """``uuid``: of the Vulkan device, in hexadecimal digits. Raises `CudaError`."""
        self._library = _load()
        found = _devices(self._library)
        if uuid not in found:
            raise CudaError(f"CUDA does not see the session's device {uuid}; it sees {sorted(found) or 'none'}")
        self.device = found[uuid].value
        self.context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), found[uuid])

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function. Raises `CudaError`."""
        _call(self._library, name, *arguments)

    def __enter__(self) -> _Driver:
        self.call("cuCtxPushCurrent_v2", self.context)
        return self

    def __exit__(self, *exc: object) -> None:
        self.call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))


def _load() -> Any:
    for name in _LIBRARIES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise CudaError(f"no CUDA driver: none of {', '.join(_LIBRARIES)} could be loaded")


def _call(library: Any, name: str, *arguments: Any) -> None:
    result = getattr(library, name)(*arguments)
    if result:
        text = ctypes.c_char_p()
        library.cuGetErrorString(result, ctypes.byref(text))
        raise CudaError(f"{name}: {(text.value or b'unknown error').decode()} ({result})")


def _devices(library: Any) -> dict[str, ctypes.c_int]:
    """CUDA's devices by UUID, in CUDA's order."""
    _call(library, "cuInit", 0)
    count = ctypes.c_int()
    _call(library, "cuDeviceGetCount", ctypes.byref(count))
    found = {}
    for index in range(count.value):
        device, bytes_ = ctypes.c_int(), (ctypes.c_ubyte * 16)()
        _call(library, "cuDeviceGet", ctypes.byref(device), index)
        _call(library, "cuDeviceGetUuid_v2", bytes_, device)
        found[bytes(bytes_).hex()] = device
    return found


def visible_uuids() -> list[str]:
    """The UUIDs of the devices that CUDA sees in this process, in CUDA's order, written as `vkep.DeviceCapabilities.uuid`.

    Raises `CudaError` where there is no driver or it refuses.
    """
    return list(_devices(_load()))


_drivers: dict[str, _Driver] = {}
_lock = threading.Lock()


def _driver(uuid: str) -> _Driver:
    with _lock:
        if uuid not in _drivers:
            _drivers[uuid] = _Driver(uuid)
        return _drivers[uuid]


class SharedTensor(Uncopied):
    """A tensor in memory that CUDA and Vulkan both access. Made by `empty` and `from_cuda`.

    The two APIs do not order their work against each other: call `to_vulkan` after CUDA's work, before a session reads
    the tensor, and `to_cuda` after runs that write it. Raises as `empty`.
    """

    _instead = "make another one of the session"

    def __init__(self, session: InferenceSession, shape: Sequence[int], dtype: str) -> None:
        from vkep.device.tensor import checked_shape
        from vkep.dtypes import DTYPES

        if dtype not in DTYPES or DTYPES[dtype].kind not in _KINDS:
            raise TypeError(f"dtype is {dtype!r}, expected a type of numbers that the CUDA array interface has")
        sizes = checked_shape(shape)
        element = DTYPES[dtype]
        size = max(1, math.prod(sizes) * element.itemsize)
        self._driver = _driver(session.context.capabilities.uuid)
        self._timeline = session.context.timeline
        self._memory = session.export_memory(size)
        self._external = ctypes.c_void_p()
        self._pointer = ctypes.c_ulonglong()
        try:
            self.tensor: DeviceTensor = self._memory.tensor(sizes, dtype)
            self._map(size)
        except BaseException:
            self.close()
            raise
        letter = "V" if dtype == "bfloat16" else _KINDS[element.kind]
        #: torch and cupy accept it; bfloat16 appears as 2-byte voids
        self.__cuda_array_interface__: dict[str, Any] = {
            "version": 3,
            "shape": sizes,
            "typestr": f"{'|' if element.itemsize == 1 else '<'}{letter}{element.itemsize}",
            "data": (self._pointer.value, False),
            "strides": None,
            "stream": None,
        }

    def _map(self, size: int) -> None:
        descriptor = self._memory.descriptor()
        about = MemoryHandleDesc(type=_OPAQUE_FD, size=self._memory.allocation_size, flags=_DEDICATED)
        about.handle.fd = descriptor
        try:
            with self._driver as cuda:
                cuda.call("cuImportExternalMemory", ctypes.byref(self._external), ctypes.byref(about))
        except BaseException:  # on success CUDA owns the descriptor
            os.close(descriptor)
            raise
        part = MemoryBufferDesc(offset=0, size=size)
        with self._driver as cuda:
            call = "cuExternalMemoryGetMappedBuffer"
            cuda.call(call, ctypes.byref(self._pointer), self._external, ctypes.byref(part))

    @property
    def data_ptr(self) -> int:
        """CUDA's address of the first byte."""
        return self._pointer.value

    @property
    def device(self) -> int:
        """CUDA's index of the device. Libraries copy the tensor where they are asked for it on another one."""
        return self._driver.device

    def to_vulkan(self) -> None:
        """Wait for all of CUDA's work on the device, so that later submits to Vulkan see its results. Raises
        `CudaError`."""
        with self._driver as cuda:
            cuda.call("cuCtxSynchronize")

    def to_cuda(self) -> None:
        """Wait for all submits to Vulkan so far, so that CUDA sees their results. Raises `InvalidInputError` where a
        run failed."""
        self._timeline.wait()
        self.tensor.check()

    @closing
    def close(self) -> None:
        """Free the memory on both sides; idempotent. Other libraries' arrays over it must not be used any more."""
        external, self._external = self._external, ctypes.c_void_p()
        if external.value:
            with self._driver as cuda:
                cuda.call("cuCtxSynchronize")
                if self._pointer.value:
                    cuda.call("cuMemFree_v2", self._pointer)
                cuda.call("cuDestroyExternalMemory", external)
        tensor = getattr(self, "tensor", None)
        if tensor is not None:
            tensor.close()
        self._memory.close()

    def __enter__(self) -> SharedTensor:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def empty(session: InferenceSession, shape: Sequence[int], dtype: str = "float32") -> SharedTensor:
    """Allocate an uninitialized tensor in the session's context that CUDA can access in place; ``dtype`` is numpy's
    name.

    Raises `CudaError` where CUDA does not see the session's device, `ContextIncompatibleError` where Vulkan's driver exports no
    memory, ``TypeError``, ``ValueError``, `OutOfDeviceMemoryError`.
    """
    return SharedTensor(session, shape, dtype)


def from_cuda(session: InferenceSession, array: Any) -> SharedTensor:
    """Copy a CUDA tensor (an object with ``__cuda_array_interface__``, C-contiguous) on the device into a new shared
    tensor of its shape and dtype. CUDA's own allocations cannot be imported by Vulkan. Raises as `empty`,
    ``ValueError`` for a tensor with other strides, ``TypeError`` for other objects."""
    import numpy as np

    interface = getattr(array, "__cuda_array_interface__", None)
    if interface is None:
        raise TypeError(f"expected a CUDA tensor, with __cuda_array_interface__; got {type(array).__name__}")
    dtype = np.dtype(interface["typestr"])
    shape = tuple(interface["shape"])
    if interface.get("strides") not in (None, _dense_strides(shape, dtype.itemsize)):
        raise ValueError(f"a CUDA tensor of strides {interface['strides']}: make it contiguous first")
    made = SharedTensor(session, shape, dtype.name)
    try:
        with made._driver as cuda:
            cuda.call("cuCtxSynchronize")
            size = ctypes.c_size_t(math.prod(shape) * dtype.itemsize)
            if size.value:
                source = ctypes.c_ulonglong(interface["data"][0])
                cuda.call("cuMemcpyDtoD_v2", made._pointer, source, size)
            cuda.call("cuCtxSynchronize")
    except BaseException:
        made.close()
        raise
    return made


def _dense_strides(shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
    strides = [itemsize]
    for size in reversed(shape[1:]):
        strides.append(strides[-1] * size)
    return tuple(reversed(strides)) if shape else ()
