"""Reads unverified flatbuffers: tables are declared once as dataclasses, and readers are generated from the type hints.

A table is a frozen dataclass, by its base class, whose fields are in the order of their ids::

    class Node(Table):
        kind: UInt32                                # absent: 0
        size: Annotated[int, INT32.with_default(1)] # absent: 1
        name: str                                   # absent: ""
        mode: Annotated[Mode, EnumField(INT8, Mode)]
        _old: Deprecated                            # an id that is no longer read
        parent: Node | None                         # a table that may be absent
        children: tuple[Node, ...]                  # a vector of tables; absent: ()
        shape: tuple[Int32, ...]                    # a vector of scalars
        data: Bytes                                 # [ubyte] as a memoryview of the file
        value: Annotated[A | B | None, UNION]       # members in the order of their type codes; takes two ids

``Node.read_root(data, b"NODE", "the node file")`` gives the root. A hint of a table alone (``Node``) is a required table.

Every offset is held against the buffer, tables met twice are decoded once, depth and total work are bounded by the
buffer's size: wrong bytes raise `InvalidPteError` and nothing else. Format: "FlatBuffer Internals" of flatbuffers' docs.
"""

from __future__ import annotations

import struct
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from enum import IntEnum
from typing import Annotated, Any, ClassVar, TypeVar, Union, get_args, get_origin, get_type_hints

from typing_extensions import dataclass_transform

from vkep.errors import InvalidPteError

#: maximum nesting of tables, as in flatbuffers' own verifier
MAX_DEPTH = 64
T = TypeVar("T", bound="Table")
_UINT32 = struct.Struct("<I")
_INT32 = struct.Struct("<i")
_UINT16 = struct.Struct("<H")
_UINT8 = struct.Struct("<B")
_REQUIRED = object()


@dataclass(frozen=True)
class Scalar:
    """A scalar's encoding in the buffer: a `struct` code, and the value of an absent field."""

    code: str
    default: Any = 0

    def with_default(self, value: Any) -> Scalar:
        """The same type with another default."""
        return replace(self, default=value)


@dataclass(frozen=True)
class EnumField:
    """An enumeration: its scalar, and its Python class. A value that the class lacks is an error."""

    scalar: Scalar
    enum: type[IntEnum]


class _Marker:
    def __init__(self, name: str) -> None:
        self.name = name


UNION, BYTES, DEPRECATED = _Marker("union"), _Marker("bytes"), _Marker("deprecated")
BOOL, INT8, UINT8, INT16, UINT16 = (Scalar(c) for c in "?bBhH")
INT32, UINT32, INT64, UINT64, FLOAT32, FLOAT64 = (Scalar(c) for c in "iIqQfd")
Bool = Annotated[bool, replace(BOOL, default=False)]
Int8 = Annotated[int, INT8]
UInt8 = Annotated[int, UINT8]
Int16 = Annotated[int, INT16]
UInt16 = Annotated[int, UINT16]
Int32 = Annotated[int, INT32]
UInt32 = Annotated[int, UINT32]
Int64 = Annotated[int, INT64]
UInt64 = Annotated[int, UINT64]
Float32 = Annotated[float, FLOAT32]
Float64 = Annotated[float, FLOAT64]
Bytes = Annotated[memoryview, BYTES]
Deprecated = Annotated[None, DEPRECATED]


class FlatBuffer:
    """The bytes of one flatbuffer, and the remaining budget of reading them."""

    def __init__(self, data: bytes | memoryview, what: str) -> None:
        self.view = memoryview(data).cast("B")
        self.size = len(self.view)
        self.what = what
        self._left = 4 * self.size + 1024
        self.depth = 0
        self.known: dict[tuple[Any, int], Any] = {}

    def error(self, problem: str, position: int) -> InvalidPteError:
        """The error that reports where the file is damaged."""
        return InvalidPteError(f"{self.what}: {problem} (at byte {position} of {self.size}); the file is damaged")

    def scalar(self, form: struct.Struct, position: int) -> Any:
        """The number at a position. Raises `InvalidPteError` beyond the file's end."""
        if position < 0 or position + form.size > self.size:
            raise self.error("an offset leads out of the file", position)
        return form.unpack_from(self.view, position)[0]

    def follow(self, position: int) -> int:
        """The target of the offset stored at ``position``."""
        return int(position + self.scalar(_UINT32, position))

    def vector(self, position: int, itemsize: int) -> tuple[int, int]:
        """(first element, count) of the vector that starts at ``position``."""
        count = self.scalar(_UINT32, position)
        if count * itemsize > self.size - position - 4:
            raise self.error(f"a vector of {count} elements is longer than the file", position)
        self.charge(count, position)
        return position + 4, count

    def charge(self, count: int, position: int) -> None:
        """Count elements that are read. Raises `InvalidPteError` beyond what the file's size allows."""
        self._left -= count
        if self._left < 0:
            raise self.error("its parts overlap so that it would be larger than the file", position)


