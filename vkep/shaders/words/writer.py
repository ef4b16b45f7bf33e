"""Writes instructions on words that replace others."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from vkep.shaders.spirv import Instruction
from vkep.shaders.words import tables
from vkep.shaders.words.link import Linker
from vkep.shaders.words.module import Globals, Module
from vkep.shaders.words.types import Scalar, Types, Vector, register

U32, S32, F32 = Scalar("uint", 32), Scalar("int", 32), Scalar("float", 32)


class Writer:
    """The rewritten module, and the old types of its values."""

    def __init__(self, module: Module, library: Module, widths: Collection[int]) -> None:
        self.module, self.types = module, Types(module, widths)
        self.globals = Globals(module)
        self.linker = Linker(library, self.globals)
        self.out: list[Instruction] = []
        self.new: dict[int, int] = {}  #: types by their old ids
        self.of: dict[int, int] = {}  #: the old type of each value
        self.made: set[int] = set()  #: ids that replace others

    def type(self, old: int) -> int:
        """The present type for values of an old type."""
        return self.new.get(old, old)

    def scalar(self, type_: int) -> Scalar:
        """The id of a type that the device has."""
        parts = self.types.parts(type_)
        assert parts is not None
        return parts[0]

    def emit(self, opcode: int, type_: int, *operands: int) -> int:
        """An instruction with a result of a new type."""
        made = self.module.new_id()
        self.out.append(Instruction(opcode, (type_, made, *operands)))
        return made

    def call(self, name: str, *arguments: int) -> int:
        """Call a function of ``shaders/words.comp``."""
        function, type_ = self.linker.function(name)
        return self.emit(tables.FUNCTION_CALL, type_, function, *arguments)

    def result(self, id_: int, type_: int, value: int) -> None:
        """Set the replacement of the instruction with the result ``id_``."""
        self.made.add(id_)
        self.out.append(Instruction(tables.COPY_OBJECT, (self.type(type_), id_, value)))

    def number(self, value: int) -> int:
        """The id of a 32-bit constant."""
        return self.globals.constant(value)

    def register(self, scalar: Scalar) -> int:
        """The type of values of a scalar type of at most 32 bits, lost or not."""
        if scalar.width in self.types.widths:
            return register(scalar, self.globals)
        return {"int": self.globals.int, "uint": self.globals.uint, "float": self.globals.float}[scalar.kind]

    def cast(self, value: int, from_: Scalar, to: Scalar) -> int:
        """The same 32 bits as another type."""
        old, new = self.register(from_), self.register(to)
        return value if old == new else self.emit(tables.BITCAST, new, value)

    def wrapped(self, value: int, from_: Scalar, to: Scalar) -> int:
        """32 bits as a value of a lost narrower type: its low bits, extended."""
        if to.kind == "int":
            word, by = self.cast(value, from_, S32), self.number(32 - to.width)
            high = self.emit(tables.SHIFT_LEFT, self.globals.int, word, by)
            return self.emit(tables.SHIFT_RIGHT_SIGNED, self.globals.int, high, by)
        word = self.cast(value, from_, U32)
        return self.emit(tables.BITWISE_AND, self.globals.uint, word, self.number((1 << to.width) - 1))

    def each(self, o: tuple[int, ...], arguments: Sequence[int], compute: Callable[..., int]) -> None:
        """The result ``o`` of a scalar or vector type, computed from the elements of its arguments."""
        parts = self.types.parts(o[0])
        length = parts[1] if parts is not None else 1
        if length == 1:
            self.result(o[1], o[0], compute(*arguments))
            return
        made = []
        for k in range(length):
            made.append(compute(*(self.element(a, k) for a in arguments)))
        self.result(o[1], o[0], self.emit(tables.CONSTRUCT, self.type(o[0]), *made))

    def element(self, vector: int, k: int) -> int:
        """Element ``k`` of a vector."""
        found = self.types.of[self.of[vector]]
        assert isinstance(found, Vector)
        return self.emit(tables.EXTRACT, self.type(found.element), vector, k)

    def low_word(self, value: int) -> int:
        """An index or a bit count as a uint."""
        scalar = self.scalar(self.of[value])
        if scalar.width == 64:
            if 64 in self.types.widths:
                return self.emit(tables.EXTRACT, self.globals.uint, value, 0)
            return self.emit(tables.U_CONVERT, self.globals.uint, value)
        if scalar.width < 32 and scalar.width not in self.types.widths:
            return self.emit(tables.U_CONVERT, self.globals.uint, value)
        return self.cast(value, scalar, U32)
