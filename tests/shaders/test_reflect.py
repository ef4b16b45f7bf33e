"""Reflection: the contract's template, shared memory under specialisation, malformed modules."""

from __future__ import annotations

import contextlib
import pickle
import struct
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vkep.plan.records import ShaderVariant
from vkep.shaders.compiler import Compiler
from vkep.shaders.errors import InvalidSpirvError
from vkep.shaders.library import ShaderLibrary
from vkep.shaders.reflect import Binding, Member, SpecConstant, reflect
from vkep.shaders.spirv import instructions, parse_words, spec_constant_ids, strip_sources

ARGUMENTS = (
    Member("x", "uvec2", 0, 8),
    Member("y", "uvec2", 8, 8),
    Member("n", "uint", 16, 4),
    Member("alpha", "float", 20, 4),
)
HEAD = "#version 460\nlayout(local_size_x = 1) in;\n"


@pytest.fixture(scope="session")
def module(compiler: Compiler) -> bytes:
    """A module with a bit of everything."""
    return compiler.compile(
        "#version 460\nlayout(local_size_x_id = 1, local_size_y = 2) in;\n"
        "layout(constant_id = 4) const uint N = 3;\nlayout(constant_id = 5) const bool FLAG = true;\n"
        "layout(constant_id = 6) const float SLOPE = 0.5;\nshared vec3 s[N * 2 + gl_WorkGroupSize.x];\n"
        "layout(push_constant) uniform P { float a; uint b; } args;\n"
        "layout(set = 1, binding = 2) buffer B { float v[]; } data;\n"
        "void main() { s[0] = vec3(args.a); if (FLAG) data.v[args.b] = s[0].x * SLOPE; }\n"
    )


def test_spec_constants_are_found_without_the_rest(module: bytes) -> None:
    assert spec_constant_ids(module) == reflect(module).spec_ids == {"LOCAL_X": 1, "N": 4, "FLAG": 5, "SLOPE": 6}
    with pytest.raises(InvalidSpirvError, match="malformed"):
        spec_constant_ids(module[:20] + struct.pack("<I", 1 << 16 | 71) + module[20:])


@pytest.mark.parametrize("in_memory", [False, True])
def test_the_template_of_the_contract(make_library: Callable[..., ShaderLibrary], in_memory: bool) -> None:
    shader = make_library().spirv(ShaderVariant("scale.comp"), in_memory)
    reflection = shader.reflection
    assert reflection.arguments == ARGUMENTS
    assert reflection.arguments_in_memory is in_memory
    assert reflection.push_constant_bytes == (8 if in_memory else 24)
    assert reflection.argument_bytes == 24
    assert reflection.spec_ids == {"INDIRECT": 0, "LOCAL_X": 1, "LOCAL_Y": 2, "LOCAL_Z": 3, "TILE": 4}
    assert shader.spec_ids == reflection.spec_ids
    assert reflection.local_size_ids == (1, 2, 3)
    assert reflection.version == (1, 6)
    assert reflection.entry_point == "main"
    assert "PhysicalStorageBufferAddresses" in reflection.capabilities
    assert reflection.bindings == ()


@pytest.mark.parametrize("in_memory", [False, True])
def test_extra_arguments_stand_where_the_contract_says(
    make_library: Callable[..., ShaderLibrary], in_memory: bool
) -> None:
    defines = (("EXTRA_OPERANDS", "uvec2 bias;\nuvec2 skip;"), ("EXTRA_PARAMS", "int low; float high;"))
    reflection = make_library().spirv(ShaderVariant("scale.comp", defines), in_memory).reflection
    assert [(m.name, m.type, m.offset) for m in reflection.arguments] == [
        ("x", "uvec2", 0),
        ("y", "uvec2", 8),
        ("bias", "uvec2", 16),
        ("skip", "uvec2", 24),
        ("n", "uint", 32),
        ("alpha", "float", 36),
        ("low", "int", 40),
        ("high", "float", 44),
    ]


@given(tile=st.integers(1, 200))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)
def test_shared_memory_follows_the_specialisation(module: bytes, tile: int) -> None:
    reflection = reflect(module)
    for local_x in (1, 64):
        # vec3 takes 16 bytes in an array, and the array's own size counts whole elements
        assert reflection.shared_memory_bytes({"N": tile, "LOCAL_X": local_x}) == 16 * (2 * tile + local_x)
    assert reflection.shared_memory_bytes() == 16 * 7
    with pytest.raises(ValueError, match="no spec constant named"):
        reflection.shared_memory_bytes({"M": 1})


