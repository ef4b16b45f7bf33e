"""A kernel's interface is read from its GLSL as the preprocessor and the compiler see it; `ShaderLibrary.check` compares both."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from vkep.kernels.kernel import Kernel
from vkep.plan.records import ShaderVariant
from vkep.shaders.errors import ShaderInterfaceError, ShaderSourceError
from vkep.shaders.interface import DeclaredInterface, Interface, Operand, differences
from vkep.shaders.library import ShaderLibrary
from vkep.shaders.source import parse_source

SCALE = ShaderVariant("scale.comp")
X, Y = Operand("x"), Operand("y", writes=True)


def read(text: str, **defines: str) -> Interface:
    return DeclaredInterface(parse_source(text, "some.comp")).of(defines)


def test_the_template_is_read_as_it_is_compiled(make_library: Callable[..., ShaderLibrary]) -> None:
    library = make_library()
    extra = (("EXTRA_OPERANDS", "uvec2 bias; uvec2 skip;"), ("EXTRA_PARAMS", "float low;"))
    for variant in (SCALE, dataclasses.replace(SCALE, defines=extra)):
        shader = library.spirv(variant)
        library.check(shader)
        interface = DeclaredInterface(library.source(variant)).of(dict(variant.defines))
        operands, more = (
            ((X, Y), ()) if variant is SCALE else ((X, Y, Operand("bias"), Operand("skip")), (("low", "float"),))
        )
        assert interface == Interface(operands, (("n", "uint"), ("alpha", "float"), *more), {"TILE": 16})
        assert interface.argument_bytes == shader.reflection.argument_bytes


BRANCHES = """
#ifdef MORE  // a comment
#define MORE_OPERANDS uvec2 more;
#elif COUNT > 1 && !defined(NONE)
#define MORE_OPERANDS uvec2 first; \\
    uvec2 second;
