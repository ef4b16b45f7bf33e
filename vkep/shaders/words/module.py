"""A SPIR-V module by sections (SPIR-V specification 2.4), to be changed and written again."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from vkep.shaders.spirv import HEADER_WORDS, Instruction, Op, instructions, literal_string, parse_words

_PREAMBLE = frozenset({Op.CAPABILITY, Op.EXTENSION, Op.EXT_INST_IMPORT, 14, Op.ENTRY_POINT, Op.EXECUTION_MODE, 331})
_DEBUG = frozenset({Op.SOURCE, Op.SOURCE_CONTINUED, Op.SOURCE_EXTENSION, Op.NAME, Op.MEMBER_NAME, Op.STRING, 330})
_ANNOTATIONS = frozenset({Op.DECORATE, Op.MEMBER_DECORATE, 73, 74, 75, 332, 5632, 5633})
_ARRAY_STRIDE, _OFFSET = 6, 35


@dataclass
class Module:
    """A SPIR-V module as lists of instructions."""

    header: tuple[int, ...]
    bound: int
    preamble: list[Instruction] = field(default_factory=list)
    debug: list[Instruction] = field(default_factory=list)
    annotations: list[Instruction] = field(default_factory=list)
    globals: list[Instruction] = field(default_factory=list)  #: types, constants, variables
    functions: list[Instruction] = field(default_factory=list)

    @classmethod
    def parse(cls, binary: bytes) -> Module:
        """Raises `InvalidSpirvError` for malformed bytes."""
        words = parse_words(binary)
        module = cls(words[:HEADER_WORDS], words[3])
        sections = {
            **dict.fromkeys(_PREAMBLE, module.preamble),
            **dict.fromkeys(_DEBUG, module.debug),
            **dict.fromkeys(_ANNOTATIONS, module.annotations),
        }
        for instruction in instructions(words):
            if module.functions or instruction.opcode == Op.FUNCTION:
                module.functions.append(instruction)
            else:
                sections.get(instruction.opcode, module.globals).append(instruction)
        return module

    def binary(self) -> bytes:
        """The module's bytes, little-endian."""
        words = [*self.header[:3], self.bound, *self.header[4:]]
        for section in (self.preamble, self.debug, self.annotations, self.globals, self.functions):
            for opcode, operands in section:
                words.append((len(operands) + 1) << 16 | opcode)
                words += operands
        return struct.pack(f"<{len(words)}I", *words)

    def new_id(self) -> int:
        """An id that nothing uses yet."""
        self.bound += 1
        return self.bound - 1

    def imported(self, name: str) -> int | None:
        """The id of a set of extended instructions, None where it is not imported."""
        for opcode, operands in self.preamble:
            if opcode == Op.EXT_INST_IMPORT and literal_string(operands[1:])[0] == name:
                return operands[0]
        return None

    def strides(self) -> dict[int, int]:
        """Bytes from element to element, by the id of an array type."""
        decorated = (o for opcode, o in self.annotations if opcode == Op.DECORATE and o[1] == _ARRAY_STRIDE)
        return {o[0]: o[2] for o in decorated}

    def offsets(self) -> dict[tuple[int, int], int]:
        """Byte offsets of members, by the id of a struct type and the member's number."""
        decorated = (o for opcode, o in self.annotations if opcode == Op.MEMBER_DECORATE and o[2] == _OFFSET)
        return {(o[0], o[1]): o[3] for o in decorated}


class Globals:
    """The types and constants of a module that is being rewritten; those that SPIR-V requires to be unique are."""

    _ONCE = frozenset({19, *range(Op.TYPE_BOOL, Op.TYPE_MATRIX + 1), Op.TYPE_POINTER, Op.TYPE_FUNCTION})

    def __init__(self, module: Module) -> None:
        self.module = module
        self.out: list[Instruction] = []
        self._known: dict[tuple[int, tuple[int, ...]], int] = {}
        given = {(i.opcode, i.operands[1:]): i.operands[0] for i in module.globals if i.opcode in self._ONCE}

        def first(opcode: int, *operands: int) -> int:
            return self.type(opcode, *operands, id_=given.get((opcode, operands)))

        self.uint, self.int = first(Op.TYPE_INT, 32, 0), first(Op.TYPE_INT, 32, 1)
        self.float, self.bool = first(Op.TYPE_FLOAT, 32), first(Op.TYPE_BOOL)
        self.pair = first(Op.TYPE_VECTOR, self.uint, 2)

    def type(self, opcode: int, *operands: int, id_: int | None = None) -> int:
        """The id of a type, which is added where it is new (as ``id_``)."""
        key = (opcode, operands)
        if opcode in self._ONCE and key in self._known:
            return self._known[key]
        made = self._known[key] = self.module.new_id() if id_ is None else id_
        self.out.append(Instruction(opcode, (made, *operands)))
        return made

    def array(self, element: int, length: int) -> int:
        """An array that is not in memory with a layout."""
        key = (-1, (element, length))
        if key not in self._known:
            self.type(Op.TYPE_ARRAY, element, self.constant(length))
            self._known[key] = self.out[-1].operands[0]
        return self._known[key]

    def constant(self, value: int, type_: int | None = None) -> int:
        """A number of 32 bits: a uint, or another type by its bits."""
        key = (Op.CONSTANT, (self.uint if type_ is None else type_, value & 0xFFFFFFFF))
        if key not in self._known:
            self._known[key] = self.module.new_id()
            self.out.append(Instruction(Op.CONSTANT, (key[1][0], self._known[key], key[1][1])))
        return self._known[key]


def operand_ids(instruction: Instruction) -> Iterable[int]:
    """Positions of the operands that are ids, for the instructions that ``shaders/words.comp`` compiles to."""
    opcode, operands = instruction
    if opcode == 251:  # OpSwitch: a literal before each label
        return (0, 1, *range(3, len(operands), 2))
    literals = _LITERALS_AT.get(opcode)
    return [k for k in range(len(operands)) if literals is None or not literals(k)]


def _from(first: int) -> Sequence[int]:
    return range(first, 1 << 16)


#: opcode -> whether an operand is a literal
_LITERALS_AT = {
    opcode: positions.__contains__
    for opcode, positions in {
        Op.TYPE_INT: _from(1),
        Op.TYPE_FLOAT: _from(1),
        Op.TYPE_VECTOR: (2,),
        Op.TYPE_POINTER: (1,),
        Op.CONSTANT: _from(2),
        Op.EXT_INST: (3,),
        Op.FUNCTION: (2,),
        Op.VARIABLE: (2,),
        61: _from(3),  # OpLoad
        62: _from(2),  # OpStore
        79: _from(4),  # OpVectorShuffle
        81: _from(3),  # OpCompositeExtract
        82: _from(4),  # OpCompositeInsert
        246: _from(2),  # OpLoopMerge
        247: _from(1),  # OpSelectionMerge
        250: _from(3),  # OpBranchConditional
    }.items()
}
