"""SPIR-V for a device that lacks element types: the same module, computing with 32-bit words.

A module that uses 8-, 16- or 64-bit types is rewritten to use only capabilities that the device has: `lower.Lowering`
gives values of those types other types and replaces the instructions that make them, `link.Linker` adds the functions
that it calls (``shaders/words.comp``). Kernels are written for devices that have the types.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from pathlib import Path

from vkep.cache import digest_of_files
from vkep.shaders.errors import InvalidSpirvError
from vkep.shaders.spirv import CAPABILITIES, Op, instructions, parse_words
from vkep.shaders.words.lower import Lowering
from vkep.shaders.words.module import Module

#: maps a capability of SPIR-V to the names of `gpu_shared.capabilities.FEATURE_NAMES` for it; every device of Vulkan
#: 1.3 with the required features has capabilities that are not listed
FEATURES = {
    "Float16": "float16",
    "Float64": "float64",
    "Int64": "int64",
    "Int16": "int16",
    "Int8": "int8",
    "StorageBuffer16BitAccess": "storage_16bit",
    "StorageBuffer8BitAccess": "storage_8bit",
    "GroupNonUniformArithmetic": "subgroup_arithmetic",
    "GroupNonUniformBallot": "subgroup_ballot",
    "GroupNonUniformShuffle": "subgroup_shuffle",
    "VulkanMemoryModel": "vulkan_memory_model",
    "VulkanMemoryModelDeviceScope": "vulkan_memory_model_device_scope",
    "CooperativeMatrixKHR": "cooperative_matrix",
    "BFloat16TypeKHR": "bfloat16",
    "BFloat16DotProductKHR": "bfloat16_dot_product",
    "BFloat16CooperativeMatrixKHR": "bfloat16_cooperative_matrix",
    **dict.fromkeys(
        ("DotProduct", "DotProductInputAll", "DotProductInput4x8Bit", "DotProductInput4x8BitPacked"),
        "integer_dot_product",
    ),
}
_ALWAYS = frozenset({"Shader", "Matrix", "GroupNonUniform", "PhysicalStorageBufferAddresses"})
#: by bit width, the capabilities that a module no longer needs once values of the width are words. A module loses all
#: types of a width when it loses one, so that values pass between them unchanged.
_OF_WIDTH = {
    8: frozenset({"Int8", "StorageBuffer8BitAccess"}),
    16: frozenset({"Int16", "Float16", "StorageBuffer16BitAccess"}),
    64: frozenset({"Int64", "Float64"}),
}


@functools.cache
def code_digest() -> str:
    """64 hex digits for the code that rewrites modules: the result depends on it besides `fitted`'s arguments."""
    return digest_of_files(Path(__file__).parents[1], (".py", ".pyc"))


def widths_in_words(features: frozenset[str]) -> tuple[int, ...]:
    """The bit widths for which a device with ``features`` lacks a type: kernels then compute with words, which takes
    more instructions. No operator declines for it."""
    return tuple(width for width, names in _OF_WIDTH.items() if lacking(names, features))


def lacking(capabilities: Iterable[str], features: frozenset[str]) -> frozenset[str]:
    """The capabilities among these that a device with ``features`` lacks, or that vkep does not know."""
    return frozenset(c for c in capabilities if c not in _ALWAYS and FEATURES.get(c) not in features)


def capabilities_of(binary: bytes) -> frozenset[str]:
    """The capabilities that a module declares. Raises `InvalidSpirvError`."""
    names = []
    for opcode, operands in instructions(parse_words(binary)):
        if opcode != Op.CAPABILITY:
            break  # they come first (SPIR-V specification 2.4)
        names.append(CAPABILITIES.get(operands[0], f"Capability{operands[0]}"))
    return frozenset(names)


def fitted(binary: bytes, features: frozenset[str], library: bytes) -> bytes:
    """The module for a device with ``features``; ``library`` is the SPIR-V of ``shaders/words.comp``.

    Raises `InvalidSpirvError` for bytes that are not SPIR-V, and for a module that the device cannot run in words
    either.
    """
    missing = lacking(capabilities_of(binary), features)
    widths = [width for width, names in _OF_WIDTH.items() if names & missing]
    if widths:
        binary = Lowering(Module.parse(binary), Module.parse(library), widths).lowered()
        missing -= frozenset().union(*(_OF_WIDTH[width] for width in widths))
    if missing:
        raise InvalidSpirvError(f"the module needs {', '.join(sorted(missing))}, which the device lacks")
    return binary
