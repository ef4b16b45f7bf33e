"""Adapters: named tensors in a file of ONNX Runtime's (``.onnx_adapter``), which runs read in place of a model's optional inputs.

The file is a flatbuffer with the identifier ``TORT``; source: ``onnxruntime/lora/adapter_format/adapter_schema.fbs`` of ONNX
Runtime, format version 1.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from vkep import dtypes
from vkep.errors import InvalidModelError, InvalidPteError, VkepError
from vkep.files import read_file
from vkep.pte.flatbuffer import Bytes, Int32, Int64, Table
from vkep.session.ort_interface.value import OrtValue

_IDENTIFIER = b"TORT"
_VERSION = 1
_LAST = 20  #: the last element type of the format, a number of ``onnx.TensorProto``
_ALIGNMENT = 8  # of a tensor's bytes


class _Parameter(Table):
    name: str
    dims: tuple[Int64, ...]
    data_type: Int32
    raw_data: Bytes


class _Adapter(Table):
    format_version: Int32
    adapter_version: Int32
    model_version: Int32
    parameters: tuple[_Parameter, ...]


class AdapterFormat:
    """Reads and writes an adapter file, as ``onnxruntime.AdapterFormat`` does. Parameters are `OrtValue` by the names of the
    model's inputs."""

    def __init__(self, adapter: AdapterFormat | None = None) -> None:
        """``adapter``: another one, whose content this one begins with."""
        self._versions: list[int] = list(adapter._versions) if adapter else [0, 0]
        self._parameters: dict[str, OrtValue] = dict(adapter._parameters) if adapter else {}

    @staticmethod
    def read_adapter(file_path: str | os.PathLike[str]) -> AdapterFormat:
        """The content of a file. Raises ``FileNotFoundError``, `InvalidModelError`."""
        path = Path(file_path)
        content = read_file(path, "adapter")
        try:
            read = _Adapter.read_root(content, _IDENTIFIER, f"the adapter {path}")
        except InvalidPteError as error:
            raise InvalidModelError(str(error)) from None
        if read.format_version != _VERSION:
            raise InvalidModelError(f"the adapter {path} has format version {read.format_version}, expected {_VERSION}")
        made = AdapterFormat()
        made._versions = [read.adapter_version, read.model_version]
        made._parameters = {p.name: OrtValue(_array(p, path)) for p in read.parameters}
        return made

    def export_adapter(self, file_path: str | os.PathLike[str]) -> None:
        """Write a file. Raises `VkepError` without the package flatbuffers, ``TypeError`` for a parameter of texts or of another
        type that the format lacks, ``ValueError`` for one without axes, ``OSError``."""
        Path(file_path).write_bytes(_encoded(self._versions, self._parameters))

    def get_format_version(self) -> int:
        """The version of the file format."""
        return _VERSION

    def set_adapter_version(self, adapter_version: int) -> None:
        """Set a number of the caller's."""
        self._versions[0] = adapter_version

    def get_adapter_version(self) -> int:
        """See `set_adapter_version`."""
        return self._versions[0]

    def set_model_version(self, model_version: int) -> None:
        """Set the version of the model that it is for, a number of the caller's."""
        self._versions[1] = model_version

    def get_model_version(self) -> int:
        """See `set_model_version`."""
        return self._versions[1]

    def set_parameters(self, params: Mapping[str, OrtValue]) -> None:
        """Replace the parameters."""
        self._parameters = dict(params)

    def get_parameters(self) -> dict[str, OrtValue]:
        """The parameters."""
        return dict(self._parameters)


class LoraAdapter:
    """An adapter for `RunOptions.add_active_adapter`. A session copies what was loaded to its device
    at its first run with it."""

    def __init__(self) -> None:
        self.content = AdapterFormat()  #: of the file that was read last

    def Load(self, file_path: str | os.PathLike[str]) -> None:  # its name in onnxruntime
        """Read a file. Raises as `AdapterFormat.read_adapter`."""
        self.content = AdapterFormat.read_adapter(file_path)


def _type_of(number: int, what: str) -> dtypes.DType:
    dtype = dtypes.from_onnx(number)
    if dtype is None or dtype.name == "bool" or dtype.sub_byte_bits or number > _LAST:
        raise TypeError(f"{what} has the element type {dtypes.onnx_name(number).upper()}, which adapters lack")
    return dtype


def _array(parameter: _Parameter, path: Path) -> np.ndarray:
    what = f"the adapter {path}: its parameter {parameter.name!r}"
    try:
        dtype = _type_of(parameter.data_type, what)
    except TypeError as error:
        raise InvalidModelError(str(error)) from None
    shape, size = tuple(parameter.dims), len(parameter.raw_data)
    expected = int(np.prod(shape, dtype=object)) * dtype.itemsize
    try:
        if parameter.name and shape and expected == size:
            return np.frombuffer(parameter.raw_data, np.uint8).copy().view(dtype.numpy).reshape(shape)
    except ValueError:  # negative sizes, or a 0 beside others that no array has
        pass
    raise InvalidModelError(
        f"{what} of {dtype} {list(shape)} has {size} bytes, expected a name, one axis or more, and {expected} bytes"
    )


def _encoded(versions: list[int], parameters: Mapping[str, OrtValue]) -> bytes:
    try:
        import flatbuffers
    except ImportError as error:
        raise VkepError(f"writing adapters needs the package flatbuffers: pip install flatbuffers ({error})") from error

    builder = flatbuffers.Builder(1024)
    made = []
    for name, value in parameters.items():
        what = f"the parameter {name!r}"
        if not isinstance(value, OrtValue):  # a result of texts is an array
            raise TypeError(f"{what} is no tensor of numbers; element type STRING is not in the adapter format")
        _type_of(value.element_type(), what)
        if not value.shape():  # readers refuse it
            raise ValueError(f"{what} has no axis, expected one or more")
        data = np.ascontiguousarray(value.numpy()).reshape(-1).view(np.uint8)
        builder.StartVector(1, data.nbytes, _ALIGNMENT)
        builder.head = builder.Head() - data.nbytes
        builder.Bytes[builder.Head() : builder.Head() + data.nbytes] = data.tobytes()
        raw = builder.EndVector()
        dims = builder.CreateNumpyVector(np.array(value.shape(), np.int64))
        text = builder.CreateString(name)
        builder.StartObject(4)
        builder.PrependUOffsetTRelativeSlot(0, text, 0)
        builder.PrependUOffsetTRelativeSlot(1, dims, 0)
        builder.PrependInt32Slot(2, value.element_type(), 0)
        builder.PrependUOffsetTRelativeSlot(3, raw, 0)
        made.append(builder.EndObject())
    builder.StartVector(4, len(made), 4)
    for offset in reversed(made):
        builder.PrependUOffsetTRelative(offset)
    vector = builder.EndVector()
    builder.StartObject(4)
    for slot, number in enumerate((_VERSION, *versions)):
        builder.PrependInt32Slot(slot, number, 0)
    builder.PrependUOffsetTRelativeSlot(3, vector, 0)
    builder.Finish(builder.EndObject(), _IDENTIFIER)
    return bytes(builder.Output())
