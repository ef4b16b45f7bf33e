"""Constant expressions of a SPIR-V module, evaluated under a specialisation; sizes of shared memory built from them.

Array lengths may depend on spec constants (``shared float tile[TILE][TILE + 1]``), so a module's shared memory is only
known for given values. Types and expressions are plain frozen data, so that a reflection can be pickled.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scalar:
    """A numeric or boolean type; ``kind`` is "uint", "int", "float" or "bool", ``width`` in bits."""

    kind: str
    width: int = 32
    name: str = ""


@dataclass(frozen=True, slots=True)
class Vector:
    """A vector type."""

    element: Scalar
    count: int


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix type."""

    column: Vector
    count: int


@dataclass(frozen=True, slots=True)
class Array:
    """An array type."""

    element: Type
    length: Expression | None  #: None for a runtime array


@dataclass(frozen=True, slots=True)
class Struct:
    """A structure type."""

    id: int
    members: tuple[Type, ...]


@dataclass(frozen=True, slots=True)
class Pointer:
    """A pointer type."""

    pointee: int  #: id of the type pointed to
    storage_class: int


@dataclass(frozen=True, slots=True)
class Opaque:
    """A type whose layout vkep does not know (images, cooperative matrices ...)."""

    opcode: int


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant, or a spec constant's default where ``spec_id`` is set. ``value`` is the word's unsigned value."""

    type: Scalar
    value: int
    spec_id: int | None = None


@dataclass(frozen=True, slots=True)
class Composite:
    """A constant made of parts."""

    parts: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Operation:
    """OpSpecConstantOp; ``arguments`` are expressions, or the literal indices of OpCompositeExtract."""

    type: Scalar
    opcode: int
    arguments: tuple[Expression, ...]
    indices: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Unknown:
    """An expression that is not evaluated here."""


Type = Scalar | Vector | Matrix | Array | Struct | Pointer | Opaque
Expression = Literal | Composite | Operation | Unknown


class NotComputable(Exception):
    """The value depends on an expression that is not evaluated here."""


def _truncated(a: int, b: int) -> int:
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


_COMPOSITE_EXTRACT, _SELECT = 81, 169
#: opcode (SPIR-V specification 3.52.13 to 3.52.16): (arguments read as signed, function)
_OPERATIONS: dict[int, tuple[bool, Callable[..., int]]] = {
    113: (False, operator.pos),
    114: (True, operator.pos),
    126: (True, operator.neg),
    128: (False, operator.add),
    130: (False, operator.sub),
    132: (False, operator.mul),
    134: (False, operator.floordiv),
    135: (True, _truncated),
    137: (False, operator.mod),
    138: (True, lambda a, b: a - b * _truncated(a, b)),
    139: (True, operator.mod),
    164: (False, operator.eq),
    165: (False, operator.ne),
    166: (False, operator.or_),
    167: (False, operator.and_),
    168: (False, operator.not_),
    170: (False, operator.eq),
    171: (False, operator.ne),
    172: (False, operator.gt),
    173: (True, operator.gt),
    174: (False, operator.ge),
    175: (True, operator.ge),
    176: (False, operator.lt),
    177: (True, operator.lt),
    178: (False, operator.le),
    179: (True, operator.le),
    194: (False, operator.rshift),
    195: (True, operator.rshift),
    196: (False, operator.lshift),
    197: (False, operator.or_),
    198: (False, operator.xor),
    199: (False, operator.and_),
    200: (False, operator.invert),
}


def evaluate(expression: Expression, spec: Mapping[int, int]) -> int:
    """The value of an integer or boolean expression, with ``spec`` by constant id (others keep their defaults).

    Raises `NotComputable` for floating-point arithmetic, unknown operations, division by zero and unsuitable shifts.
    """
    scalar, bits = _bits(expression, spec)
    return _signed(scalar, bits) if scalar.kind == "int" else bits


def _signed(scalar: Scalar, bits: int) -> int:
    return bits - (1 << scalar.width) if bits >> (scalar.width - 1) & 1 else bits


def _bits(expression: Expression, spec: Mapping[int, int]) -> tuple[Scalar, int]:
    if isinstance(expression, Literal):
        value = expression.value
        if expression.spec_id is not None and expression.spec_id in spec:
            value = int(spec[expression.spec_id])
        return expression.type, value & ((1 << expression.type.width) - 1)
    if not isinstance(expression, Operation):
        raise NotComputable
    scalar = expression.type
    if expression.opcode == _COMPOSITE_EXTRACT:
        part: Expression = expression.arguments[0]
        for index in expression.indices:
            if not isinstance(part, Composite) or index >= len(part.parts):
                raise NotComputable
            part = part.parts[index]
        return _bits(part, spec)
    values = [_bits(argument, spec) for argument in expression.arguments]
    if expression.opcode == _SELECT:
        return scalar, values[1][1] if values[0][1] else values[2][1]
    if expression.opcode not in _OPERATIONS or any(t.kind == "float" for t, _ in values) or scalar.kind == "float":
        raise NotComputable
    signed, function = _OPERATIONS[expression.opcode]
    arguments = [_signed(t, v) if signed and t.kind != "bool" else v for t, v in values]
    if expression.opcode in (194, 195, 196) and not 0 <= arguments[1] < scalar.width:
        raise NotComputable
    try:
        return scalar, int(function(*arguments)) & ((1 << scalar.width) - 1)
    except (ZeroDivisionError, TypeError) as error:
        raise NotComputable from error


def python_value(literal: Literal) -> int | float | bool:
    """A constant's own value; bfloat16 and other unusual floats stay as their bits."""
    if literal.type.kind == "bool":
        return bool(literal.value)
    if literal.type.kind == "float":
        code = {16: ("<H", "<e"), 32: ("<I", "<f"), 64: ("<Q", "<d")}.get(literal.type.width)
        if code is None or literal.type.name == "bfloat16_t":
            return literal.value
        return float(struct.unpack(code[1], struct.pack(code[0], literal.value & (1 << literal.type.width) - 1))[0])
    return evaluate(Literal(literal.type, literal.value), {})


def std430(type_: Type, spec: Mapping[int, int]) -> tuple[int, int]:
    """Alignment and size of a type in bytes under std430 (Vulkan specification, "Offset and Stride Assignment"), with
    bool as 32 bits. This is how Vulkan counts a workgroup's shared memory against ``maxComputeSharedMemorySize``.

    Raises `NotComputable` for a type without a fixed size.
    """
    if isinstance(type_, Scalar):
        size = 4 if type_.kind == "bool" else type_.width // 8
        return size, size
    if isinstance(type_, Vector):
        _, size = std430(type_.element, spec)
        return size * (4 if type_.count == 3 else type_.count), size * type_.count
    if isinstance(type_, Matrix):
        align, size = std430(type_.column, spec)
        return align, _round_up(size, align) * type_.count
    if isinstance(type_, Array):
        if type_.length is None:
            raise NotComputable
        align, size = std430(type_.element, spec)
        return align, _round_up(size, align) * evaluate(type_.length, spec)
    if isinstance(type_, Struct):
        end, alignment = 0, 1
        for member in type_.members:
            align, size = std430(member, spec)
            end, alignment = _round_up(end, align) + size, max(alignment, align)
        return alignment, _round_up(end, alignment)
    if isinstance(type_, Pointer):
        return 8, 8
    raise NotComputable


def _round_up(value: int, align: int) -> int:
    return -(-value // align) * align
