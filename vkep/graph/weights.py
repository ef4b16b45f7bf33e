"""Weights: initializers that stay in the model's bytes or in external data files until they are uploaded."""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import onnx
from onnx import numpy_helper

from vkep import dtypes
from vkep.errors import InvalidModelError
from vkep.files import file_inside, file_status
from vkep.graph.files import ExternalPart, file_identity
from vkep.sizes import fixed

#: numpy's arrays have at most this many axes (numpy 2: 64)
MOST_AXES: int = getattr(np, "MAXDIMS", 64)
#: of an array, whose elements have up to 16 bytes: numpy counts its bytes in 63 bits, and takes a size of 0 for 1
_MOST_ELEMENTS = (1 << 59) - 1


def tensor_shape(dims: Iterable[int], where: str) -> tuple[int, ...]:
    """The shape of a tensor in a model. Raises `InvalidModelError` for one that no array has: with a negative
    size, too many axes or too many elements."""
    shape = tuple(dims)
    if len(shape) > MOST_AXES:
        raise InvalidModelError(f"{where}: it has {len(shape)} axes, expected at most {MOST_AXES}")
    if min(shape, default=0) < 0 or math.prod(d or 1 for d in shape) > _MOST_ELEMENTS:
        raise InvalidModelError(
            f"{where}: its shape is {list(shape)}, expected sizes of at least 0, and at most {_MOST_ELEMENTS} elements"
        )
    return shape


class Content(Protocol):
    """The bytes of a weight that are stored elsewhere."""

    @property
    def nbytes(self) -> int:
        """Length in bytes."""

    def __call__(self) -> np.ndarray:
        """The bytes, as uint8."""

    def read_into(self, out: np.ndarray, start: int = 0) -> None:
        """Write the bytes from ``start`` on to ``out`` (uint8). Raises `InvalidModelError` where the file changed."""


class Weight:
    """One constant of the model. ``array()`` returns its values."""

    #: whether the values are stored in a file: then arrays derived from them are not kept
    in_file = False

    def __init__(self, name: str, shape: tuple[int, ...], elem_type: int) -> None:
        self.name = name
        self.shape = shape
        self.elem_type = elem_type
        self._key: str | None = None
        #: by the key of each packed form: its shape, type, and its own key as a weight
        self.packed: dict[str, tuple[tuple[int, ...], int, str]] = {}

    @functools.cached_property
    def nbytes(self) -> int:
        """Bytes of the values as `array` gives them; of a text a pointer's, without reading it. Raises `InvalidModelError` for
        an unknown type."""
        if self.elem_type == onnx.TensorProto.STRING:
            return math.prod(self.shape) * np.dtype(object).itemsize
        dtype = dtypes.from_onnx(self.elem_type)
        return math.prod(self.shape) * dtype.itemsize if dtype else self.array().nbytes

    @property
    def stored(self) -> Content | None:
        """The values' bytes, to read in parts without keeping them; None where the caller must use `array`."""
        return None

    @property
    def is_hashed(self) -> bool:
        """Whether ``key`` is available without hashing the content."""
        return self._key is not None

    def array(self) -> np.ndarray:
        """The values, with the weight's shape and dtype. The caller must not write to the array. Raises
        `InvalidModelError` where they cannot be read."""
        raise NotImplementedError

    @property
    def key(self) -> str:
        """A digest of dtype, shape and content: equal keys are equal weights."""
        if self._key is None:
            self._key = self._digest()
        return self._key

    def _digest(self) -> str:
        return array_key(self.array())


class ProtoWeight(Weight):
    """A weight in the model's bytes; ``content`` holds the bytes where ``proto`` was parsed without them."""

    def __init__(self, proto: onnx.TensorProto, name: str | None = None, content: Content | None = None) -> None:
        name = name or proto.name
        super().__init__(name, tensor_shape(proto.dims, f"weight {name!r}"), proto.data_type)
        self._content = content
        self._proto: onnx.TensorProto | None = proto
        self._array: np.ndarray | None = None

    def array(self) -> np.ndarray:
        content, array, proto = self._content, self._array, self._proto  # in this order: other threads clear them
        if array is None and proto is not None:
            array = self._array = tensor_array(proto, self.name, content)
            self._proto = self._content = None  # its bytes now live in the array
        if array is None:  # another thread was between the two assignments
            array = self._array
        assert array is not None
        return array

    @property
    def stored(self) -> Content | None:
        content, dtype = self._content, dtypes.from_onnx(self.elem_type)
        if content is None or dtype is None or dtype.sub_byte_bits or content.nbytes != self.nbytes:
            return None
        return content


