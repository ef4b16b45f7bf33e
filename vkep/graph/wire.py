"""The large weights of a serialized ModelProto, found without parsing them.

Parsing copies every byte of a model, and protobuf copies a weight again on access. Here a model's bytes are split by
the wire format (protobuf's "Encoding" page): the model without the bytes of its large initializers, which parses fast,
and the positions of those bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from vkep.graph.files import FileBytes

#: onnx.proto: ModelProto.graph, GraphProto.initializer, TensorProto.raw_data
_GRAPH, _INITIALIZER, _RAW_DATA = 7, 5, 9
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
Bytes = memoryview | FileBytes
#: smaller initializers stay in the model
LEAST_BYTES = 4096


@dataclass(frozen=True)
class RawData:
    """The position of an initializer's raw data: its index in the graph's list, and a range of bytes."""

    initializer: int
    start: int
    end: int


@dataclass(frozen=True)
class _Field:
    number: int
    wire: int
    begin: int  #: of the tag
    start: int  #: of the value
    end: int


class _NotThisWay(Exception):
    """The bytes are not a message, or are encoded unusually: the caller then parses all of them."""


def split(data: Bytes) -> tuple[bytes, list[RawData]] | None:
    """Return a model's bytes without the raw data of its large initializers, and the positions of those. None where
    there are none, or where the encoding differs from that of every known exporter (then the parser reports an error,
    if there is one)."""
    try:
        fields = list(_fields(data, 0, len(data)))
        graphs = [f for f in fields if f.number == _GRAPH]
        if len(graphs) != 1 or graphs[0].wire != _LENGTH:
            return None
        graph, found = _without_raw_data(data, graphs[0])
    except _NotThisWay:
        return None
    if not found:
        return None
    parts = [graph if f.number == _GRAPH else bytes(data[f.begin : f.end]) for f in fields]
    return b"".join(parts), found


def _without_raw_data(data: Bytes, graph: _Field) -> tuple[bytes, list[RawData]]:
    parts: list[bytes] = []
    found: list[RawData] = []
    initializers = 0
    kept = graph.start  # the bytes between the initializers are copied unchanged
    for field in _fields(data, graph.start, graph.end):
        if field.number != _INITIALIZER:
            continue
        if field.wire != _LENGTH:
            raise _NotThisWay
        if field.end - field.start >= LEAST_BYTES:
            inner = list(_fields(data, field.start, field.end))
            raw = [f for f in inner if f.number == _RAW_DATA]
            if len(raw) == 1 and raw[0].wire == _LENGTH and raw[0].end - raw[0].start >= LEAST_BYTES:
                found.append(RawData(initializers, raw[0].start, raw[0].end))
                rest = bytes(data[field.start : raw[0].begin]) + bytes(data[raw[0].end : field.end])
                parts += [bytes(data[kept : field.begin]), _message(_INITIALIZER, rest)]
                kept = field.end
        initializers += 1
    parts.append(bytes(data[kept : graph.end]))
    return _message(_GRAPH, b"".join(parts)), found


def _message(number: int, content: bytes) -> bytes:
    return _encoded(number << 3 | _LENGTH) + _encoded(len(content)) + content


def _fields(data: Bytes, at: int, end: int) -> Iterator[_Field]:
    while at < end:
        begin = at
        tag, at = _varint(data, at, end)
        wire, start = tag & 7, at
        if wire == _VARINT:
            _, at = _varint(data, at, end)
        elif wire == _FIXED64:
            at += 8
        elif wire == _LENGTH:
            length, start = _varint(data, at, end)
            at = start + length
        elif wire == _FIXED32:
            at += 4
        else:
            raise _NotThisWay
        if at > end:
            raise _NotThisWay
        yield _Field(tag >> 3, wire, begin, start, at)


def _varint(data: Bytes, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < 64:
        byte: int = data[at]  # type: ignore[assignment]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise _NotThisWay


def _encoded(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
