"""The original types of a module that is lowered, and which of them change."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from vkep.shaders.spirv import Op
from vkep.shaders.words.module import Globals, Module

PHYSICAL = 5349  #: the storage class of memory at buffer addresses


class Scalar(NamedTuple):
    """A number or a bool."""

    kind: str  #: "int", "uint" or "float"
    width: int


class Vector(NamedTuple):
    """A vector."""

    element: int
    length: int


class Pointer(NamedTuple):
    """A pointer."""

    storage: int
    pointee: int


class Aggregate(NamedTuple):
    """A struct's members, or an array's element."""

    is_struct: bool
    members: tuple[int, ...]


Type = Scalar | Vector | Pointer | Aggregate


class Types:
    """The original types of ``module`` by id, and their replacements where ``widths`` are lost."""

    def __init__(self, module: Module, widths: Collection[int]) -> None:
        self.widths = widths
        self.of: dict[int, Type] = {}
        for opcode, o in module.globals:
            if opcode == Op.TYPE_INT:
                self.of[o[0]] = Scalar("int" if o[2] else "uint", o[1])
            elif opcode == Op.TYPE_FLOAT and len(o) == 2:  # else bfloat16
                self.of[o[0]] = Scalar("float", o[1])
            elif opcode == Op.TYPE_VECTOR:
                self.of[o[0]] = Vector(o[1], o[2])
            elif opcode == Op.TYPE_POINTER:
                self.of[o[0]] = Pointer(o[1], o[2])
            elif opcode in (Op.TYPE_ARRAY, Op.TYPE_RUNTIME_ARRAY):
                self.of[o[0]] = Aggregate(False, (o[1],))
            elif opcode == Op.TYPE_STRUCT:
                self.of[o[0]] = Aggregate(True, o[1:])
        self.strides, self.offsets = module.strides(), module.offsets()

    def parts(self, type_: int | None) -> tuple[Scalar, int] | None:
        """The scalar of a scalar or vector type, and the number of components."""
        found = self.of.get(type_) if type_ is not None else None
        if isinstance(found, Vector):
            scalar = self.of.get(found.element)
            return (scalar, found.length) if isinstance(scalar, Scalar) else None
        return (found, 1) if isinstance(found, Scalar) else None

    def lost(self, type_: int | None) -> tuple[Scalar, int] | None:
        """`parts` where the device lacks the type."""
        parts = self.parts(type_)
        return parts if parts is not None and parts[0].width in self.widths else None

    def scattered(self, type_: int) -> bool:
        """Whether the layout in memory differs from the new type's: elements of words, or vectors of 64-bit
        elements."""
        lost, found = self.lost(type_), self.of.get(type_)
        if lost is not None:
            return lost[0].width < 32 or lost[1] > 1
        return isinstance(found, Aggregate) and any(self.scattered(member) for member in found.members)

    def is_address(self, type_: int | None) -> bool:
        """Whether a type is a pointer to data with another layout: it becomes the address."""
        found = self.of.get(type_) if type_ is not None else None
        return isinstance(found, Pointer) and found.storage == PHYSICAL and self.scattered(found.pointee)

    def has_layout(self, type_: int) -> bool:
        """Whether an array or struct has a memory layout."""
        return type_ in self.strides or (type_, 0) in self.offsets

    def size(self, type_: int) -> int:
        """Bytes of a scalar or vector in memory."""
        parts = self.parts(type_)
        assert parts is not None
        return parts[0].width // 8 * parts[1]


def register(scalar: Scalar, globals_: Globals) -> int:
    """The type of values of a lost scalar type."""
    if scalar.width == 64:
        return globals_.pair
    return globals_.int if scalar.kind == "int" else globals_.uint