class Codes(NamedTuple):
    """What a weight was dequantized from: ``(codes - zero) * scale``, whose factors belong to one axis where they are several."""

    codes: Weight
    scale: np.ndarray
    zero: np.ndarray | None
    axis: int


class ArrayWeight(Weight):
    """A weight that is computed while planning: folded, or packed for a kernel."""

    def __init__(self, name: str, array: np.ndarray, codes: Codes | None = None) -> None:
        super().__init__(name, array.shape, dtypes.from_numpy(array.dtype).onnx)
        self._array = array
        self.codes = codes  #: of a dequantized weight

    def array(self) -> np.ndarray:
        return self._array


class SizesWeight(Weight):
    """Numbers that are computed from a run's sizes: shapes and values computed from them.

    ``array()`` holds objects, among them `vkep.sizes.Size` and `Real`. The bytes are those of the current sizes.
    """

    def __init__(self, name: str, values: np.ndarray, elem_type: int) -> None:
        super().__init__(name, values.shape, elem_type)
        self._values = values

    def array(self) -> np.ndarray:
        return self._values

    def fixed(self, why: str) -> ArrayWeight:
        """The constant of these numbers' current values (`vkep.sizes.fixed`)."""
        dtype = dtypes.from_onnx(self.elem_type)
        assert dtype is not None
        kind = float if dtype.kind == "float" else int
        plain = [kind(fixed(value, why)) for value in self._values.reshape(-1).tolist()]
        return ArrayWeight(self.name, np.array(plain, dtype.numpy).reshape(self.shape))

    def _digest(self) -> str:
        return self.fixed("a constant in memory is found by its content").key


class PackedWeight(Weight):
    """A weight rearranged for a kernel. ``key`` identifies the result of ``transform`` on ``base``.

    The packed form is computed again when it is uploaded, and not kept, where the original is stored in a file (so that
    a large model is never in memory as a whole), and where it was computed before (a plan for another size has most
    likely uploaded it).
    """

    def __init__(self, base: Weight, offset: int, transform: Callable[[np.ndarray], np.ndarray], key: str) -> None:
        self._base, self._offset, self._transform = base, offset, transform
        self._array: np.ndarray | None = None
        form = base.packed.get(key)
        if form is None:
            packed = self._pack()
            self._array = None if base.in_file else packed
            digest = hashlib.blake2b(key.encode(), digest_size=16).hexdigest()
            form = base.packed[key] = (packed.shape, dtypes.from_numpy(packed.dtype).onnx, digest)
        shape, elem_type, self_key = form
        super().__init__(base.name, shape, elem_type)
        self._key = self_key

    def _pack(self) -> np.ndarray:
        return np.ascontiguousarray(self._transform(self._base.array().reshape(-1)[self._offset :]))

    def array(self) -> np.ndarray:
        return self._pack() if self._array is None else self._array


