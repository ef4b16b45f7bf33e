"""Replacing the types that a device lacks, and the instructions that compute with them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from vkep.shaders.errors import InvalidSpirvError
from vkep.shaders.spirv import Instruction, Op
from vkep.shaders.words import tables
from vkep.shaders.words.convert import Converter
from vkep.shaders.words.module import Module
from vkep.shaders.words.types import Aggregate, Pointer, Scalar, Vector, register
from vkep.shaders.words.writer import U32

#: decorations that only pointers have: Restrict, Aliased, RestrictPointer, AliasedPointer
_OF_POINTERS = frozenset({19, 20, 5355, 5356})
_NO_CONTRACTION = 42
_ALIGNED = 2


class Lowering(Converter):
    """Lowers one module; `lowered` returns its new bytes.

    Raises `InvalidSpirvError` for an instruction on a lost type that has no replacement here.
    """

    def __init__(self, module: Module, library: Module, widths: Collection[int]) -> None:
        super().__init__(module, library, widths)
        self.glsl = module.imported("GLSL.std.450")
        self._words: dict[int, tuple[int, int]] = {}  # the halves of 64-bit constants
        self._numbers: dict[int, int] = {}  # integer constants
        self._gone: set[int] = set()  # ids that no longer exist

    def lowered(self) -> bytes:
        """The module in which 32-bit words replace the types that the device lacks."""
        module = self.module
        for instruction in module.globals:
            self._global(instruction)
        for instruction in module.functions:
            self._instruction(instruction)
        bodies = self.linker.bodies()
        module.globals, module.functions = self.globals.out, [*self.out, *bodies]
        module.debug = [
            i for i in module.debug if i.opcode not in (Op.NAME, Op.MEMBER_NAME) or i.operands[0] not in self._gone
        ]
        module.annotations = [i for i in module.annotations if self._stays(i)]
        lost = {number for width in self.types.widths for number in tables.CAPABILITIES[width]}
        module.preamble = [i for i in module.preamble if i.opcode != Op.CAPABILITY or i.operands[0] not in lost]
        return module.binary()

    def _stays(self, annotation: Instruction) -> bool:
        target, decoration = annotation.operands[0], annotation.operands[1]
        if target in self._gone:
            return False
        if annotation.opcode != Op.DECORATE:
            return True
        if decoration in _OF_POINTERS:
            of = self.of.get(target)
            held = self.types.of.get(of) if of is not None else None
            return not (
                self.types.is_address(of) or (isinstance(held, Pointer) and self.types.is_address(held.pointee))
            )
        return decoration != _NO_CONTRACTION or target not in self.made

    # ---- types and constants

    def _global(self, instruction: Instruction) -> None:
        opcode, o = instruction
        if opcode == Op.TYPE_FORWARD_POINTER:
            if not self.types.is_address(o[0]):
                self.globals.out.append(instruction)
        elif opcode < Op.TYPE_FORWARD_POINTER and opcode != 1:
            self._type(opcode, o)
        elif opcode in (Op.CONSTANT, Op.SPEC_CONSTANT) and self.types.lost(o[0]):
            self._constant(opcode, o)
        elif opcode == Op.SPEC_CONSTANT_OP and self.types.lost(o[0]):
            self._specialised(o)
        else:
            self.of[o[1]] = o[0]
            if opcode == Op.CONSTANT:
                self._numbers[o[1]] = o[2]
            self.globals.out.append(Instruction(opcode, (self.type(o[0]), *o[1:])))

    def _type(self, opcode: int, o: tuple[int, ...]) -> None:
        lost, found = self.types.lost(o[0]), self.types.of.get(o[0])
        if self.types.is_address(o[0]):
            new = self.globals.pair
        elif lost is not None:
            new = register(lost[0], self.globals)
            if isinstance(found, Vector):
                wide = lost[0].width == 64
                new = (
                    self.globals.array(new, found.length)
                    if wide
                    else self.globals.type(Op.TYPE_VECTOR, new, found.length)
                )
        elif isinstance(found, Aggregate) and self.types.scattered(o[0]) and self.types.has_layout(o[0]):
            self._gone.add(o[0])
            return
        else:
            typed = range(len(o))[tables.TYPES_IN.get(opcode, slice(0))]
            operands = [self.type(id_) if k in typed else id_ for k, id_ in enumerate(o)]
            new = self.globals.type(opcode, *operands[1:], id_=o[0])
        if new != o[0]:
            self.new[o[0]] = new
            self._gone.add(o[0])

    def _constant(self, opcode: int, o: tuple[int, ...]) -> None:
        scalar = self.scalar(o[0])
        if opcode == Op.SPEC_CONSTANT:
            raise InvalidSpirvError(f"a spec constant of type {scalar.kind}{scalar.width}, expected 32 bits")
        self.of[o[1]], self._numbers[o[1]] = o[0], o[2]
        if scalar.width == 64:
            self._halves(o[1], self.globals.constant(o[2]), self.globals.constant(o[3]))
        else:
            word = o[2] if scalar.kind == "int" else o[2] & ((1 << scalar.width) - 1)
            self.globals.out.append(Instruction(Op.CONSTANT, (self.type(o[0]), o[1], word)))

    def _halves(self, id_: int, low: int, high: int, opcode: int = Op.CONSTANT_COMPOSITE) -> None:
        self._words[id_] = (low, high)
        self.globals.out.append(Instruction(opcode, (self.globals.pair, id_, low, high)))

    def _specialised(self, o: tuple[int, ...]) -> None:
        if o[2] != tables.SELECT or self.scalar(o[0]).width != 64:
            raise InvalidSpirvError(f"OpSpecConstantOp {o[2]} of a type that the device lacks has no form in words")
        self.of[o[1]] = o[0]
        halves = []
        for k in range(2):
            halves.append(self.module.new_id())
            chosen = (self._words[o[4]][k], self._words[o[5]][k])
            self.globals.out.append(
                Instruction(Op.SPEC_CONSTANT_OP, (self.globals.uint, halves[k], tables.SELECT, o[3], *chosen))
            )
        self._halves(o[1], halves[0], halves[1], Op.SPEC_CONSTANT_COMPOSITE)

    # ---- instructions

    def _instruction(self, instruction: Instruction) -> None:
        opcode, o = instruction
        if opcode == Op.FUNCTION:
            self.out.append(Instruction(opcode, (self.type(o[0]), o[1], o[2], self.type(o[3]))))
        elif opcode == tables.STORE and self.types.is_address(self.of.get(o[0])):
            self._store(o)
        elif opcode in tables.WITHOUT_RESULT:
            self.out.append(instruction)
        else:
            self.of[o[1]] = o[0]
            self._value(instruction)

    def _value(self, instruction: Instruction) -> None:
        opcode, o = instruction
        type_of = [self.of.get(id_) for id_ in o[2:]]
        lost = self.types.lost(o[0]) is not None
        if opcode == tables.LOAD and self.types.is_address(type_of[0]):
            self.result(o[1], o[0], self._load(o[2], o[0], _alignment(o[3:])))
        elif opcode in tables.ACCESS_CHAINS and self.types.is_address(type_of[0]):
            self._address(o)
        elif opcode in tables.POINTER_CASTS and (
            lost or self.types.lost(type_of[0]) or self._addresses(o[0], type_of[0])
        ):
            self.bits(o)
        elif opcode in tables.PASSED_ON:
            self.out.append(Instruction(opcode, (self.type(o[0]), *o[1:])))
        elif opcode in tables.CONVERSIONS and (lost or self.types.lost(type_of[0])):
            from_, to = self.scalar(self.of[o[2]]), self.scalar(o[0])
            self.each(o, [o[2]], lambda value: self.converted(opcode, value, from_, to))
        elif opcode == Op.EXT_INST and (lost or any(self.types.lost(t) for t in type_of[2:])):
            self._arithmetic(o, (Op.EXT_INST, o[3]), o[4:])
        elif opcode != Op.EXT_INST and (lost or any(self.types.lost(t) for t in type_of[:2])):
            self._arithmetic(o, (opcode,), o[2:])
        else:
            self.out.append(Instruction(opcode, (self.type(o[0]), *o[1:])))

    def _addresses(self, *types: int | None) -> bool:
        return any(self.types.is_address(t) for t in types)

    def _arithmetic(self, o: tuple[int, ...], op: tuple[int, ...], arguments: Sequence[int]) -> None:
        """An instruction that computes elements from elements."""
        operand = self.types.lost(self.of[arguments[0]]) or self.types.lost(o[0])
        if operand is None:
            raise InvalidSpirvError(f"instruction {op} mixes types that the device lacks with others")
        scalar, length = operand
        result = self.scalar(o[0]) if self.types.parts(o[0]) else None
        if scalar.width == 64 and length == 1:
            self.result(o[1], o[0], self._wide(op, scalar, o[0], arguments))
        elif scalar.width == 64:
            raise InvalidSpirvError(f"instruction {op} on vectors of 64-bit elements has no form in words")
        elif scalar.kind == "float":
            self.each(o, arguments, lambda *values: self._half(op, result, values))
        elif result is None:
            self.out.append(Instruction(op[0], o))  # a comparison: words compare like the values in them
        else:
            self.each(o, arguments, lambda *values: self._narrow(op, scalar, result, values))

    def _operation(self, op: tuple[int, ...], type_: int, *values: int) -> int:
        if op[0] == Op.EXT_INST:
            assert self.glsl is not None
            return self.emit(Op.EXT_INST, type_, self.glsl, op[1], *values)
        return self.emit(op[0], type_, *values)

    def _half(self, op: tuple[int, ...], result: Scalar | None, values: Sequence[int]) -> int:
        wide = [self.call("f16_to_f32", value) for value in values]
        if result is None:
            return self._operation(op, self.globals.bool, *wide)
        return self.call("f32_to_f16", self._operation(op, self.globals.float, *wide))

    def _narrow(self, op: tuple[int, ...], scalar: Scalar, result: Scalar, values: Sequence[int]) -> int:
        given = list(values)
        if op[0] == tables.SHIFT_RIGHT_UNSIGNED and scalar.kind == "int":
            given[0] = self.wrapped(given[0], scalar, Scalar("uint", scalar.width))
            return self.wrapped(self._operation(op, self.globals.uint, *given), U32, result)
        return self.wrapped(self._operation(op, self.register(scalar), *given), scalar, result)

    def _wide(self, op: tuple[int, ...], scalar: Scalar, type_: int, arguments: Sequence[int]) -> int:
        if op[0] in tables.BITWISE:
            return self.emit(op[0], self.globals.pair, *arguments)
        if op[0] in tables.SHIFTS:
            return self.call(tables.SHIFTS[op[0]], arguments[0], self.low_word(arguments[1]))
        if op in tables.SAME_WORDS:
            return arguments[0]
        found = tables.FUNCTIONS.get((scalar.kind == "float", *op))
        if found is None:
            raise InvalidSpirvError(f"instruction {op} on 64-bit elements has no form in words")
        values = list(reversed(arguments)) if found.swapped else list(arguments)
        made = self.call(found.name, *values)
        return self.emit(tables.LOGICAL_NOT, self.globals.bool, made) if found.negated else made

    # ---- memory

    def _moved(self, address: int, count: int, stride: int) -> int:
        return self.call("at_offset", address, self.number(count), self.number(stride)) if count else address

    def _load(self, address: int, type_: int, alignment: int) -> int:
        scalar, length = self._elements(type_)
        size = scalar.width // 8
        if size * length % 4 == 0 and alignment >= 4:
            words = [self.call("load_32", self._moved(address, k, 4)) for k in range(size * length // 4)]
            return self.joined(words, type_, (scalar, length))
        loaded = [self.call(f"load_{scalar.width}", self._moved(address, k, size)) for k in range(length)]
        pieces = [self.wrapped(word, U32, scalar) if scalar.kind == "int" and size < 4 else word for word in loaded]
        return pieces[0] if length == 1 else self.emit(tables.CONSTRUCT, self.type(type_), *pieces)

    def _store(self, o: tuple[int, ...]) -> None:
        address, value = o[:2]
        scalar, length = self._elements(self.of[value])
        size = scalar.width // 8
        if size * length % 4 == 0 and _alignment(o[2:]) >= 4:
            for k, word in enumerate(self.split(value, (scalar, length))):
                self.call("store_32", self._moved(address, k, 4), word)
            return
        for k in range(length):
            piece = value if length == 1 else self.element(value, k)
            word = self.cast(piece, scalar, U32) if size < 4 else piece
            self.call(f"store_{scalar.width}", self._moved(address, k, size), word)

    def _elements(self, type_: int) -> tuple[Scalar, int]:
        lost = self.types.lost(type_)
        if lost is None:
            raise InvalidSpirvError("a whole array or struct of types that the device lacks is loaded or stored")
        return lost

    def _address(self, o: tuple[int, ...]) -> None:
        """OpAccessChain from an address."""
        pointer = self.types.of[self.of[o[2]]]
        assert isinstance(pointer, Pointer)
        at, address, offset = pointer.pointee, o[2], 0
        for index in o[3:]:
            found, known = self.types.of[at], self._numbers.get(index)
            if isinstance(found, Aggregate) and found.is_struct:
                assert known is not None, "a struct's member is a constant"
                offset += self.types.offsets[at, known]
                at = found.members[known]
                continue
            if isinstance(found, Vector):
                stride, inner = self.types.size(found.element), found.element
            else:
                assert isinstance(found, Aggregate)
                stride, inner = self.types.strides[at], found.members[0]
            if known is not None:
                offset += known * stride
            else:
                address = self.call("at_offset", address, self.low_word(index), self.number(stride))
            at = inner
        address = self._moved(address, offset, 1)
        if self.types.is_address(o[0]):
            self.result(o[1], o[0], address)
        else:
            self.made.add(o[1])
            self.out.append(Instruction(tables.BITCAST, (self.type(o[0]), o[1], address)))


def _alignment(operands: Sequence[int]) -> int:
    """The alignment in a load's or store's memory operands."""
    if operands and operands[0] & _ALIGNED:
        return operands[1]
    return 1
