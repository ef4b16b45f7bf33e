"""The interface of a SPIR-V compute module: arguments, spec constants, workgroup size, shared memory.

Numbers are those of the SPIR-V 1.6 specification (3.20 decorations, 3.7 storage classes, 3.6 execution modes).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from vkep.shaders.constants import (
    Array,
    Composite,
    Expression,
    Literal,
    Matrix,
    NotComputable,
    Opaque,
    Operation,
    Pointer,
    Scalar,
    Struct,
    Type,
    Unknown,
    Vector,
    evaluate,
    python_value,
    std430,
)
from vkep.shaders.errors import InvalidSpirvError
from vkep.shaders.spirv import CAPABILITIES, LOCAL_SIZE_IDS, Instruction, Op, instructions, literal_string, parse_words

ARGUMENT_BLOCK = "ArgsBlock"  #: name of the block from which shaders/args.glsl reads arguments in memory

_PUSH_CONSTANT, _WORKGROUP, _PHYSICAL_STORAGE_BUFFER = 9, 4, 5349
_SPEC_ID, _BUILT_IN, _BINDING, _DESCRIPTOR_SET, _OFFSET = 1, 11, 33, 34, 35
_WORKGROUP_SIZE = 25
_LOCAL_SIZE, _LOCAL_SIZE_ID = 17, 38
_GL_COMPUTE = 5
_COMPOSITE_EXTRACT = 81
_BFLOAT16_ENCODING = 0
#: OpTypeTensorARM, OpTypeCooperativeMatrixKHR and NV: opaque here, but pointers and variables refer to them
_NEW_TYPES = (4163, 4456, 5358)


@dataclass(frozen=True, slots=True)
class Member:
    """One member of the argument block; ``type`` in GLSL's notation, offset and size in bytes (-1 where unknown)."""

    name: str
    type: str
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class SpecConstant:
    """A specialization constant: its id, name, type and default."""

    id: int
    name: str
    type: str
    default: int | float | bool


@dataclass(frozen=True, slots=True)
class Binding:
    """A descriptor that the module declares. vkep's own kernels have none."""

    set: int
    binding: int
    name: str


@dataclass(frozen=True, slots=True)
class SharedVariable:
    """A variable in workgroup memory."""

    name: str
    type: Type


