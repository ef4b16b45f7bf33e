"""`SparseTensor`: a tensor by its elements that are not zero, with the interface of ``onnxruntime.SparseTensor``.

A run takes it for an input of the type ``sparse_tensor``, and gives it for an output of one; kernels compute with dense tensors.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from vkep import dtypes
from vkep.device.tensor import checked_shape
from vkep.errors import InvalidInputError

if TYPE_CHECKING:
    from vkep.session.ort_interface.devices import OrtDevice

Array = np.ndarray[Any, Any]


class OrtSparseFormat(enum.IntEnum):
    """How a tensor's elements are found: by coordinates (COO), by rows (CSR), by blocks. Values as in onnxruntime."""

    ORT_SPARSE_UNDEFINED = 0
    ORT_SPARSE_COO = 1
    ORT_SPARSE_CSRC = 2
    ORT_SPARSE_BLOCK_SPARSE = 4


class SparseTensor:
    """Made by `sparse_coo_from_numpy` or `sparse_csr_from_numpy`, over the memory of their arrays, on the host."""

    def __init__(
        self, dense_shape: Sequence[int], values: Array, sparse_format: OrtSparseFormat, indices: Mapping[str, Array]
    ) -> None:
        """``values``: the elements that are not zero. Raises ``ValueError`` unless they have one axis."""
        if values.ndim != 1:
            raise ValueError(f"values have shape {list(values.shape)}, expected one axis")
        self._shape, self._values = checked_shape(dense_shape), _view(values)
        self._format, self._indices = sparse_format, {name: _view(array) for name, array in indices.items()}

    @classmethod
    def sparse_coo_from_numpy(
        cls, dense_shape: Sequence[int], values: Array, coo_indices: Array, ort_device: OrtDevice
    ) -> SparseTensor:
        """A tensor by coordinates: ``coo_indices`` are int64 numbers of elements (n), or rows and columns (n, 2). Raises
        ``ValueError`` for others, or another device than the host."""
        _on_host(ort_device)
        indices = _int64("coo_indices", coo_indices)
        if indices.shape not in ((len(values),), (len(values), 2)):
            raise ValueError(
                f"coo_indices have shape {list(indices.shape)} for {len(values)} values, expected [n] or [n, 2]"
            )
        made = cls(dense_shape, values, OrtSparseFormat.ORT_SPARSE_COO, {"indices": indices})
        if indices.ndim == 2 and len(made._shape) != 2:
            raise ValueError(f"coo_indices are rows and columns, and dense_shape is {list(made._shape)}")
        made._at()  # they lie inside
        return made

    @classmethod
    def sparse_csr_from_numpy(
        cls,
        dense_shape: Sequence[int],
        values: Array,
        inner_indices: Array,
        outer_indices: Array,
        ort_device: OrtDevice,
    ) -> SparseTensor:
        """A matrix by rows: row r has the values from ``outer_indices[r]`` to ``outer_indices[r + 1]``, in the columns
        ``inner_indices``; both are int64. Raises ``ValueError`` for others, or another device than the host."""
        _on_host(ort_device)
        indices = {"inner": _int64("inner_indices", inner_indices), "outer": _int64("outer_indices", outer_indices)}
        made = cls(dense_shape, values, OrtSparseFormat.ORT_SPARSE_CSRC, indices)
        inner, outer, count = indices["inner"], indices["outer"], len(values)
        if len(made._shape) != 2 or inner.shape != (count,) or outer.shape != (made._shape[0] + 1,):
            raise ValueError(
                f"{list(inner.shape)} inner and {list(outer.shape)} outer indices for {count} values of shape "
                f"{list(made._shape)}; expected as many inner ones as values, and one outer one more than rows"
            )
        if outer[0] != 0 or outer[-1] != count or (np.diff(outer) < 0).any():
            raise ValueError(f"outer_indices do not rise from 0 to {count}, the number of values")
        made._at()
        return made

    @classmethod
    def of(cls, dense: Array) -> SparseTensor:
        """A dense array's elements that are not zero, by numbers of elements."""
        at = np.flatnonzero(dense)
        found = dense.reshape(-1)[at]
        return cls(dense.shape, found, OrtSparseFormat.ORT_SPARSE_COO, {"indices": at.astype(np.int64)})

    # ---- properties

    def format(self) -> OrtSparseFormat:
        """How its elements are found."""
        return self._format

    def dense_shape(self) -> list[int]:
        """The sizes of the dense tensor."""
        return list(self._shape)

    def data_type(self) -> str:
        """The type in ONNX's notation: ``sparse_tensor(float)``."""
        texts = self._values.dtype.kind in "OUS"
        return f"sparse_tensor({'string' if texts else dtypes.onnx_name(dtypes.from_numpy(self._values.dtype).onnx)})"

    def device_name(self) -> str:
        """Always ``cpu``."""
        return "cpu"

    # ---- its content

    def values(self) -> Array:
        """The elements that are not zero, read-only."""
        return self._values

    def as_coo_view(self) -> CooView:
        """The coordinates. Raises ``ValueError`` for a tensor of another format."""
        return CooView(self._of("indices"))

    def as_csrc_view(self) -> CsrcView:
        """The rows. Raises ``ValueError`` for a tensor of another format."""
        return CsrcView(self._of("inner"), self._of("outer"))

    def as_blocksparse_view(self) -> None:
        """Raises ``ValueError``: no method makes a tensor of blocks."""
        self._of("blocks")

    def to_cuda(self, ort_device: OrtDevice) -> None:
        """Raises ``NotImplementedError``: the device has dense tensors, to which a run copies this one."""
        raise NotImplementedError("a SparseTensor stays on the host; a run makes its input dense")

    def dense(self) -> Array:
        """The dense array. Raises `InvalidInputError` for texts."""
        if self._values.dtype.kind in "OUS":
            raise InvalidInputError("a SparseTensor of texts has no dense form for a device")
        made = np.zeros(self._shape, self._values.dtype)
        made.reshape(-1)[self._at()] = self._values
        return made

    def __repr__(self) -> str:
        return f"<SparseTensor {self.data_type()} {self.dense_shape()}, {len(self._values)} values>"

    def _of(self, name: str) -> Array:
        if name not in self._indices:
            raise ValueError(f"the tensor's format is {self._format.name}: it has no {name}")
        return self._indices[name]

    def _at(self) -> Array:
        """The number of each value's element. Raises ``ValueError`` where it is outside of the tensor."""
        if self._format is OrtSparseFormat.ORT_SPARSE_CSRC:
            rows = np.repeat(np.arange(self._shape[0]), np.diff(self._of("outer")))
            return _numbers(np.stack([rows, self._of("inner")], 1), self._shape)
        return _numbers(self._of("indices"), self._shape)