#: reads the field at a position; not called for absent fields; a union has two positions
Read = Union[Callable[[FlatBuffer, int], Any], "_UnionReader"]


@dataclass_transform(frozen_default=True)
class _Declared(type):
    """Makes every table a frozen dataclass with slots."""

    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> Any:
        made = super().__new__(cls, name, bases, namespace)
        return made if "__slots__" in namespace else dataclass(frozen=True, slots=True)(made)


class Table(metaclass=_Declared):
    """Base of declared tables; see the module."""

    __slots__ = ()
    _layout: ClassVar[list[tuple[int, Read | None, Any, str]] | None] = None

    @classmethod
    def read_root(cls: type[T], data: bytes | memoryview, identifier: bytes | None = None, what: str = "buffer") -> T:
        """The root table of a flatbuffer, whose file identifier (bytes 4 to 8) must be ``identifier``.

        Raises `InvalidPteError` for anything else; ``what`` names the file in the message.
        """
        buffer = FlatBuffer(data, what)
        if identifier is not None:
            found = bytes(buffer.view[4:8])
            if found != identifier:
                raise InvalidPteError(
                    f"{what}: got {found!r} as its file identifier (bytes 4 to 8), expected {identifier!r}"
                )
        root: T = _read_table(cls, buffer, buffer.follow(0))
        return root


def _read_table(cls: Any, buffer: FlatBuffer, position: int) -> Any:
    key = (cls, position)
    known = buffer.known.get(key)
    if known is not None:
        return known
    if buffer.depth >= MAX_DEPTH:
        raise buffer.error(f"tables lie more than {MAX_DEPTH} deep", position)
    layout = cls.__dict__.get("_layout") or _layout(cls)
    buffer.charge(1 + len(layout), position)
    vtable = position - buffer.scalar(_INT32, position)
    size = buffer.scalar(_UINT16, vtable)
    inline = buffer.scalar(_UINT16, vtable + 2)
    if size < 4 or size % 2 or vtable + size > buffer.size or inline < 4 or position + inline > buffer.size:
        raise buffer.error(f"no table of kind {cls.__name__}", position)
    buffer.depth += 1
    values = []
    for slot, read, default, name in layout:
        at = 4 + 2 * slot
        offset = buffer.scalar(_UINT16, vtable + at) if at < size else 0
        if offset >= inline:
            raise buffer.error(f"field {cls.__name__}.{name} lies outside its table", position)
        if isinstance(read, _UnionReader):  # its type code is in the slot before
            before = buffer.scalar(_UINT16, vtable + at - 2) if at - 2 < size else 0
            code = buffer.scalar(_UINT8, position + before) if before else 0
            values.append(read.member(buffer, code, position + offset if offset else 0, position))
        elif offset and read is not None:
            values.append(read(buffer, position + offset))
        elif default is _REQUIRED:
            raise buffer.error(f"{cls.__name__}.{name} is missing", position)
        else:
            values.append(default)
    buffer.depth -= 1
    made = buffer.known[key] = cls(*values)
    return made


def _layout(cls: type[Table]) -> list[tuple[int, Read | None, Any, str]]:
    """(slot, reader, default, name) of each field, from the hints; kept on the class."""
    # names in the base class's own hints are those of this module
    namespace = {**globals(), **vars(sys.modules[cls.__module__])}
    hints = get_type_hints(cls, namespace, include_extras=True)
    layout, slot = [], 0
    for field in fields(cls):
        read, default = _reader(hints[field.name])
        slot += isinstance(read, _UnionReader)
        layout.append((slot, read, default, field.name))
        slot += 1
    cls._layout = layout
    return layout