@dataclass(frozen=True, slots=True)
class Reflection:
    """The interface of one compute module."""

    version: tuple[int, int]
    capabilities: tuple[str, ...]
    extensions: tuple[str, ...]
    entry_point: str
    local_size: tuple[int, int, int]  #: as declared; defaults for spec constants
    local_size_ids: tuple[int | None, int | None, int | None]  #: the spec constant that sets it, per dimension
    arguments: tuple[Member, ...]
    arguments_in_memory: bool
    push_constant_bytes: int
    spec_constants: tuple[SpecConstant, ...]  #: sorted by id; the workgroup size's ids included
    bindings: tuple[Binding, ...]
    shared: tuple[SharedVariable, ...]

    @property
    def argument_bytes(self) -> int:
        """End of the argument block's last member, in bytes."""
        return max((m.offset + max(m.size, 0) for m in self.arguments), default=0)

    @property
    def spec_ids(self) -> dict[str, int]:
        """Constant id by name."""
        return {constant.name: constant.id for constant in self.spec_constants}

    def shared_memory_bytes(self, spec: Mapping[str, int] | None = None) -> int | None:
        """Shared memory of one workgroup in bytes under a specialisation (by name; others keep their defaults).

        None where it is not computable (an opaque type, or a length from floating-point arithmetic). Raises
        `ValueError` for a name that is no spec constant of this module.
        """
        ids = self.spec_ids
        unknown = set(spec or {}) - set(ids)
        if unknown:
            raise ValueError(f"no spec constant named {sorted(unknown)}; the module has {sorted(ids)}")
        values = {ids[name]: value for name, value in (spec or {}).items()}
        total = 0
        try:
            for variable in self.shared:
                align, size = std430(variable.type, values)
                total = -(-total // align) * align + size
        except NotComputable:
            return None
        return total


def reflect(binary: bytes) -> Reflection:
    """Read the interface of a module with one compute entry point.

    Raises `InvalidSpirvError` for malformed bytes, for ids outside the module's bound, and for a module that has not
    exactly one compute entry point.
    """
    words = parse_words(binary)
    reader = _Reader(bound=words[3])
    for position, instruction in enumerate(instructions(words)):
        try:
            reader.read(instruction)
        except (IndexError, ValueError) as error:
            if isinstance(error, InvalidSpirvError):
                raise
            raise InvalidSpirvError(
                f"instruction {position} is malformed: opcode {instruction.opcode}, operands {instruction.operands[:8]}"
            ) from error
    return reader.finish((words[1] >> 16 & 0xFF, words[1] >> 8 & 0xFF))


class _Reader:
    """Collects names, decorations, types and constants in one pass: SPIR-V defines each before it is used."""

    def __init__(self, bound: int) -> None:
        self.bound = bound
        self.capabilities: list[str] = []
        self.extensions: list[str] = []
        self.entry_points: list[tuple[int, str]] = []
        self.local_size: tuple[int, ...] | None = None
        self.local_size_operands: tuple[int, ...] | None = None
        self.workgroup_size: int | None = None  # id of the constant decorated as the built-in
        self.names: dict[int, str] = {}
        self.member_names: dict[tuple[int, int], str] = {}
        self.decorations: dict[tuple[int, int], int] = {}
        self.offsets: dict[tuple[int, int], int] = {}
        self.types: dict[int, Type] = {}
        self.forward: set[int] = set()
        self.struct_members: dict[int, tuple[int, ...]] = {}
        self.constants: dict[int, Expression] = {}
        self.spec: list[SpecConstant] = []
        self.variables: list[tuple[int, int, int]] = []  # id, type, storage class
        self.in_function = False

    def _define(self, id_: int) -> int:
        if not 0 < id_ < self.bound:
            raise InvalidSpirvError(f"id {id_} lies outside the module's bound {self.bound}")
        if id_ in self.types or id_ in self.constants:
            raise InvalidSpirvError(f"id {id_} is defined twice")
        return id_

    def _type(self, id_: int) -> Type:
        if id_ not in self.types:
            raise InvalidSpirvError(f"id {id_} is used as a type but is not defined as one before")
        return self.types[id_]

    def _scalar(self, id_: int) -> Scalar:
        type_ = self._type(id_)
        if not isinstance(type_, Scalar):
            raise InvalidSpirvError(f"id {id_} is used as a scalar type but is a {type(type_).__name__}")
        return type_

    def _member_type(self, id_: int) -> Type:
        # OpTypeForwardPointer: the pointer is defined after the struct, so that what it points to is not known yet.
        return Pointer(0, _PHYSICAL_STORAGE_BUFFER) if id_ in self.forward else self._type(id_)

    def _constant(self, id_: int) -> Expression:
        return self.constants.get(id_, Unknown())

    def read(self, instruction: Instruction) -> None:
        opcode, o = instruction
        if opcode == Op.CAPABILITY:
            self.capabilities.append(CAPABILITIES.get(o[0], f"Capability{o[0]}"))
        elif opcode == Op.EXTENSION:
            self.extensions.append(literal_string(o)[0])
        elif opcode == Op.ENTRY_POINT:
            self.entry_points.append((o[0], literal_string(o[2:])[0]))
        elif opcode == Op.EXECUTION_MODE and o[1] == _LOCAL_SIZE:
            self.local_size = (o[2], o[3], o[4])
        elif opcode == Op.EXECUTION_MODE_ID and o[1] == _LOCAL_SIZE_ID:
            self.local_size_operands = (o[2], o[3], o[4])
        elif opcode == Op.NAME:
            self.names[o[0]] = literal_string(o[1:])[0]
        elif opcode == Op.MEMBER_NAME:
            self.member_names[o[0], o[1]] = literal_string(o[2:])[0]
        elif opcode == Op.DECORATE:
            if o[1] == _BUILT_IN and o[2] == _WORKGROUP_SIZE:
                self.workgroup_size = o[0]
            elif o[1] in (_SPEC_ID, _BINDING, _DESCRIPTOR_SET):
                self.decorations[o[0], o[1]] = o[2]
        elif opcode == Op.MEMBER_DECORATE and o[2] == _OFFSET:
            self.offsets[o[0], o[1]] = o[3]
        elif opcode == Op.TYPE_FORWARD_POINTER:
            self.forward.add(o[0])
        elif Op.TYPE_BOOL <= opcode < Op.TYPE_FORWARD_POINTER or opcode in _NEW_TYPES:
            self.types[self._define(o[0])] = self._read_type(opcode, o)
        elif Op.CONSTANT_TRUE <= opcode <= Op.SPEC_CONSTANT_OP:
            self._read_constant(opcode, o)
        elif opcode in (Op.FUNCTION, Op.FUNCTION_END):
            if self.in_function == (opcode == Op.FUNCTION):
                raise InvalidSpirvError("a function begins inside another, or ends before it begins")
            self.in_function = opcode == Op.FUNCTION
        elif opcode == Op.VARIABLE:
            self._define(o[1])
            self.variables.append((o[1], o[0], o[2]))

    def _read_type(self, opcode: int, o: tuple[int, ...]) -> Type:
        if opcode == Op.TYPE_BOOL:
            return Scalar("bool", 32, "bool")
        if opcode in (Op.TYPE_INT, Op.TYPE_FLOAT) and o[1] not in (8, 16, 32, 64):
            raise InvalidSpirvError(f"a scalar type of {o[1]} bits, expected 8, 16, 32 or 64")
        if opcode in (Op.TYPE_VECTOR, Op.TYPE_MATRIX) and not 2 <= o[2] <= 16:
            raise InvalidSpirvError(f"a vector or matrix type of {o[2]} components, expected 2 to 16")
        if opcode == Op.TYPE_INT:
            kind = "int" if o[2] else "uint"
            return Scalar(kind, o[1], kind if o[1] == 32 else f"{kind}{o[1]}_t")
        if opcode == Op.TYPE_FLOAT:
            if len(o) > 2 and o[2] == _BFLOAT16_ENCODING:
                return Scalar("float", o[1], "bfloat16_t")
            return Scalar("float", o[1], {16: "float16_t", 32: "float", 64: "double"}.get(o[1], f"float{o[1]}_t"))
        if opcode == Op.TYPE_VECTOR:
            return Vector(self._scalar(o[1]), o[2])
        if opcode == Op.TYPE_MATRIX:
            column = self._type(o[1])
            return Matrix(column, o[2]) if isinstance(column, Vector) else Opaque(opcode)
        if opcode == Op.TYPE_ARRAY:
            return Array(self._type(o[1]), self._constant(o[2]))
        if opcode == Op.TYPE_RUNTIME_ARRAY:
            return Array(self._type(o[1]), None)
        if opcode == Op.TYPE_STRUCT:
            self.struct_members[o[0]] = o[1:]
            return Struct(o[0], tuple(self._member_type(m) for m in o[1:]))
        if opcode == Op.TYPE_POINTER:
            return Pointer(o[2], o[1])
        return Opaque(opcode)

    def _read_constant(self, opcode: int, o: tuple[int, ...]) -> None:
        id_ = self._define(o[1])
        spec_id = self.decorations.get((id_, _SPEC_ID))
        if opcode in (Op.CONSTANT_TRUE, Op.CONSTANT_FALSE, Op.SPEC_CONSTANT_TRUE, Op.SPEC_CONSTANT_FALSE):
            value = int(opcode in (Op.CONSTANT_TRUE, Op.SPEC_CONSTANT_TRUE))
            self.constants[id_] = Literal(self._scalar(o[0]), value, spec_id)
        elif opcode in (Op.CONSTANT, Op.SPEC_CONSTANT):
            value = o[2] | (o[3] << 32 if len(o) > 3 else 0)
            self.constants[id_] = Literal(self._scalar(o[0]), value, spec_id)
        elif opcode in (Op.CONSTANT_COMPOSITE, Op.SPEC_CONSTANT_COMPOSITE):
            self.constants[id_] = Composite(tuple(self._constant(part) for part in o[2:]))
        elif opcode == Op.SPEC_CONSTANT_OP and isinstance(self._type(o[0]), Scalar):
            extract = o[2] == _COMPOSITE_EXTRACT
            arguments = tuple(self._constant(a) for a in (o[3:4] if extract else o[3:]))
            self.constants[id_] = Operation(self._scalar(o[0]), o[2], arguments, o[4:] if extract else ())
        else:
            self.constants[id_] = Unknown()
        literal = self.constants[id_]
        if spec_id is not None and isinstance(literal, Literal):
            name = self.names.get(id_) or LOCAL_SIZE_IDS.get(spec_id, "")
            constant = SpecConstant(spec_id, name, literal.type.name, python_value(literal))
            if constant not in self.spec:  # gl_WorkGroupSize declares the workgroup size's constants again
                self.spec.append(constant)

    def finish(self, version: tuple[int, int]) -> Reflection:
        if self.in_function:
            raise InvalidSpirvError("the module breaks off inside a function")
        if len(self.entry_points) != 1 or self.entry_points[0][0] != _GL_COMPUTE:
            found = [f"{name} (execution model {model})" for model, name in self.entry_points]
            raise InvalidSpirvError(f"expected one compute entry point, the module has {found or 'none'}")
        size, ids = self._local_size()
        arguments, in_memory, push_bytes = self._arguments()
        bindings = [
            Binding(self.decorations.get((id_, _DESCRIPTOR_SET), 0), number, self.names.get(id_, ""))
            for (id_, decoration), number in self.decorations.items()
            if decoration == _BINDING
        ]
        shared = tuple(
            SharedVariable(self.names.get(id_, ""), self._pointee(type_))
            for id_, type_, storage in self.variables
            if storage == _WORKGROUP
        )
        return Reflection(
            version=version,
            capabilities=tuple(self.capabilities),
            extensions=tuple(self.extensions),
            entry_point=self.entry_points[0][1],
            local_size=size,
            local_size_ids=ids,
            arguments=arguments,
            arguments_in_memory=in_memory,
            push_constant_bytes=push_bytes,
            spec_constants=tuple(sorted(self.spec, key=lambda c: (c.id, c.name))),
            bindings=tuple(sorted(bindings, key=lambda b: (b.set, b.binding))),
            shared=shared,
        )

    def _pointee(self, pointer: int) -> Type:
        type_ = self._type(pointer)
        if not isinstance(type_, Pointer):
            raise InvalidSpirvError(f"a variable's type (id {pointer}) is no pointer")
        return self._type(type_.pointee)

    def _local_size(self) -> tuple[tuple[int, int, int], tuple[int | None, int | None, int | None]]:
        parts: tuple[Expression, ...]
        composite = self.constants.get(self.workgroup_size) if self.workgroup_size is not None else None
        if isinstance(composite, Composite):  # the built-in overrides the execution mode (SPIR-V 3.21)
            parts = composite.parts
        elif self.local_size_operands is not None:
            parts = tuple(self._constant(operand) for operand in self.local_size_operands)
        elif self.local_size is not None:
            x, y, z = self.local_size
            return (x, y, z), (None, None, None)
        else:
            raise InvalidSpirvError("the module declares no workgroup size")
        try:
            x, y, z = (evaluate(part, {}) for part in parts)
        except NotComputable as error:
            raise InvalidSpirvError("the workgroup size is no constant that can be evaluated") from error
        i, j, k = (part.spec_id if isinstance(part, Literal) else None for part in parts)
        return (x, y, z), (i, j, k)

    def _arguments(self) -> tuple[tuple[Member, ...], bool, int]:
        blocks = [type_ for _, type_, storage in self.variables if storage == _PUSH_CONSTANT]
        if len(blocks) > 1:
            raise InvalidSpirvError(f"expected one push constant block at most, the module has {len(blocks)}")
        if not blocks:
            return (), False, 0
        push = self._pointee(blocks[0])
        if not isinstance(push, Struct):
            raise InvalidSpirvError("the push constant variable is no block")
        members = self._members(push)
        push_bytes = max((m.offset + max(m.size, 0) for m in members), default=0)
        only = self._type(self.struct_members[push.id][0]) if len(push.members) == 1 else None
        if isinstance(only, Pointer):
            block = self.types.get(only.pointee)
            if isinstance(block, Struct) and self.names.get(block.id) == ARGUMENT_BLOCK:
                return self._members(block), True, push_bytes
        return members, False, push_bytes

    def _members(self, struct: Struct) -> tuple[Member, ...]:
        members = []
        for index, type_ in enumerate(map(self._type, self.struct_members[struct.id])):
            try:
                size = std430(type_, {})[1]
            except NotComputable:
                size = -1
            name = self.member_names.get((struct.id, index), "")
            members.append(Member(name, self._spell(type_), self.offsets.get((struct.id, index), -1), size))
        return tuple(members)

    def _spell(self, type_: Type) -> str:
        """A type in GLSL's notation; a buffer reference is "pointer" with its block's name."""
        if isinstance(type_, Scalar):
            return type_.name
        if isinstance(type_, Vector):
            prefix = {"uint": "u", "int": "i", "float": "", "bool": "b", "double": "d"}.get(type_.element.name)
            if prefix is None:
                prefix = f"{type_.element.kind[0]}{type_.element.width}"
            return f"{prefix}vec{type_.count}"
        if isinstance(type_, Matrix):
            return f"mat{type_.count}x{type_.column.count}"
        if isinstance(type_, Array):
            try:
                length = "" if type_.length is None else str(evaluate(type_.length, {}))
            except NotComputable:
                length = "?"
            return f"{self._spell(type_.element)}[{length}]"
        if isinstance(type_, Struct):
            return self.names.get(type_.id, "struct")
        if isinstance(type_, Pointer):
            return f"pointer {self.names.get(type_.pointee, '')}".rstrip()
        return f"opaque (opcode {type_.opcode})"
