"""The graph that ExecuTorch's Vulkan backend stores in a delegate: its records, and their decoder.

A delegate's bytes are a header of 30 bytes (magic ``VH00`` at byte 4), a flatbuffer (identifier ``VK00``), and raw
data. Source: ExecuTorch 1.5.1, ``backends/vulkan/serialization`` (schema.fbs, vulkan_graph_builder.py).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Annotated

from vkep.errors import InvalidPteError
from vkep.pte.flatbuffer import (
    INT8,
    INT32,
    UINT8,
    UNION,
    EnumField,
    Int32,
    Table,
    UInt32,
    UInt64,
)
from vkep.pte.schema import BoolList, BoolValue, Double, DoubleList, Int, IntList, Null, String

_HEADER = struct.Struct("<4x4sHIIIQ")
_WHAT = "a Vulkan delegate's data"
#: `VkBytes.offset` of a constant in the program's named data
NAMED = 2**64 - 1

NamedData = Mapping[str, bytes | memoryview] | Callable[[str], bytes | memoryview]


class VkDataType(IntEnum):
    """Element types by the schema's numbers."""

    BOOL = 0
    UINT8 = 1
    INT8 = 2
    INT32 = 3
    FLOAT16 = 4
    FLOAT32 = 5
    FLOAT64 = 6
    INT64 = 7
    UNSET = 127

    @property
    def itemsize(self) -> int:
        """Bytes of an element; 0 for an unknown type."""
        return {0: 1, 1: 1, 2: 1, 3: 4, 4: 2, 5: 4, 6: 8, 7: 8}.get(int(self), 0)


# ---- the flatbuffer's tables


class OperatorCall(Table):
    """One operator: ``args`` are value ids in the order of the ATen schema, with defaults filled in and the output
    last."""

    node_id: UInt32
    name: str
    args: tuple[Int32, ...]


class VkTensor(Table):
    """A tensor value. ``dims`` are upper bounds where the program's shapes are dynamic."""

    datatype: Annotated[VkDataType, EnumField(INT8, VkDataType)] = VkDataType.FLOAT32
    dims: tuple[UInt32, ...] = ()
    constant_id: Annotated[int, INT32] = -1  #: index into the graph's constants, negative for other tensors
    mem_obj_id: Annotated[int, INT32] = -1  #: a hint
    storage_type: Annotated[int, UINT8.with_default(255)] = 255  #: a hint: buffer, texture
    memory_layout: Annotated[int, UINT8.with_default(255)] = 255  #: a hint: which axis is packed
    #: element type of the program's tensor at the delegate's border; UNSET: the same as ``datatype``
    staging_datatype: Annotated[VkDataType, EnumField(INT8.with_default(127), VkDataType)] = VkDataType.UNSET


class SymInt(Table):
    """An integer that the model computes."""

    value: Int32 = 0


class ValueList(Table):
    """Ids of other values: the outputs of an operator that has several, or a list with symbolic integers in it."""

    items: tuple[Int32, ...]


class VkBytes(Table):
    """Where a constant's bytes are: in the named data (``offset`` is `NAMED`), or after the flatbuffer."""

    offset: UInt64
    length: UInt64
    named_key: str = ""


_Kinds = (
    Null | Int | Double | BoolValue | VkTensor | IntList | DoubleList | BoolList | ValueList | String | SymInt
)  # fmt: skip


class _VkValue(Table):
    value: Annotated[_Kinds | None, UNION]


class _VkGraph(Table):
    version: str
    chain: tuple[OperatorCall, ...]
    values: tuple[_VkValue, ...]
    input_ids: tuple[UInt32, ...]
    output_ids: tuple[UInt32, ...]
    constants: tuple[VkBytes, ...]
    shaders: tuple[VkBytes, ...]


#: One value of a graph; scalars, strings and lists of scalars are Python's own, Null is None.
Value = None | bool | int | float | str | tuple[int, ...] | tuple[float, ...] | VkTensor | ValueList | SymInt