class CooView:
    """The coordinates of a tensor's values."""

    def __init__(self, indices: Array) -> None:
        self._indices = indices

    def indices(self) -> Array:
        """Numbers of elements (n), or rows and columns (n, 2), read-only."""
        return self._indices


class CsrcView:
    """The rows of a matrix's values."""

    def __init__(self, inner: Array, outer: Array) -> None:
        self._inner, self._outer = inner, outer

    def inner(self) -> Array:
        """The column of each value, read-only."""
        return self._inner

    def outer(self) -> Array:
        """The first value of each row, and the number of values, read-only."""
        return self._outer


def _numbers(indices: Array, shape: tuple[int, ...]) -> Array:
    limits = np.array(shape if indices.ndim == 2 else [np.prod(shape, dtype=np.int64)])
    if ((indices < 0) | (indices >= (limits if indices.ndim == 2 else limits[0]))).any():
        raise ValueError(
            f"indices from {indices.min()} to {indices.max()} do not lie in a tensor of shape {list(shape)}"
        )
    return np.ravel_multi_index(tuple(indices.T), shape) if indices.ndim == 2 else indices


def _on_host(device: OrtDevice) -> None:
    if device.device_type():
        raise ValueError(f"ort_device is {device!r}, expected the host (OrtDevice.make('cpu', 0))")


def _int64(name: str, array: Array) -> Array:
    made = np.asarray(array)
    if made.dtype != np.int64:
        raise ValueError(f"{name} have type {made.dtype}, expected int64")
    return made


def _view(array: Array) -> Array:
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view
