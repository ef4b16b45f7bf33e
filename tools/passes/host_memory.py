"""The content of storages on the host, for `tools.passes.interpreter`: bytes, which of them were written, and exact floats."""

from __future__ import annotations

import math

import numpy as np

from vkep.dtypes import DType
from vkep.ir.tensor import Storage, Tensor

#: states of a byte: nothing has written it; an operation has left it undefined; written
_NEVER, _UNDEFINED, _WRITTEN = 0, 1, 2


class InvalidAccess(Exception):
    """An operation reads or writes bytes that it may not."""


class HostMemory:
    """The content of one storage.

    Floats are kept as float64 beside their bytes, so that an intermediate result that a pass no longer stores changes no other
    result. A view of another type reads the bytes.
    """

    def __init__(self, storage: Storage) -> None:
        self._label, self._constant = storage.label or "a buffer", storage.weight is not None
        self._exact: np.ndarray | None = None
        self._exact_type: DType | None = None
        if storage.weight is not None:
            self._bytes = np.ascontiguousarray(storage.weight.array()).reshape(-1).view(np.uint8)
            self._states = np.full(self._bytes.size, _WRITTEN, np.uint8)
        else:
            self._bytes = np.zeros(int(storage.nbytes), np.uint8)
            self._states = np.zeros(int(storage.nbytes), np.uint8)

    def read(self, view: Tensor) -> np.ndarray:
        """The elements of a view: floats in float64, integers of 2 and 4 bits in 8, 8-bit floats as their codes. A masked array
        where some are undefined. Raises `InvalidAccess` for bytes that nothing has written."""
        dtype, (start, end) = view.dtype, self._range(view)
        if not view.size:
            return np.empty(view.shape, _host_type(dtype))
        if self._exact is not None and self._exact_type is dtype:
            values = _strided(self._exact, view).copy()
        else:
            values = _strided(self._elements(dtype), view).astype(_host_type(dtype))
        if (self._states[start:end] == _WRITTEN).all():
            return values
        least = self._states_of(view).min(axis=-1)
        if (least == _NEVER).any():
            first = tuple(int(at[0]) for at in np.nonzero(least == _NEVER))
            raise InvalidAccess(f"reads {self._named(view)} at {first}, which nothing has written")
        return np.ma.array(values, mask=least == _UNDEFINED) if (least == _UNDEFINED).any() else values

    def write(self, view: Tensor, values: np.ndarray) -> None:
        """Convert values and store them; those that a masked array masks are left as they are, or undefined. Raises
        `InvalidAccess` for a weight, and for a view with several elements in one place."""
        if self._constant:
            raise InvalidAccess(f"writes to the constant {self._named(view)}")
        self._range(view)
        if not view.size:
            return
        if not _distinct(view):
            raise InvalidAccess(f"writes {self._named(view)}, which has several elements in one place")
        dtype, masked = view.dtype, np.ma.getmaskarray(values) if isinstance(values, np.ma.MaskedArray) else None
        values = np.broadcast_to(np.ma.getdata(values), view.shape)
        where: np.ndarray | bool = True if masked is None else ~masked.reshape(view.shape)
        exact = self._exact
        if dtype.kind != "float":
            self._exact = self._exact_type = None
        elif exact is None or self._exact_type is not dtype:
            exact = self._exact = self._elements(dtype).astype(np.float64)
            self._exact_type = dtype
        with np.errstate(all="ignore"):
            np.copyto(_strided(self._elements(dtype), view), _stored(values, dtype), where=where)
            if dtype.kind == "float" and exact is not None:
                np.copyto(_strided(exact, view), values, where=where)
        states = self._states_of(view)
        if masked is None:
            states[...] = _WRITTEN
        else:
            states[...] = np.where(np.asarray(where)[..., None], _WRITTEN, np.maximum(states, _UNDEFINED))

    def _range(self, view: Tensor) -> tuple[int, int]:
        start, end = view.byte_range
        if start < 0 or end > self._bytes.size:
            raise InvalidAccess(f"accesses bytes {start} to {end} of {self._named(view)}, which has {self._bytes.size}")
        return int(start), int(end)

    def _named(self, view: Tensor) -> str:
        return f"{self._label} ({view.dtype} {list(view.shape)}, strides {list(view.strides)}, from element {view.offset} on)"

    def _elements(self, dtype: DType) -> np.ndarray:
        kind = np.dtype(np.uint8) if dtype.kind == "bits" else dtype.numpy
        return self._bytes[: self._bytes.size // dtype.itemsize * dtype.itemsize].view(kind)

    def _states_of(self, view: Tensor) -> np.ndarray:
        """The states of each element's bytes, on a last axis of their own."""
        size = view.dtype.itemsize
        strides = (*(int(s) * size for s in view.strides), 1)
        of = self._states[int(view.offset) * size :]
        return np.lib.stride_tricks.as_strided(of, (*map(int, view.shape), size), strides)


def positions(view: Tensor) -> np.ndarray:
    """The number of each element of a view in its storage."""
    at = np.full(view.shape, int(view.offset), np.int64)
    for axis, (size, stride) in enumerate(zip(view.shape, view.strides, strict=True)):
        at += (np.arange(size) * int(stride)).reshape(-1, *(1,) * (view.rank - axis - 1))
    return at


def _strided(elements: np.ndarray, view: Tensor) -> np.ndarray:
    strides = tuple(int(s) * elements.itemsize for s in view.strides)
    return np.lib.stride_tricks.as_strided(elements[int(view.offset) :], tuple(map(int, view.shape)), strides)


def _distinct(view: Tensor) -> bool:
    """Whether no two elements have the same place."""
    reach = 1
    for stride, size in sorted((abs(int(s)), int(d)) for s, d in zip(view.strides, view.shape, strict=True) if d != 1):
        if stride < reach:
            return len(np.unique(positions(view))) == math.prod(view.shape)
        reach += stride * (size - 1)
    return True


def _host_type(dtype: DType) -> np.dtype:
    if dtype.kind == "float":
        return np.dtype(np.float64)
    if dtype.sub_byte_bits or dtype.kind == "bits":
        return np.dtype(np.int8 if dtype.kind == "int" else np.uint8)
    return dtype.numpy


def _stored(values: np.ndarray, dtype: DType) -> np.ndarray:
    """Values as elements of a type: floats are rounded, integers wrap."""
    if dtype.kind == "bits":
        return values.astype(np.uint8)
    if dtype.kind in ("int", "uint") and values.dtype.kind == "f":
        values = values.astype(np.int64)
    if dtype.sub_byte_bits:  # numpy's conversion clamps
        low = values.astype(np.int64) & (1 << dtype.sub_byte_bits) - 1
        sign = 1 << dtype.sub_byte_bits - 1 if dtype.kind == "int" else 0
        values = (low ^ sign) - sign
    return values.astype(dtype.numpy)