@pytest.mark.parametrize(
    ("declaration", "expected"),
    [
        ("shared float a; shared vec4 b;", 32),
        ("shared vec4 b; shared float a;", 20),
        ("struct S { vec3 p; float w; bool f; }; shared S s[2];", 64),
        ("shared mat2 m;", 16),
        ("shared mat3 m;", 48),
        ("shared mat2x3 m[2];", 64),
        ("shared uint s[(M << 2) / 3 - (M > 4 ? 1 : 0)];", 4 * (28 // 3 - 1)),
        ("shared uint s[K + 5];", 8),
        ("shared uint s[-K / 2];", 4),
        ("", 0),
    ],
)
def test_shared_memory_of_types_and_expressions(compiler: Compiler, declaration: str, expected: int) -> None:
    text = HEAD + "layout(constant_id = 4) const uint M = 7;\nlayout(constant_id = 5) const int K = -3;\n"
    binary = compiler.compile(f"{text}{declaration}\nvoid main() {{}}\n")
    assert reflect(binary).shared_memory_bytes() == expected


def test_everything_else_that_a_module_says(module: bytes) -> None:
    reflection = reflect(module)
    assert reflection.local_size == (1, 2, 1)
    assert reflection.local_size_ids == (1, None, None)
    assert reflection.bindings == (Binding(1, 2, "data"),)
    assert reflection.spec_constants == (
        SpecConstant(1, "LOCAL_X", "uint", 1),
        SpecConstant(4, "N", "uint", 3),
        SpecConstant(5, "FLAG", "bool", True),
        SpecConstant(6, "SLOPE", "float", 0.5),
    )
    assert pickle.loads(pickle.dumps(reflection)) == reflection


def test_types_are_spelled_as_in_glsl(compiler: Compiler) -> None:
    types = ["uint", "int", "float", "uvec2", "ivec3", "vec4", "uint64_t", "int16_t", "float16_t", "double", "u8vec4"]
    members = "".join(f"{kind} m{i}; " for i, kind in enumerate(types))
    text = (
        "#version 460\n#extension GL_EXT_shader_explicit_arithmetic_types : require\n"
        "#extension GL_EXT_buffer_reference : require\nlayout(local_size_x = 1) in;\n"
        "layout(buffer_reference) buffer Floats { float v[]; };\n"
        f"layout(push_constant) uniform P {{ {members} Floats p; float a[3]; }} args;\nvoid main() {{}}\n"
    )
    arguments = reflect(compiler.compile(text)).arguments
    assert [m.type for m in arguments] == [*types, "pointer Floats", "float[3]"]
    assert arguments[-2].size == 8
    assert arguments[-1].size == 12


def test_big_endian_modules_are_read(module: bytes) -> None:
    swapped = struct.pack(f">{len(module) // 4}I", *struct.unpack(f"<{len(module) // 4}I", module))
    assert reflect(swapped) == reflect(module)


def test_stripping_keeps_the_interface_and_the_code(module: bytes) -> None:
    # OpString and OpSource with an embedded text, as compilers with -g write them
    text = b"C:/Users/someone/kernel.comp\0"
    text += bytes(-len(text) % 4)
    words = parse_words(module)
    bound = words[3]
    string = struct.pack("<II", (2 + len(text) // 4) << 16 | 7, bound) + text
    source = struct.pack("<IIII", 4 << 16 | 3, 2, 460, bound)
    listed = list(instructions(words))
    head = 5 + sum(len(i.operands) + 1 for i in listed[: next(n for n, i in enumerate(listed) if i.opcode == 5)])
    fat = bytearray(module[: head * 4] + string + source + module[head * 4 :])
    struct.pack_into("<I", fat, 12, bound + 1)
    slim = strip_sources(bytes(fat))
    assert b"someone" in fat
    assert b"someone" not in slim
    assert reflect(slim) == reflect(module)
    assert len(slim) == len(module)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda b: b"", "got 0 bytes"),
        (lambda b: b[:-1], "multiple of 4"),
        (lambda b: b"\x00" * 40, "magic"),
        (lambda b: b[:4] + struct.pack("<I", 0x00070000) + b[8:], "version"),
        (lambda b: b[:12] + bytes(4) + b[16:], "bound is 0"),
        (lambda b: b[:12] + struct.pack("<I", 2) + b[16:], "outside the module's bound"),
        (lambda b: b[:-4], "breaks off"),
        (lambda b: b + struct.pack("<I", 3 << 16 | 71), "claims 3 words, but 1 are left"),
        (lambda b: b[:20] + struct.pack("<I", 17) + b[24:], "claims 0 words"),
        (lambda b: b[:20], "expected one compute entry point"),
        (lambda b: b + struct.pack("<II", 2 << 16 | 71, 1), "malformed"),
        (lambda b: b + struct.pack("<IIII", 4 << 16 | 43, 9999, 1, 0), "defined|type"),
    ],
)
def test_malformed_modules_are_refused(module: bytes, damage: Callable[[bytes], bytes], message: str) -> None:
    with pytest.raises(InvalidSpirvError, match=message):
        reflect(damage(module))


@given(st.data())
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300)
def test_random_damage_never_escapes_as_another_error(module: bytes, data: st.DataObject) -> None:
    words = bytearray(module)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(words) // 4 - 1)) * 4
        struct.pack_into(
            "<I", words, at, data.draw(st.sampled_from([0, 1, 2, 0xFFFFFFFF, 0x00040020]) | st.integers(0, 2**32 - 1))
        )
    with contextlib.suppress(InvalidSpirvError):
        spec_constant_ids(bytes(words))
    try:
        reflection = reflect(bytes(words))
    except InvalidSpirvError:
        return
    reflection.shared_memory_bytes()
    pickle.dumps(reflection)


def test_a_module_that_is_no_compute_shader_is_refused(module: bytes) -> None:
    words = list(parse_words(module))
    at = 5
    while words[at] & 0xFFFF != 15:
        at += words[at] >> 16
    words[at + 1] = 4  # Fragment
    with pytest.raises(InvalidSpirvError, match="execution model 4"):
        reflect(struct.pack(f"<{len(words)}I", *words))
