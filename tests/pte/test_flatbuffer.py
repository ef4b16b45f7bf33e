"""The flatbuffer reader: data of an encoder is read back, damaged data is an error."""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, Any

import flatbuffers
import pytest

from vkep.errors import InvalidPteError
from vkep.pte.flatbuffer import (
    INT8,
    INT32,
    UNION,
    Bool,
    Bytes,
    Deprecated,
    EnumField,
    Float64,
    Int32,
    Int64,
    Table,
    UInt8,
    UInt16,
)


class Kind(IntEnum):
    FIRST, SECOND = 0, 5


class Leaf(Table):
    number: Int64
    text: str


class Other(Table):
    flag: Bool


class Root(Table):
    small: UInt16
    size: Annotated[int, INT32.with_default(7)]
    kind: Annotated[Kind, EnumField(INT8, Kind)]
    _gone: Deprecated
    leaf: Leaf | None
    leaves: tuple[Leaf, ...]
    numbers: tuple[Int32, ...]
    kinds: tuple[Annotated[Kind, EnumField(INT8, Kind)], ...]
    data: Bytes
    value: Annotated[Leaf | Other | None, UNION]
    ratio: Float64
    names: tuple[str, ...]
    order: tuple[UInt8, ...]


class Strict(Table):
    leaf: Leaf


class Nested(Table):
    inner: Nested | None


class Wide(Table):
    numbers: tuple[UInt8, ...]


class Many(Table):
    items: tuple[Wide, ...]


def build(fill: Any) -> bytes:
    builder = flatbuffers.Builder(0)
    builder.Finish(fill(builder), file_identifier=b"TEST")
    return bytes(builder.Output())


def leaf(b: Any, number: int, text: str) -> Any:
    string = b.CreateString(text)
    b.StartObject(2)
    b.PrependInt64Slot(0, number, 0)
    b.PrependUOffsetTRelativeSlot(1, string, 0)
    return b.EndObject()


def full(b: Any) -> Any:
    one, two = leaf(b, -5, "straße"), leaf(b, 1 << 40, "")
    b.StartVector(4, 2, 4)
    b.PrependUOffsetTRelative(two)
    b.PrependUOffsetTRelative(one)
    leaves = b.EndVector()
    b.StartVector(4, 3, 4)
    for value in (3, -2, 1):
        b.PrependInt32(value)
    numbers = b.EndVector()
    kinds, data, order = b.CreateByteVector(b"\x05\x00"), b.CreateByteVector(b"bytes"), b.CreateByteVector(b"\2\0\1")
    text = b.CreateString("name")
    b.StartVector(4, 1, 4)
    b.PrependUOffsetTRelative(text)
    names = b.EndVector()
    b.StartObject(1)
    b.PrependBoolSlot(0, True, False)
    other = b.EndObject()
    b.StartObject(14)
    b.PrependUint16Slot(0, 65535, 0)
    b.PrependInt8Slot(2, 5, 0)
    b.PrependUOffsetTRelativeSlot(4, one, 0)
    b.PrependUOffsetTRelativeSlot(5, leaves, 0)
    b.PrependUOffsetTRelativeSlot(6, numbers, 0)
    b.PrependUOffsetTRelativeSlot(7, kinds, 0)
    b.PrependUOffsetTRelativeSlot(8, data, 0)
    b.PrependUint8Slot(9, 2, 0)
    b.PrependUOffsetTRelativeSlot(10, other, 0)
    b.PrependFloat64Slot(11, 0.25, 0)
    b.PrependUOffsetTRelativeSlot(12, names, 0)
    b.PrependUOffsetTRelativeSlot(13, order, 0)
    return b.EndObject()


def test_everything_comes_back() -> None:
    root = Root.read_root(build(full), b"TEST")
    first = Leaf(-5, "straße")
    assert root.small == 65535 and root.size == 7 and root.kind is Kind.SECOND
    assert root.leaf == first and root.leaves == (first, Leaf(1 << 40, ""))
    assert root.leaf is root.leaves[0], "a table met twice is one object"
    assert root.numbers == (1, -2, 3) and root.kinds == (Kind.SECOND, Kind.FIRST)
    assert bytes(root.data) == b"bytes" and root.value == Other(True)
    assert root.ratio == 0.25 and root.names == ("name",) and root.order == (2, 0, 1)


def test_absent_fields_have_their_defaults() -> None:
    def empty(b: Any) -> Any:
        b.StartObject(0)
        return b.EndObject()

    root = Root.read_root(build(empty), b"TEST")
    assert (root.small, root.size, root.kind, root.leaf, root.value) == (0, 7, Kind.FIRST, None, None)
    assert (root.leaves, root.numbers, root.names, bytes(root.data)) == ((), (), (), b"")
    with pytest.raises(InvalidPteError, match=r"Strict\.leaf is missing"):
        Strict.read_root(build(empty), b"TEST")


def test_another_identifier() -> None:
    with pytest.raises(InvalidPteError, match=r"b'TEST' as its file identifier.*expected b'MORE'"):
        Root.read_root(build(full), b"MORE", "the file")


def test_tables_too_deep() -> None:
    def deep(b: Any) -> Any:
        below = 0
        for _ in range(100):
            b.StartObject(1)
            if below:
                b.PrependUOffsetTRelativeSlot(0, below, 0)
            below = b.EndObject()
        return below

    with pytest.raises(InvalidPteError, match="64 deep"):
        Nested.read_root(build(deep), b"TEST")


def test_overlapping_vectors_do_not_multiply() -> None:
    """A file of a megabyte whose vectors all start at the same place would be terabytes if read as it says."""

    def many(b: Any) -> Any:
        numbers = b.CreateByteVector(bytes(200_000))
        rows = []
        for _ in range(2000):
            b.StartObject(1)
            b.PrependUOffsetTRelativeSlot(0, numbers, 0)
            rows.append(b.EndObject())
        b.StartVector(4, len(rows), 4)
        for row in rows:
            b.PrependUOffsetTRelative(row)
        items = b.EndVector()
        b.StartObject(1)
        b.PrependUOffsetTRelativeSlot(0, items, 0)
        return b.EndObject()

    with pytest.raises(InvalidPteError, match="larger than the file"):
        Many.read_root(build(many), b"TEST")


@pytest.mark.parametrize("length", [0, 1, 7, 8, 20])
def test_cut_off(length: int) -> None:
    with pytest.raises(InvalidPteError):
        Root.read_root(build(full)[:length], b"TEST")


def test_every_byte_changed() -> None:
    """Every byte by every bit: an error of the right kind, or another value."""
    data = build(full)
    refused = 0
    for position in range(len(data)):
        for bit in range(8):
            changed = bytearray(data)
            changed[position] ^= 1 << bit
            try:
                Root.read_root(bytes(changed), b"TEST")
            except InvalidPteError:
                refused += 1
    assert refused > len(data)


def test_a_hint_that_is_no_field() -> None:
    class Wrong(Table):
        field: dict[str, int]

    with pytest.raises(TypeError, match="no flatbuffer field"):
        Wrong.read_root(build(full), b"TEST")