class ExternalWeight(Weight):
    """A weight in an external data file, read on each use (ONNX IR, "External Data"). The file stays open.
    Raises `InvalidModelError` for a location that is missing, outside the model's folder or too short."""

    in_file = True

    def __init__(self, proto: onnx.TensorProto, base_dir: Path | None) -> None:
        where = f"weight {proto.name!r}"
        super().__init__(proto.name, tensor_shape(proto.dims, where), proto.data_type)
        info = {e.key: e.value for e in proto.external_data}
        location = info.get("location", "")
        if base_dir is None:
            raise InvalidModelError(
                f"{where} lies in the external file {location!r}, but the model was given as bytes or a proto: "
                "open it by its path, or pass the folder of the data as base_dir"
            )
        try:
            path = file_inside(base_dir, location, InvalidModelError).resolve()
        except InvalidModelError as error:
            raise InvalidModelError(f"{where}: external data location {error}") from None
        try:
            self._offset = int(info.get("offset", 0))
            length = int(info["length"]) if "length" in info else self._file_bytes
        except ValueError as error:
            raise InvalidModelError(f"{where}: external data offset or length is no number: {info}") from error
        status = file_status(path, f"external data file for {where}", InvalidModelError)
        size = status.st_size
        if self._offset < 0 or length != self._file_bytes or self._offset + length > size:
            raise InvalidModelError(
                f"{where}: needs {self._file_bytes} bytes at offset {self._offset} of {path}, "
                f"but the model says length {length} and the file has {size} bytes"
            )
        self.path, self.identity = path, file_identity(path, status)
        self._content = ExternalPart.of(path, status, self._offset, self._file_bytes)

    @property
    def _file_bytes(self) -> int:
        dtype = dtypes.from_onnx(self.elem_type)
        return -(-math.prod(self.shape) * dtype.bits // 8) if dtype else self.nbytes

    def array(self) -> np.ndarray:
        dtype = dtypes.from_onnx(self.elem_type)
        if dtype is None:
            raise InvalidModelError(f"weight {self.name!r}: type {dtypes.onnx_name(self.elem_type)} cannot be read")
        if self.nbytes == 0:
            return np.zeros(self.shape, dtype.numpy)
        values = self._content()
        if dtype.sub_byte_bits:
            return unpack(values, dtype, self.shape)
        return values.view(dtype.numpy).reshape(self.shape)

    @property
    def stored(self) -> Content | None:
        dtype = dtypes.from_onnx(self.elem_type)
        return None if dtype is None or dtype.sub_byte_bits else self._content

    def _digest(self) -> str:
        # Hashing gigabytes would take longer than the upload: the file's identity replaces its content.
        text = f"{self.identity}:{self._offset}:{self.nbytes}:{self.elem_type}"
        return "file-" + hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def array_key(array: np.ndarray) -> str:
    """The content key of an array: dtype, shape and bytes."""
    digest = hashlib.blake2b(f"{array.dtype.name}:{array.shape}:".encode(), digest_size=16)
    digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def unpack(packed: np.ndarray, dtype: dtypes.DType, shape: tuple[int, ...]) -> np.ndarray:
    """Convert elements narrower than a byte from ONNX's packing (uint8; the first in the lowest bits, TensorProto) to
    an array of ``shape`` with one element per byte."""
    shifts = np.arange(0, 8, dtype.bits, dtype=np.uint8)
    values = (packed.reshape(-1, 1) >> shifts) & np.uint8((1 << dtype.bits) - 1)
    return values.reshape(-1)[: math.prod(shape)].view(dtype.numpy).reshape(shape)


def pack(values: np.ndarray, dtype: dtypes.DType) -> np.ndarray:
    """The inverse of `unpack`: uint8 [bytes] with several elements per byte. The last byte is padded with zeros."""
    each = 8 // dtype.bits
    flat = np.ascontiguousarray(values).reshape(-1).view(np.uint8) & np.uint8((1 << dtype.bits) - 1)
    rows = np.pad(flat, (0, -flat.size % each)).reshape(-1, each)
    shifts = np.arange(0, 8, dtype.bits, dtype=np.uint8)
    return np.bitwise_or.reduce(rows << shifts, axis=1).astype(np.uint8)


def make_weight(proto: onnx.TensorProto, base_dir: Path | None, content: Content | None = None) -> Weight:
    """The weight that an initializer describes; raises `InvalidModelError` when its data cannot be found. ``content``
    is its raw data where ``proto`` was read without it.
    """
    if proto.data_location == onnx.TensorProto.EXTERNAL:
        return ExternalWeight(proto, base_dir)
    return ProtoWeight(proto, content=content)


def tensor_array(proto: onnx.TensorProto, name: str, content: Content | None = None) -> np.ndarray:
    """The values of a tensor in a model; ``content`` is its raw data where ``proto`` was read without it. Raises
    `InvalidModelError` where they do not fit its type and shape, or are in another file."""
    dtype = dtypes.from_onnx(proto.data_type)
    where = f"weight {name!r}"
    shape = tensor_shape(proto.dims, where)
    if proto.data_location == onnx.TensorProto.EXTERNAL:
        raise InvalidModelError(f"{where}: its data is in another file; here it must be in the model")
    if content is not None and dtype is not None and content.nbytes != -(-math.prod(shape) * dtype.bits // 8):
        raise _misfit(proto, where, f"it has {content.nbytes} bytes")
    data = None if content is None else content()
    try:
        if data is not None:
            if dtype is not None and not dtype.sub_byte_bits:
                array = data.view(dtype.numpy).reshape(shape)
                array.flags.writeable = False
                return array
            proto.raw_data = data.tobytes()
        if proto.HasField("raw_data") and dtype is not None and not dtype.sub_byte_bits:
            return np.frombuffer(proto.raw_data, dtype.numpy).reshape(shape)
        return numpy_helper.to_array(proto)
    except (ValueError, TypeError, KeyError) as error:  # KeyError: a type that ONNX has not
        raise _misfit(proto, where, error) from error


def _misfit(proto: onnx.TensorProto, where: str, why: object) -> InvalidModelError:
    kind, shape = dtypes.onnx_name(proto.data_type), tuple(proto.dims)
    return InvalidModelError(f"{where}: its data does not fit type {kind} and shape {shape}: {why}")
