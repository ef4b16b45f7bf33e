"""Copies functions of one SPIR-V module into another."""

from __future__ import annotations

from vkep.shaders.errors import InvalidSpirvError
from vkep.shaders.spirv import Instruction, Op, literal_string
from vkep.shaders.words.module import Globals, Module, operand_ids

_GLSL = "GLSL.std.450"


class Linker:
    """Functions of ``library`` by name, in the module whose types and constants ``globals_`` holds."""

    def __init__(self, library: Module, globals_: Globals) -> None:
        self._library, self._globals = library, globals_
        self._ids: dict[int, int] = {}
        self._defined = {_result(i): i for i in library.globals if i.opcode != Op.TYPE_FORWARD_POINTER}
        self._bodies: dict[int, list[Instruction]] = {}
        for instruction in library.functions:
            if instruction.opcode == Op.FUNCTION:
                body = self._bodies[instruction.operands[1]] = []
            body.append(instruction)
        names = {o[0]: literal_string(o[1:])[0] for opcode, o in library.debug if opcode == Op.NAME}
        self._named = {names[id_].split("(")[0]: id_ for id_ in self._bodies}
        self._linked: list[int] = []

    def function(self, name: str) -> tuple[int, int]:
        """The ids of a function and of the type of its result, in the module that is written. Raises
        `InvalidSpirvError` for an unknown name."""
        try:
            found = self._named[name]
        except KeyError:
            raise InvalidSpirvError(f"shaders/words.comp has no function {name!r}") from None
        return self._function(found), self._global(self._bodies[found][0].operands[0])

    def bodies(self) -> list[Instruction]:
        """The requested functions, and those that they call."""
        made = []
        for id_ in self._linked:  # grows during the loop
            made += [self._moved(instruction) for instruction in self._bodies[id_]]
        return made

    def _function(self, id_: int) -> int:
        if id_ not in self._ids:
            self._ids[id_] = self._globals.module.new_id()
            self._linked.append(id_)
        return self._ids[id_]

    def _moved(self, instruction: Instruction) -> Instruction:
        operands = list(instruction.operands)
        for k in operand_ids(instruction):
            operands[k] = self._id(operands[k])
        return Instruction(instruction.opcode, tuple(operands))

    def _id(self, id_: int) -> int:
        if id_ in self._bodies:
            return self._function(id_)
        if id_ in self._defined:
            return self._global(id_)
        if id_ not in self._ids:
            glsl = id_ == self._library.imported(_GLSL)
            known = self._globals.module.imported(_GLSL) if glsl else None
            self._ids[id_] = self._globals.module.new_id() if known is None else known
            if glsl and known is None:
                raise InvalidSpirvError(f"a module without {_GLSL} calls a function with it")
            self._annotate(id_)
        return self._ids[id_]

    def _global(self, id_: int) -> int:
        if id_ not in self._ids:
            opcode, operands = self._moved_global(self._defined[id_])
            if opcode < Op.TYPE_FORWARD_POINTER:
                self._ids[id_] = self._globals.type(opcode, *operands[1:])
            elif opcode == Op.CONSTANT:
                self._ids[id_] = self._globals.constant(operands[2], operands[0])
            else:
                self._ids[id_] = self._globals.module.new_id()
                self._globals.out.append(Instruction(opcode, (operands[0], self._ids[id_], *operands[2:])))
            self._annotate(id_)
        return self._ids[id_]

    def _annotate(self, id_: int) -> None:
        for kind, operands in self._library.annotations:
            if operands[0] == id_:
                self._globals.module.annotations.append(Instruction(kind, (self._ids[id_], *operands[1:])))

    def _moved_global(self, instruction: Instruction) -> Instruction:
        at = 0 if instruction.opcode < Op.TYPE_FORWARD_POINTER else 1
        operands = list(instruction.operands)
        for k in operand_ids(instruction):
            if k != at:
                operands[k] = self._id(operands[k])
        return Instruction(instruction.opcode, tuple(operands))


def _result(instruction: Instruction) -> int:
    return instruction.operands[0 if instruction.opcode < Op.TYPE_FORWARD_POINTER else 1]