#else
#define MORE_OPERANDS
#endif
#define FIELDS(P, T) T P##0; T P ## 1;
#define NUMBER 4 /* a comment
of two lines */
/*
#define ARGS_BODY { uvec2 hidden; }
*/
#define ARGS_BODY { uvec2 x; WRITTEN y; MORE_OPERANDS FIELDS(dim, uint) FIELDS(step, int) }
layout(constant_id = NUMBER) const uint SIZE = 0x10u;
#if defined MORE || COUNT == 7
layout(constant_id = 5) const int LOW = -1; layout(constant_id = 6) const uint HIGH = 2u;
#endif
#undef NUMBER
layout(constant_id = 2) const uint OWN_Y = 1;
#ifdef NUMBER
layout(constant_id = 9) const uint NOT = 1;
#endif
"""
FIELDS = (("dim0", "uint"), ("dim1", "uint"), ("step0", "int"), ("step1", "int"))


@pytest.mark.parametrize(
    ("defines", "operands", "spec"),
    [
        ({}, [], {}),
        ({"MORE": ""}, ["more"], {"LOW": -1, "HIGH": 2}),
        ({"COUNT": "(1 + 1)"}, ["first", "second"], {}),
        ({"COUNT": "7u"}, ["first", "second"], {"LOW": -1, "HIGH": 2}),
        ({"COUNT": "2", "NONE(x)": "x"}, [], {}),
    ],
)
def test_branches_and_macros(defines: Mapping[str, str], operands: list[str], spec: Mapping[str, int]) -> None:
    interface = read(BRANCHES, **defines)
    assert interface == Interface((X, Y, *map(Operand, operands)), FIELDS, {"SIZE": 16, **spec})


def test_a_combination_of_definitions_is_read_once() -> None:
    declared = DeclaredInterface(parse_source(BRANCHES, "some.comp"))
    known = [
        declared.of(defines) for defines in ({"MORE": "1"}, {"MORE": "2"}, {"MORE": "1", "EPILOGUE_BODY": "v = 1.0;"})
    ]
    assert known[0] is known[1] is known[2]  # only whether MORE is defined matters
    assert declared.of({"COUNT": "1"}) is not declared.of({"COUNT": "2"})
    assert declared.of({}) is not known[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "some.comp: it defines no ARGS_BODY"),
        ("#define ARGS_BODY { uvec2 x; uint n; }", "no operand of ARGS_BODY is WRITTEN"),
        ("#define ARGS_BODY { WRITTEN y; vec2 n; }", r"ARGS_BODY has 'vec2 n', expected operands \(uvec2 or WRITTEN"),
        ("#define ARGS_BODY { uint n; WRITTEN y; }", "ARGS_BODY has 'WRITTEN y'"),
        ("#define ARGS_BODY { WRITTEN y; uint n[2]; }", r"ARGS_BODY has 'uint n\[2\]'"),
        ("#define ARGS_BODY { WRITTEN y; layout(offset = 32) uint n; }", "ARGS_BODY has 'layout"),
        (
            "layout(constant_id = 4) const float HALF = 0.5;",
            "spec constant HALF is '0.5' by default, expected an integer",
        ),
        ("#if COUNT ==\n#endif", "#if COUNT == cannot be evaluated"),
        ("#if COUNT(1) == 'a'\n#endif", "is no condition of whole numbers"),
        ("#if 9 ** 9 ** 9 ** 9\n#endif", "is no condition of whole numbers"),
        ("#endif", "#endif without an #if"),
    ],
)
def test_what_breaks_the_contract_is_an_error(text: str, message: str) -> None:
    with pytest.raises(ShaderSourceError, match=message):
        read(text)


def test_a_kernel_is_a_file_of_its_own_or_one_of_vkep(tmp_path: Path) -> None:
    with pytest.raises(ShaderSourceError, match=r"no GLSL file 'none\.comp'; looked at"):
        Kernel("none.comp").interface({})
    (tmp_path / "own.comp").write_text('#include "dims.glsl"\n#define ARGS_BODY { WRITTEN y; FIELDS8(dim) }')
    own = Kernel(str(tmp_path / "own.comp"))
    assert own.interface({}).params == tuple((f"dim{k}", "uint") for k in range(8))
    (tmp_path / "circle.comp").write_text('#include "circle.comp"\n')
    with pytest.raises(ShaderSourceError, match=r"circle\.comp: its files include one another"):
        Kernel(str(tmp_path / "circle.comp")).interface({})
    with pytest.raises(ValueError, match=r"operands differ from those of the GLSL: missing \['y'\], unknown \['x'\]"):
        own.call(grid=(1,), operands={"x": None})
    with pytest.raises(ValueError, match=r"no spec constant named \['TILE'\]"):
        own.call(grid=(1,), operands={"y": None}, params={f"dim{k}": 1 for k in range(8)}, spec={"TILE": 1})


@pytest.fixture
def check(make_library: Callable[..., ShaderLibrary], tmp_path: Path) -> Callable[..., tuple[str, ...]]:
    """Change a file of the template; the differences found."""

    def run(old: str, new: str, file: str = "scale.comp") -> tuple[str, ...]:
        own = Path(__file__).resolve().parents[2] / "shaders" / file
        text = own.read_text() if own.is_file() else (tmp_path / "glsl" / file).read_text()
        assert old in text
        (tmp_path / "glsl" / file).write_text(text.replace(old, new))
        library = make_library()
        with pytest.raises(ShaderInterfaceError) as caught:
            library.check(library.spirv(SCALE))
        return caught.value.differences

    return run


def test_a_block_that_is_not_args_body(check: Callable[..., tuple[str, ...]]) -> None:
    (found,) = check(
        '#include "args.glsl"',
        "layout(push_constant, std430) uniform Push { uvec2 y; uvec2 x; uint n; float alpha; } args;",
    )
    assert found.startswith("the arguments (name, type, byte) are [('y', 'uvec2', 0), ('x', 'uvec2', 8), ('n'")


def test_a_spec_constant_that_is_not_read(check: Callable[..., tuple[str, ...]]) -> None:
    (found,) = check("layout(constant_id = 4) const uint", "layout(constant_id =\n4) const uint")
    assert found == "the spec constants and defaults are {'TILE': 16} in the module, {} in the GLSL"


def test_a_spec_constant_on_a_reserved_id(check: Callable[..., tuple[str, ...]]) -> None:
    assert check("constant_id = 4", "constant_id = 32") == (
        "spec constant 32 is the uint 'TILE', expected the uint FOLD_X",
    )


def test_a_workgroup_size_of_its_own(check: Callable[..., tuple[str, ...]]) -> None:
    old = "layout(local_size_x_id = 1, local_size_y_id = 2, local_size_z_id = 3) in;"
    (found,) = check(old, "layout(local_size_x = 64) in;", "vkep.glsl")
    assert found.startswith("the workgroup size is set by constants (None, None, None), expected (1, 2, 3)")


def test_a_missing_indirect_constant(check: Callable[..., tuple[str, ...]]) -> None:
    found = check("layout(constant_id = 0) const uint INDIRECT", "const uint INDIRECT", "vkep.glsl")
    assert found == ('spec constant 0 (INDIRECT) is missing: #include "vkep.glsl"',)


def test_a_descriptor(check: Callable[..., tuple[str, ...]]) -> None:
    found = check("void main", "layout(set = 0, binding = 3) buffer Extra { float v[]; } extra;\nvoid main")
    assert found == ("'extra' uses a descriptor (set 0, binding 3); kernels take addresses only",)


def test_two_spec_constants_with_one_name(make_library: Callable[..., ShaderLibrary]) -> None:
    # glslang refuses such GLSL; other SPIR-V may have it
    library = make_library()
    reflection = library.spirv(SCALE).reflection
    interface = DeclaredInterface(library.source(SCALE)).of({})
    assert differences(interface, reflection) == []
    other: Any = dataclasses.replace(reflection.spec_constants[-1], id=9, default=8)
    doubled = dataclasses.replace(reflection, spec_constants=(*reflection.spec_constants, other))
    assert differences(interface, doubled) != []


def test_arguments_that_ignore_the_mode(make_library: Callable[..., ShaderLibrary], tmp_path: Path) -> None:
    file = tmp_path / "glsl" / "scale.comp"
    own = "layout(push_constant, std430) uniform Push ARGS_BODY args;"
    file.write_text(file.read_text().replace('#include "args.glsl"', own))
    library = make_library()
    library.check(library.spirv(SCALE))
    with pytest.raises(ShaderInterfaceError, match=r"read from push constants, expected from memory.*args\.glsl"):
        library.check(library.spirv(SCALE, arguments_in_memory=True))