def _reader(hint: Any) -> tuple[Read | None, Any]:
    """The reader of a field with this hint, and the value of an absent one."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _annotated(arguments[0], arguments[1])
    if hint is str:
        return _read_string, ""
    if origin is tuple:
        return _vector_reader(arguments[0]), ()
    if origin in (Union, types.UnionType):
        inner = [a for a in arguments if a is not type(None)]
        if len(inner) != 1:
            raise TypeError(f"{hint}: mark a union with UNION")
        return _reader(inner[0])[0], None
    if isinstance(hint, type) and issubclass(hint, Table):
        return _table_reader(hint), _REQUIRED
    raise TypeError(f"no flatbuffer field for the hint {hint!r}")


def _annotated(base: Any, mark: Any) -> tuple[Read | None, Any]:
    if isinstance(mark, Scalar):
        form = struct.Struct("<" + mark.code)
        return (lambda buffer, position: buffer.scalar(form, position)), mark.default
    if isinstance(mark, EnumField):
        form, enum = struct.Struct("<" + mark.scalar.code), mark.enum
        return _enum_reader(form, enum), next((m for m in enum if m == mark.scalar.default), None)
    if mark is BYTES:
        return _read_bytes, memoryview(b"")
    if mark is DEPRECATED:
        return None, None
    if mark is UNION:
        return _UnionReader([a for a in get_args(base) if a is not type(None)] or [base]), None
    raise TypeError(f"no flatbuffer field for the mark {mark!r}")


def _enum_reader(form: struct.Struct, enum: type[IntEnum]) -> Callable[[FlatBuffer, int], Any]:
    def read(buffer: FlatBuffer, position: int) -> Any:
        value = buffer.scalar(form, position)
        try:
            return enum(value)
        except ValueError:
            known = ", ".join(f"{m.value} {m.name}" for m in enum)
            raise buffer.error(f"{value} is no {enum.__name__} ({known})", position) from None

    return read


def _table_reader(cls: type[Table]) -> Callable[[FlatBuffer, int], Any]:
    return lambda buffer, position: _read_table(cls, buffer, buffer.follow(position))


class _UnionReader:
    def __init__(self, members: list[type[Table]]) -> None:
        self.members = members

    def member(self, buffer: FlatBuffer, code: int, position: int, table: int) -> Any:
        if code == 0:
            return None
        if code > len(self.members) or not position:
            names = ", ".join(m.__name__ for m in self.members)
            raise buffer.error(f"a union of kind {code} without a value, or of none of the kinds {names}", table)
        return _read_table(self.members[code - 1], buffer, buffer.follow(position))


def _read_string(buffer: FlatBuffer, position: int) -> str:
    start, count = buffer.vector(buffer.follow(position), 1)
    try:
        return str(buffer.view[start : start + count], "utf-8")
    except UnicodeDecodeError:
        raise buffer.error("a string is no UTF-8", start) from None


def _read_bytes(buffer: FlatBuffer, position: int) -> memoryview:
    # no elements are created: the view costs nothing, whatever its length
    at = buffer.follow(position)
    count = buffer.scalar(_UINT32, at)
    if count > buffer.size - at - 4:
        raise buffer.error(f"{count} bytes are more than the file has", at)
    return buffer.view[at + 4 : at + 4 + count]


def _vector_reader(item: Any) -> Callable[[FlatBuffer, int], Any]:
    origin, arguments = get_origin(item), get_args(item)
    if origin is Annotated and isinstance(arguments[1], Scalar):
        code, itemsize = arguments[1].code, struct.calcsize("<" + arguments[1].code)

        def scalars(buffer: FlatBuffer, position: int) -> tuple[Any, ...]:
            start, count = buffer.vector(buffer.follow(position), itemsize)
            return struct.unpack_from(f"<{count}{code}", buffer.view, start)

        return scalars
    read, _ = _reader(item)
    if read is None or isinstance(read, _UnionReader):
        raise TypeError(f"no vector of {item!r}")
    stride = 4
    if origin is Annotated and isinstance(arguments[1], EnumField):
        stride = struct.calcsize("<" + arguments[1].scalar.code)

    def items(buffer: FlatBuffer, position: int) -> tuple[Any, ...]:
        start, count = buffer.vector(buffer.follow(position), stride)
        return tuple(read(buffer, start + stride * k) for k in range(count))

    return items
