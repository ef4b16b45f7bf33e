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
#: fields that are searched for weights (of two bytes each, a small file has millions); the rest of a model, which protobuf
#: parses, has at most this many bytes
MOST_FIELDS, MOST_BYTES = 1 << 19, (1 << 31) - 1


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
        return _Search(data).result()
    except _NotThisWay:
        return None


class _Search:
    def __init__(self, data: Bytes) -> None:
        self._data = data
        self._fields_left, self._bytes_left = MOST_FIELDS, MOST_BYTES

    def result(self) -> tuple[bytes, list[RawData]] | None:
        fields = list(self._fields(0, len(self._data)))
        graphs = [f for f in fields if f.number == _GRAPH]
        if len(graphs) != 1 or graphs[0].wire != _LENGTH:
            return None
        graph, found = self._without_raw_data(graphs[0])
        if not found:
            return None
        return b"".join(graph if f.number == _GRAPH else self._copy(f.begin, f.end) for f in fields), found

    def _without_raw_data(self, graph: _Field) -> tuple[bytes, list[RawData]]:
        parts: list[bytes] = []
        found: list[RawData] = []
        initializers = 0
        kept = graph.start  # the bytes between the initializers are copied unchanged
        for field in self._fields(graph.start, graph.end):
            if field.number != _INITIALIZER:
                continue
            if field.wire != _LENGTH:
                raise _NotThisWay
            if field.end - field.start >= LEAST_BYTES:
                raw = [f for f in self._fields(field.start, field.end) if f.number == _RAW_DATA]
                if len(raw) == 1 and raw[0].wire == _LENGTH and raw[0].end - raw[0].start >= LEAST_BYTES:
                    found.append(RawData(initializers, raw[0].start, raw[0].end))
                    rest = self._copy(field.start, raw[0].begin) + self._copy(raw[0].end, field.end)
                    parts += [self._copy(kept, field.begin), _message(_INITIALIZER, rest)]
                    kept = field.end
            initializers += 1
        parts.append(self._copy(kept, graph.end))
        return _message(_GRAPH, b"".join(parts)), found

    def _copy(self, start: int, end: int) -> bytes:
        self._bytes_left -= end - start
        if self._bytes_left < 0:
            raise _NotThisWay
        return bytes(self._data[start:end])

    def _fields(self, at: int, end: int) -> Iterator[_Field]:
        data = self._data
        while at < end:
            self._fields_left -= 1
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
            if at > end or tag < 8 or self._fields_left < 0:  # no field has the number 0
                raise _NotThisWay
            yield _Field(tag >> 3, wire, begin, start, at)


def _message(number: int, content: bytes) -> bytes:
    return _encoded(number << 3 | _LENGTH) + _encoded(len(content)) + content


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
