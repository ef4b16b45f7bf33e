"""Reading SPIR-V's binary form (SPIR-V specification 2.3, "Physical Layout of a SPIR-V Module and Instruction")."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from vkep.shaders.errors import InvalidSpirvError

MAGIC = 0x07230203
HEADER_WORDS = 5
#: spec constant ids of the workgroup size (docs/architecture.md, "Kernel contract")
LOCAL_SIZE_IDS = {1: "LOCAL_X", 2: "LOCAL_Y", 3: "LOCAL_Z"}
#: those of the grid of a folded call (``shaders/workgroup.glsl``)
FOLD_IDS = {32: "FOLD_X", 33: "FOLD_Y", 34: "FOLD_Z"}
_SPEC_ID = 1  # the decoration (SPIR-V specification 3.20)


class Op:
    """Opcode numbers (SPIR-V specification 3.52) of the instructions that vkep reads."""

    SOURCE_CONTINUED, SOURCE, SOURCE_EXTENSION, NAME, MEMBER_NAME, STRING, LINE = 2, 3, 4, 5, 6, 7, 8
    EXTENSION, EXT_INST_IMPORT, EXT_INST = 10, 11, 12
    ENTRY_POINT, EXECUTION_MODE, CAPABILITY = 15, 16, 17
    TYPE_BOOL, TYPE_INT, TYPE_FLOAT, TYPE_VECTOR, TYPE_MATRIX = 20, 21, 22, 23, 24
    TYPE_ARRAY, TYPE_RUNTIME_ARRAY, TYPE_STRUCT, TYPE_POINTER = 28, 29, 30, 32
    TYPE_FUNCTION, TYPE_FORWARD_POINTER = 33, 39
    CONSTANT_TRUE, CONSTANT_FALSE, CONSTANT, CONSTANT_COMPOSITE = 41, 42, 43, 44
    SPEC_CONSTANT_TRUE, SPEC_CONSTANT_FALSE, SPEC_CONSTANT = 48, 49, 50
    SPEC_CONSTANT_COMPOSITE, SPEC_CONSTANT_OP = 51, 52
    FUNCTION, FUNCTION_END, VARIABLE, DECORATE, MEMBER_DECORATE = 54, 56, 59, 71, 72
    NO_LINE, MODULE_PROCESSED, EXECUTION_MODE_ID = 317, 330, 331


class Instruction(NamedTuple):
    """One SPIR-V instruction: opcode and operand words."""

    opcode: int
    operands: tuple[int, ...]  #: the words after the first


def is_spirv(content: bytes) -> bool:
    """Whether a file starts as SPIR-V does, in either byte order."""
    return content[:4] in (struct.pack("<I", MAGIC), struct.pack(">I", MAGIC))


def parse_words(binary: bytes) -> tuple[int, ...]:
    """The module's 32-bit words in host order; either byte order is read, as the magic number tells.

    Raises `InvalidSpirvError` for anything but whole words behind a SPIR-V header.
    """
    if len(binary) < HEADER_WORDS * 4 or len(binary) % 4:
        raise InvalidSpirvError(
            f"no SPIR-V: got {len(binary)} bytes, expected a multiple of 4 and at least {HEADER_WORDS * 4}"
        )
    for order in "<>":
        if struct.unpack_from(order + "I", binary)[0] == MAGIC:
            words = struct.unpack(f"{order}{len(binary) // 4}I", binary)
            break
    else:
        raise InvalidSpirvError(f"no SPIR-V: the first word is 0x{binary[:4].hex()}, expected the magic 0x{MAGIC:08x}")
    major, minor = words[1] >> 16 & 0xFF, words[1] >> 8 & 0xFF
    if major != 1 or words[1] & 0xFF0000FF:
        raise InvalidSpirvError(f"SPIR-V version word 0x{words[1]:08x} ({major}.{minor}) is unknown, expected 1.x")
    if words[3] == 0:
        raise InvalidSpirvError("the module's id bound is 0, expected at least 1")
    return words


def instructions(words: tuple[int, ...]) -> Iterator[Instruction]:
    """The instructions in order. Raises `InvalidSpirvError` where a length exceeds the module."""
    at, end = HEADER_WORDS, len(words)
    while at < end:
        count, opcode = words[at] >> 16, words[at] & 0xFFFF
        if count == 0 or at + count > end:
            raise InvalidSpirvError(
                f"instruction at word {at} (opcode {opcode}) claims {count} words, but {end - at} are left"
            )
        yield Instruction(opcode, words[at + 1 : at + count])
        at += count


def literal_string(words: tuple[int, ...]) -> tuple[str, int]:
    """A nul-terminated UTF-8 literal and the number of words it takes (SPIR-V specification 2.2.1). Raises
    `InvalidSpirvError`."""
    raw = struct.pack(f"<{len(words)}I", *words)
    end = raw.find(b"\0")
    if end < 0:
        raise InvalidSpirvError("a literal string has no terminating zero")
    try:
        return raw[:end].decode("utf-8"), end // 4 + 1
    except UnicodeDecodeError as error:
        raise InvalidSpirvError(f"a literal string is not UTF-8: {error}") from error


def spec_constant_ids(binary: bytes) -> dict[str, int]:
    """The ids of a module's spec constants by name, as `vkep.shaders.reflect` reads them, from the first instructions
    alone: creating pipelines of cached modules waits for this. Raises `InvalidSpirvError` for malformed bytes."""
    names: dict[int, tuple[int, ...]] = {}
    decorated: dict[int, int] = {}
    for opcode, operands in instructions(parse_words(binary)):
        try:
            if opcode == Op.NAME:
                names[operands[0]] = operands[1:]
            elif opcode == Op.DECORATE and operands[1] == _SPEC_ID:
                decorated[operands[0]] = operands[2]
            elif Op.TYPE_BOOL <= opcode < Op.TYPE_FORWARD_POINTER or opcode == Op.FUNCTION:
                break  # names and decorations come first (SPIR-V specification 2.4)
        except IndexError as error:
            raise InvalidSpirvError(f"an instruction is malformed: opcode {opcode}, operands {operands[:8]}") from error
    named = {constant: literal_string(names[constant])[0] for constant in decorated if constant in names}
    return {named.get(constant) or LOCAL_SIZE_IDS.get(id_, ""): id_ for constant, id_ in decorated.items()}


def strip_sources(binary: bytes) -> bytes:
    """The module without embedded sources, file names, line numbers and processing notes; names stay.

    Compilers write absolute include paths there, so that the same GLSL would result in other bytes in another folder,
    and miss the pipeline cache. Modules with non-semantic instructions (debug printf, shader debug info) keep their
    strings, since those refer to them. Words come back little-endian.
    """
    words = parse_words(binary)
    parsed = list(instructions(words))
    drop = {Op.SOURCE_CONTINUED, Op.SOURCE, Op.SOURCE_EXTENSION, Op.LINE, Op.NO_LINE, Op.MODULE_PROCESSED}
    non_semantic = any(
        i.opcode == Op.EXT_INST_IMPORT and literal_string(i.operands[1:])[0].startswith("NonSemantic.") for i in parsed
    )
    if not non_semantic:
        drop.add(Op.STRING)
    kept: list[int] = list(words[:HEADER_WORDS])
    for opcode, operands in parsed:
        if opcode not in drop:
            kept.append((len(operands) + 1) << 16 | opcode)
            kept.extend(operands)
    return struct.pack(f"<{len(kept)}I", *kept)


#: names of the capabilities (SPIR-V specification 3.31) that compute shaders declare
CAPABILITIES = {
    0: "Matrix",
    1: "Shader",
    4: "Addresses",
    9: "Float16",
    10: "Float64",
    11: "Int64",
    12: "Int64Atomics",
    22: "Int16",
    39: "Int8",
    49: "StorageImageExtendedFormats",
    50: "ImageQuery",
    55: "StorageImageReadWithoutFormat",
    56: "StorageImageWriteWithoutFormat",
    61: "GroupNonUniform",
    62: "GroupNonUniformVote",
    63: "GroupNonUniformArithmetic",
    64: "GroupNonUniformBallot",
    65: "GroupNonUniformShuffle",
    66: "GroupNonUniformShuffleRelative",
    67: "GroupNonUniformClustered",
    68: "GroupNonUniformQuad",
    4423: "SubgroupBallotKHR",
    4428: "WorkgroupMemoryExplicitLayoutKHR",
    4429: "WorkgroupMemoryExplicitLayout8BitAccessKHR",
    4430: "WorkgroupMemoryExplicitLayout16BitAccessKHR",
    4433: "StorageBuffer16BitAccess",
    4434: "UniformAndStorageBuffer16BitAccess",
    4435: "StoragePushConstant16",
    4437: "DeviceGroup",
    4441: "VariablePointersStorageBuffer",
    4442: "VariablePointers",
    4448: "StorageBuffer8BitAccess",
    4449: "UniformAndStorageBuffer8BitAccess",
    4450: "StoragePushConstant8",
    4464: "DenormPreserve",
    4465: "DenormFlushToZero",
    4466: "SignedZeroInfNanPreserve",
    4467: "RoundingModeRTE",
    4468: "RoundingModeRTZ",
    5055: "ShaderClockKHR",
    5302: "RuntimeDescriptorArray",
    5116: "BFloat16TypeKHR",
    5117: "BFloat16DotProductKHR",
    5118: "BFloat16CooperativeMatrixKHR",
    5345: "VulkanMemoryModel",
    5346: "VulkanMemoryModelDeviceScope",
    5347: "PhysicalStorageBufferAddresses",
    5357: "CooperativeMatrixNV",
    5612: "AtomicFloat32MinMaxEXT",
    6016: "DotProductInputAll",
    6017: "DotProductInput4x8Bit",
    6018: "DotProductInput4x8BitPacked",
    6019: "DotProduct",
    6022: "CooperativeMatrixKHR",
    6025: "BitInstructions",
    6033: "AtomicFloat32AddEXT",
    6034: "AtomicFloat64AddEXT",
    6095: "AtomicFloat16AddEXT",
}
