"""Tensors of a running method on the host, and the arrays of its inputs and outputs."""

from __future__ import annotations

import math
import sys
from typing import Any

import ml_dtypes
import numpy as np

from vkep.errors import InvalidInputError, VkepError
from vkep.files import MEMORY_BYTES
from vkep.pte.schema import TensorShapeDynamism
from vkep.pte.values import TensorValue

Array = np.ndarray[Any, Any]


class HostTensor:
    """One tensor value: its bytes in an arena (or its constant), and its current shape."""

    __slots__ = ("array", "constant", "most_bytes", "spec", "storage")

    def __init__(self, spec: TensorValue, storage: Array, most_bytes: int = MEMORY_BYTES) -> None:
        """``storage`` are the bytes from where the tensor starts, of the upper bound's size. A tensor without one grows to
        ``most_bytes``."""
        self.spec = spec
        self.most_bytes = most_bytes
        self.storage = storage
        self.constant = spec.constant is not None
        self.array: Array = self._view(spec.sizes)

    def _view(self, shape: tuple[int, ...]) -> Array:
        spec = self.spec
        count = math.prod(shape)
        flat = self.storage[: count * spec.dtype.itemsize].view(spec.dtype)
        if spec.is_contiguous:
            return flat.reshape(shape)
        return spec.from_stored(flat.reshape([shape[d] for d in spec.dim_order]))

    def resize(self, shape: tuple[int, ...], what: str) -> None:
        """Set the current shape. Raises `VkepError` where it exceeds the tensor's memory, or what it may grow to."""
        spec = self.spec
        if shape == self.array.shape:
            return
        fits = len(shape) == len(spec.sizes) and all(a <= b for a, b in zip(shape, spec.sizes, strict=True))
        if spec.dynamism is TensorShapeDynamism.STATIC:
            fits = shape == spec.sizes
        elif spec.dynamism is TensorShapeDynamism.DYNAMIC_UNBOUND:
            fits, nbytes = True, math.prod(shape) * spec.dtype.itemsize
            if nbytes > self.most_bytes:
                raise VkepError(f"{what} gives a tensor of {nbytes} bytes; max_host_bytes allows {self.most_bytes}")
            if nbytes > self.storage.nbytes:
                self.storage = np.zeros(nbytes, np.uint8)
        if not fits:
            raise VkepError(f"{what} gives a tensor of shape {list(shape)}; the program planned {spec}")
        self.array = self._view(shape)

    def assign(self, result: Any, what: str) -> None:
        """Store a result, cast to the tensor's type; its memory may overlap the tensor's. Raises `VkepError`
        for one that is not of numbers, and as `resize`."""
        result = np.asarray(result)
        if result.dtype.kind in "OSU":
            raise VkepError(
                f"{what} gives {result.dtype} of shape {list(result.shape)}; the program planned {self.spec}"
            )
        if result.shape != self.array.shape:
            self.resize(result.shape, what)
        np.copyto(self.array, result, casting="unsafe")

    def reset(self) -> None:
        """Restore the view of its own memory with the planned sizes."""
        self.array = self._view(self.spec.sizes)


def is_torch(value: Any) -> bool:
    """Whether it is a torch tensor; torch is not imported for that."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def from_torch(tensor: Any) -> Array:
    """A torch tensor as an array on the host, detached from its graph."""
    torch = sys.modules["torch"]
    held = tensor.detach().cpu()
    if held.dtype == torch.bfloat16:
        return np.asarray(held.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16))
    return np.asarray(held.numpy())


def to_torch(value: Any) -> Any:
    """An output as a torch tensor, for callers that gave torch tensors."""
    if not isinstance(value, np.ndarray):
        return value
    torch = sys.modules["torch"]
    if value.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(value.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(value)


def check_input(value: Any, spec: TensorValue, what: str) -> Array:
    """The input as an array. Raises `InvalidInputError` for a dtype or shape that the program does not take."""
    array = value if isinstance(value, np.ndarray) else from_torch(value) if is_torch(value) else None
    if array is None:
        if not isinstance(value, (int, float, bool, list, tuple, np.generic)):
            raise InvalidInputError(
                f"{what}: got a {type(value).__name__}, expected a numpy array or torch tensor ({spec})"
            )
        array = np.asarray(value, spec.dtype)
    if array.dtype != spec.dtype:
        raise InvalidInputError(f"{what}: got dtype {array.dtype}, expected {spec}")
    shape = array.shape
    if shape != spec.sizes:
        same_rank = len(shape) == len(spec.sizes)
        if spec.is_static or not same_rank:
            raise InvalidInputError(f"{what}: got shape {list(shape)}, expected {spec}")
        if spec.dynamism is TensorShapeDynamism.DYNAMIC_BOUND and any(
            a > b for a, b in zip(shape, spec.sizes, strict=True)
        ):
            raise InvalidInputError(f"{what}: got shape {list(shape)}, expected {spec}")
    return array
