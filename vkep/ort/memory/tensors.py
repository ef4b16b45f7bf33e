"""ONNX Runtime's tensors as numpy arrays and device tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from vkep import dtypes
from vkep.graph.weights import unpack
from vkep.ort.boundary import ffi, lib

if TYPE_CHECKING:
    from vkep.ort.api import Ort

Array = np.ndarray[Any, Any]
_STRING = 8  # ONNXTensorElementDataType


def describe(ort: Ort, value: Any) -> Any:
    """Describe a tensor value and its memory: a ``VkepTensor``. Raises `OrtError` for a value that is not a tensor."""
    out = ffi.new("VkepTensor *")
    ort.check(lib.vkep_tensor(ort.api, ort.ep_api, value, out))
    return out


def shape_of(tensor: Any) -> tuple[int, ...]:
    """The shape of a tensor that the C shim described."""
    return tuple(tensor.dims[0 : tensor.rank]) if tensor.rank else ()


def byte_count(tensor: Any) -> int:
    """Bytes of a tensor in ONNX Runtime's memory, where elements narrower than a byte are packed.

    Raises `TypeError` for an element type without a fixed size (strings).
    """
    if tensor.type == _STRING:
        raise TypeError("a tensor of texts has no bytes to copy, and cannot be on the device")
    return int(tensor.bytes)


def host_bytes(pointer: Any, nbytes: int) -> Array:
    """Host memory as bytes, without a copy."""
    if not nbytes:
        return np.empty(0, np.uint8)
    return np.frombuffer(ffi.buffer(pointer, nbytes), np.uint8)


def host_array(pointer: Any, dtype: dtypes.DType, shape: tuple[int, ...], nbytes: int) -> Array:
    """Host memory as an array, without a copy (of a dtype whose elements are whole bytes)."""
    return host_bytes(pointer, nbytes).view(dtype.numpy).reshape(shape)


def address(pointer: Any) -> int:
    """A pointer as a number."""
    return int(ffi.cast("uintptr_t", pointer))


def tensor_array(tensor: Any) -> np.ndarray:
    """A copy of a described host tensor. Raises `TypeError` for strings."""
    dtype = dtypes.from_onnx(tensor.type)
    data = host_bytes(tensor.data, byte_count(tensor))
    assert dtype is not None
    if dtype.sub_byte_bits:
        return unpack(data, dtype, shape_of(tensor))
    return data.copy().view(dtype.numpy).reshape(shape_of(tensor))
