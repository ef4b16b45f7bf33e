"""`OrtValue`: a tensor with the interface of ``onnxruntime.OrtValue``, on the host or on a session's device."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gpu_shared.weak import WeakValues
from vkep import dtypes
from vkep.device.tensor import DLPACK_CPU, DeviceTensor, checked_shape
from vkep.errors import InvalidInputError
from vkep.session.ort_interface.devices import OrtMemoryInfo, on_gpu
from vkep.session.ort_interface.sparse import SparseTensor

if TYPE_CHECKING:
    from vkep.device.delegate import VulkanDelegate

Array = np.ndarray[Any, Any]
_FIRST_HANDLE = 0x7E00_0000_0000_0000  # above every address of a host or a device


class OrtValue:
    """A tensor to bind or to feed. A value for the GPU is in host memory until the first session that uses it copies it
    to its device, where it stays; ``device_id``, if not 0, must be the index of that device."""

    def __init__(
        self,
        value: Array | DeviceTensor | SparseTensor | None,
        *,
        device_id: int = -1,
        shape: Any = (),
        dtype: Any = None,
        device_name: str = "gpu",
    ):
        """Use `ortvalue_from_numpy` or `ortvalue_from_shape_and_type`. ``device_id`` below 0: stays on the host; ``shape`` and
        ``dtype`` are for a value without content; ``device_name`` is the caller's name of the GPU.
        """
        self._sparse = value if isinstance(value, SparseTensor) else None
        if isinstance(value, SparseTensor):
            value = value.dense()
        self._value, self._device_id = value, device_id
        self._device_name = device_name if device_id >= 0 else "cpu"
        self._shape: tuple[int, ...] = tuple(value.shape) if value is not None else shape
        self._dtype: Any = dtypes.from_numpy(value.dtype) if isinstance(value, np.ndarray) else dtype
        if isinstance(value, DeviceTensor):
            self._dtype = value.dtype
        self._handle = 0

    @classmethod
    def ortvalue_from_numpy(
        cls, numpy_obj: Array, device_type: str = "cpu", device_id: int = 0, vendor_id: int = -1
    ) -> OrtValue:
        """A value with the array's shape, dtype and content. For the host it shares the array's memory, if that is
        C-contiguous; for the GPU it is a copy. Raises ``ValueError`` for another device."""
        if on_gpu(device_type):
            return cls(np.array(numpy_obj, order="C"), device_id=device_id, device_name=device_type)
        return cls(np.asarray(numpy_obj, order="C"))

    @classmethod
    def ortvalue_from_numpy_with_onnx_type(cls, data: Array, onnx_element_type: int) -> OrtValue:
        """A value of the array's shape on the host, whose bytes are elements of ``onnx_element_type`` (a number of
        ``onnx.TensorProto``), such as uint16 for bfloat16. Raises ``TypeError``, ``ValueError`` for elements of other sizes."""
        dtype = element_dtype(onnx_element_type)
        if data.dtype.itemsize != dtype.itemsize:
            raise ValueError(f"data has elements of {data.dtype.itemsize} bytes, expected {dtype.itemsize} ({dtype})")
        return cls(np.asarray(data, order="C").view(dtype.numpy))

    @classmethod
    def from_dlpack(cls, data: Any) -> OrtValue:
        """A value over the memory of another library's tensor on the host, or of its capsule. Raises ``BufferError`` and as
        ``numpy.from_dlpack``."""
        return cls(np.from_dlpack(data if hasattr(data, "__dlpack__") else _Capsule(data)))

    @classmethod
    def ortvalue_from_shape_and_type(
        cls,
        shape: Sequence[int],
        element_type: Any,
        device_type: str = "cpu",
        device_id: int = 0,
        vendor_id: int = -1,
        memory_info: OrtMemoryInfo | None = None,
    ) -> OrtValue:
        """A value of ``shape`` whose content is undefined. ``element_type``: a numpy type, or a number of
        ``onnx.TensorProto``. ``memory_info`` (`OrtEpDevice.memory_info`) instead of the device. Raises
        ``TypeError``, ``ValueError`` for a shape or type that no tensor has."""
        dtype, sizes = element_dtype(element_type), checked_shape(shape)
        if memory_info is not None:
            device_type, device_id = memory_info.name.lower(), memory_info.device_id
        if on_gpu(device_type):
            return cls(None, device_id=device_id, shape=sizes, dtype=dtype, device_name=device_type)
        return cls(np.empty(sizes, dtype.numpy))

    @classmethod
    def ort_value_from_sparse_tensor(cls, sparse_tensor: SparseTensor) -> OrtValue:
        """A value of a sparse tensor of numbers. Raises `InvalidInputError` for texts."""
        return cls(sparse_tensor)

    @classmethod
    def of(cls, result: Any, device_name: str = "gpu") -> Any:
        """A run's result as a value; the result itself, if it is not a tensor of numbers. ``device_name`` is the caller's name
        of the device."""
        if isinstance(result, DeviceTensor):
            return cls(result, device_id=0, device_name=device_name)
        if isinstance(result, SparseTensor):
            return cls(result)
        return cls(result) if isinstance(result, np.ndarray) and result.dtype.kind not in "OUS" else result

    # ---- properties

    def shape(self) -> list[int]:
        """The sizes."""
        return list(self._shape)

    def data_type(self) -> str:
        """The type in ONNX's notation: ``tensor(float)``."""
        return f"{'sparse_' if self._sparse else ''}tensor({dtypes.onnx_name(self.element_type())})"

    def element_type(self) -> int:
        """The number of ``onnx.TensorProto.DataType``."""
        return int(self._dtype.onnx)

    def device_name(self) -> str:
        """``cpu``, or the name that the caller gave the GPU (``gpu``, ``cuda``...)."""
        return self._device_name

    def has_value(self) -> bool:
        """Always True: vkep has no value without content."""
        return True

    def is_tensor(self) -> bool:
        """Whether it is a dense tensor."""
        return self._sparse is None

    def is_sparse_tensor(self) -> bool:
        """Whether it is of `ort_value_from_sparse_tensor`, or a result of the type ``sparse_tensor``."""
        return self._sparse is not None

    def as_sparse_tensor(self) -> SparseTensor:
        """The sparse tensor. Raises ``ValueError`` for a dense one."""
        if self._sparse is None:
            raise ValueError(f"OrtValue {self.data_type()} {self.shape()} is not sparse")
        return self._sparse

    def is_tensor_sequence(self) -> bool:
        """Always False."""
        return False

    def tensor_size_in_bytes(self) -> int:
        """The content's bytes."""
        return int(np.prod(self._shape, dtype=np.int64)) * int(self._dtype.itemsize)

    def data_ptr(self) -> int:
        """The address of the host memory; for a value for the GPU a number that only `IOBinding.bind_input` and
        `IOBinding.bind_output` accept."""
        if isinstance(self._value, np.ndarray) and self._device_id < 0:
            return self._value.ctypes.data
        if not self._handle:
            self._handle = next(_handles)
            _by_handle[self._handle] = self
        return self._handle

    # ---- its content

    def numpy(self) -> Array:
        """The content as an array of the value's shape and dtype: the host memory itself, or a copy of the device's; the dense
        form of a sparse tensor. Raises `InvalidInputError` where nothing was written yet, and as `DeviceTensor.numpy`."""
        if self._value is None:
            raise InvalidInputError(f"OrtValue {self.data_type()} {self.shape()}: nothing was written to it yet")
        return self._value.numpy() if isinstance(self._value, DeviceTensor) else self._value

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        array = self.numpy()
        return np.array(array, dtype) if copy else np.asarray(array, dtype)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Where the content is: on the host, or on Vulkan (kDLVulkan) once a session has copied the value to its
        device."""
        return self._value.__dlpack_device__() if isinstance(self._value, DeviceTensor) else DLPACK_CPU

    def __dlpack__(self, **asked: Any) -> Any:
        """The host memory itself; for a value that a session will copy to its device a copy; for a value there as
        `DeviceTensor.__dlpack__`, which refuses consumers that are not on the host with ``BufferError``."""
        if isinstance(self._value, DeviceTensor):
            return self._value.__dlpack__(**asked)
        array = self.numpy()
        return (array if self._device_id < 0 else array.copy()).__dlpack__(**asked)

    def update_inplace(self, data: Array) -> None:
        """Replace the content. Raises ``ValueError`` for another shape or dtype, and for a sparse tensor."""
        if self._sparse is not None:
            raise ValueError(
                f"OrtValue {self.data_type()} {self.shape()}: the content of a sparse tensor cannot be replaced"
            )
        if data.shape != self._shape or data.dtype != self._dtype.numpy:
            raise ValueError(
                f"OrtValue {self.data_type()} {self.shape()}: got an array of {data.dtype} {list(data.shape)}"
            )
        if isinstance(self._value, DeviceTensor):
            self._value.write(data)
        elif self._value is None:
            self._value = np.array(data, order="C")
        else:
            self._value[...] = data

    def on(self, delegate: VulkanDelegate, what: str) -> Array | DeviceTensor:
        """The value in the form that a session's run takes. Raises `InvalidInputError` where it is for another
        device."""
        if self._device_id < 0 or isinstance(self._value, DeviceTensor):
            return self._value  # type: ignore[return-value]  # one for the host has its content
        caps = delegate.capabilities
        if self._device_id not in (0, caps.index):
            raise InvalidInputError(
                f"{what} is an OrtValue for device {self._device_id}; the session runs on device {caps.index}, {caps.name}"
            )
        if self._value is None:
            self._value = DeviceTensor(delegate, self._dtype, self._shape)
        else:
            self._value = DeviceTensor.from_numpy(delegate, self._value)
        return self._value

    def __repr__(self) -> str:
        return f"<OrtValue {self.data_type()} {self.shape()} on the {self.device_name()}>"


class _Capsule:
    """A capsule of DLPack over host memory, in the form that numpy takes."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **asked: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return DLPACK_CPU


_handles = itertools.count(_FIRST_HANDLE)
_by_handle: WeakValues[int, OrtValue] = WeakValues()


def value_at(pointer: int, what: str) -> OrtValue:
    """The value whose `OrtValue.data_ptr` is ``pointer``. Raises `InvalidInputError`."""
    value = _by_handle.get(pointer)
    if value is None:
        raise InvalidInputError(
            f"{what}: {pointer:#x} is no data_ptr() of a vkep.OrtValue for the GPU; memory of other libraries comes in as an "
            "array, or by session.import_memory()"
        )
    return value


def element_dtype(element_type: Any) -> dtypes.DType:
    """A numpy type, or a number of ``onnx.TensorProto``, as vkep's type. Raises ``TypeError``."""
    dtype = (
        dtypes.from_onnx(element_type) if isinstance(element_type, int) else dtypes.from_numpy(np.dtype(element_type))
    )
    if dtype is None:
        raise TypeError(f"element_type is {element_type!r}, which no device buffer holds")
    return dtype