@dataclass(frozen=True)
class VkGraph:
    """A decoded graph: operator calls in the order of execution, and the values that they name by index."""

    chain: tuple[OperatorCall, ...]
    values: tuple[Value, ...]
    input_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    constants: tuple[VkBytes, ...] = ()
    data: memoryview = field(default=memoryview(b""), repr=False)  #: the raw bytes after the flatbuffer
    version: str = "0"

    def constant(self, index: int, named_data: NamedData) -> memoryview:
        """The bytes of constant ``index``. Raises `InvalidPteError` where they are missing."""
        if not 0 <= index < len(self.constants):
            raise InvalidPteError(f"{_WHAT}: constant {index} is asked for; it has {len(self.constants)}")
        entry = self.constants[index]
        if entry.named_key:
            try:
                found = named_data(entry.named_key) if callable(named_data) else named_data[entry.named_key]
            except KeyError:
                raise InvalidPteError(
                    f"{_WHAT} reads the named data {entry.named_key!r}, which neither the program nor the data files "
                    "given with it have"
                ) from None
            view = memoryview(found).cast("B")
            if len(view) < entry.length:
                raise InvalidPteError(
                    f"{_WHAT}: the named data {entry.named_key!r} has {len(view)} bytes, expected {entry.length}"
                )
            return view[: entry.length]
        if entry.offset + entry.length > len(self.data):
            raise InvalidPteError(
                f"{_WHAT}: constant {index} takes {entry.length} bytes at {entry.offset} of {len(self.data)}"
            )
        return self.data[entry.offset : entry.offset + entry.length]


def decode_vk_graph(blob: bytes | memoryview) -> VkGraph:
    """Decode the graph of a Vulkan delegate's data. Raises `InvalidPteError` for any other data."""
    view = memoryview(blob).cast("B")
    if len(view) < _HEADER.size:
        raise InvalidPteError(f"{_WHAT}: got {len(view)} bytes, expected a header of {_HEADER.size}")
    magic, length, start, size, data_start, data_size = _HEADER.unpack_from(view)
    if magic != b"VH00":
        raise InvalidPteError(f"{_WHAT}: got the magic {magic!r} at byte 4, expected b'VH00'")
    if length != _HEADER.size or start + size > len(view) or data_start + data_size > len(view):
        raise InvalidPteError(
            f"{_WHAT}: its header ({length} bytes) puts the graph at {start} ({size} bytes) and the data at {data_start} "
            f"({data_size} bytes) of {len(view)}: the file is damaged"
        )
    root = _VkGraph.read_root(view[start : start + size], b"VK00", _WHAT)
    if root.shaders:
        raise InvalidPteError(f"{_WHAT} brings {len(root.shaders)} shaders of its own, which vkep does not run")
    graph = VkGraph(
        chain=root.chain,
        values=tuple(_plain(v.value) for v in root.values),
        input_ids=root.input_ids,
        output_ids=root.output_ids,
        constants=root.constants,
        data=view[data_start : data_start + data_size],
        version=root.version,
    )
    check_graph(graph)
    return graph


def _plain(value: _Kinds | None) -> Value:
    if value is None or isinstance(value, Null):
        return None
    return value if isinstance(value, VkTensor | ValueList | SymInt) else value.value


def check_graph(graph: VkGraph) -> None:
    """Check that every id refers to a value, and every constant to bytes of the tensor's size. Raises
    `InvalidPteError`."""

    def check(ids: tuple[int, ...], where: str) -> None:
        wrong = next((i for i in ids if not 0 <= i < len(graph.values)), None)
        if wrong is not None:
            raise InvalidPteError(f"{_WHAT}: {where} names value {wrong} of {len(graph.values)}")

    check(graph.input_ids, "an input")
    check(graph.output_ids, "an output")
    for call in graph.chain:
        check(call.args, f"operator {call.name!r}")
    for index, value in enumerate(graph.values):
        if isinstance(value, ValueList):
            check(value.items, f"list {index}")
            if any(isinstance(graph.values[i], ValueList) for i in value.items):
                raise InvalidPteError(f"{_WHAT}: list {index} has lists in it")
        elif isinstance(value, VkTensor):
            if value.datatype is VkDataType.UNSET:
                raise InvalidPteError(f"{_WHAT}: tensor {index} has no element type")
            if math.prod(filter(None, value.dims)) >= 1 << 60:
                raise InvalidPteError(f"{_WHAT}: tensor {index} has the dimensions {list(value.dims)}")
            if value.constant_id >= 0:
                _check_constant(graph, index, value)


def _check_constant(graph: VkGraph, index: int, tensor: VkTensor) -> None:
    if tensor.constant_id >= len(graph.constants):
        raise InvalidPteError(f"{_WHAT}: tensor {index} is constant {tensor.constant_id} of {len(graph.constants)}")
    entry, needed = graph.constants[tensor.constant_id], math.prod(tensor.dims) * tensor.datatype.itemsize
    if entry.length < needed:
        raise InvalidPteError(
            f"{_WHAT}: tensor {index} ({tensor.datatype.name} {list(tensor.dims)}) needs {needed} bytes, its constant has "
            f"{entry.length}"
        )
