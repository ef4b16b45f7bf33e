"""ShaderLibrary.check: every kind of difference between GLSL and Python is found and named."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vkep.kernels.kernel import Kernel, Operand
from vkep.plan.records import ShaderVariant
from vkep.shaders.errors import ShaderInterfaceError
from vkep.shaders.interface import declared_members, differences, expected_arguments
from vkep.shaders.library import ShaderLibrary


@pytest.fixture
def check(make_library: Callable[..., ShaderLibrary], tmp_path: Path, kernel: Kernel) -> Callable[..., tuple[str, ...]]:
    """Change the GLSL and the declaration; the differences found, or none."""

    def run(
        *replacements: tuple[str, str], defines: tuple[tuple[str, str], ...] = (), extra: Any = None, **declared: Any
    ) -> tuple[str, ...]:
        file = tmp_path / "glsl" / "scale.comp"
        text = file.read_text()
        for old, new in replacements:
            assert old in text
            text = text.replace(old, new)
        file.write_text(text)
        library = make_library()
        shader = library.spirv(ShaderVariant("scale.comp", defines))
        changed = dataclasses.replace(kernel, **declared)
        expected = differences(changed, shader.reflection, dict(defines), *(extra or ()))
        if not expected:
            library.check(changed, shader, *(extra or ()))
            return ()
        with pytest.raises(ShaderInterfaceError) as caught:
            library.check(changed, shader, *(extra or ()))
        assert all(difference in str(caught.value) for difference in expected)
        return caught.value.differences

    return run


def test_the_template_agrees_with_its_declaration(check: Callable[..., tuple[str, ...]]) -> None:
    assert check() == ()


def test_an_argument_missing_in_glsl(check: Callable[..., tuple[str, ...]]) -> None:
    params = (("n", "uint"), ("alpha", "float"), ("beta", "float"))
    assert check(params=params) == ("argument 'beta' (float) is declared in Python but missing in GLSL",)


def test_an_argument_missing_in_python(check: Callable[..., tuple[str, ...]]) -> None:
    assert check(params=(("n", "uint"),)) == ("argument 'alpha' (float) is in GLSL but not declared in Python",)


def test_another_order(check: Callable[..., tuple[str, ...]]) -> None:
    found = check(params=(("alpha", "float"), ("n", "uint")))
    assert found[0].startswith("arguments are in another order: ['x', 'y', 'n', 'alpha'] in GLSL")
    assert "argument 'n' lies at byte 16 in GLSL, 20 in Python" in found


def test_another_type(check: Callable[..., tuple[str, ...]]) -> None:
    assert check(params=(("n", "int"), ("alpha", "float"))) == ("argument 'n' is uint in GLSL, int in Python",)


def test_an_operand_that_is_no_address(check: Callable[..., tuple[str, ...]]) -> None:
    found = check(("uvec2 y;", "uint y;"), ("operand(args.y, 1)", "uvec2(args.y, 0)"))
    assert "argument 'y' is uint in GLSL, uvec2 in Python" in found


def test_padding_shows_as_an_offset(check: Callable[..., tuple[str, ...]]) -> None:
    assert check(("float alpha;", "layout(offset = 32) float alpha;")) == (
        "argument 'alpha' lies at byte 32 in GLSL, 20 in Python",
    )


def test_a_spec_constant_missing_in_glsl(check: Callable[..., tuple[str, ...]]) -> None:
    found = check(spec={"TILE": 16, "UNROLL": 4})
    assert found == ("spec constant 'UNROLL' is declared in Python but missing in GLSL",)


def test_a_spec_constant_missing_in_python(check: Callable[..., tuple[str, ...]]) -> None:
    assert check(spec={}) == ("spec constant 'TILE' (id 4) is in GLSL but not declared in Python",)


def test_a_spec_constant_on_a_reserved_id(check: Callable[..., tuple[str, ...]]) -> None:
    found = check(("constant_id = 4", "constant_id = 2"))
    assert "spec constant 'TILE' (id 2) of type uint stands where the uint LOCAL_Y is" in found
    assert "spec constant 'TILE' is declared in Python but missing in GLSL" in found


def test_two_spec_constants_with_one_id_or_name(make_library: Callable[..., ShaderLibrary], kernel: Kernel) -> None:
    # glslang refuses such GLSL; other SPIR-V may have it
    reflection = make_library().spirv(ShaderVariant("scale.comp")).reflection
    assert differences(kernel, reflection, {}) == []
    tile = reflection.spec_constants[-1]
    for other, message in (
        (dataclasses.replace(tile, name="DEPTH"), "spec constant 'DEPTH' (id 4) has the same id as 'TILE'"),
        (dataclasses.replace(tile, id=9), "spec constant 'TILE' (id 9) has the same name as the one with id 4"),
        (dataclasses.replace(tile, id=9, name=""), "the spec constant with id 9 has no name"),
    ):
        doubled = dataclasses.replace(reflection, spec_constants=(*reflection.spec_constants, other))
        assert message in differences(kernel, doubled, {})


def test_a_reserved_name_in_python(check: Callable[..., tuple[str, ...]]) -> None:
    assert any("contract's own" in difference for difference in check(spec={"TILE": 16, "LOCAL_X": 64}))


def test_a_workgroup_size_of_its_own(check: Callable[..., tuple[str, ...]], tmp_path: Path) -> None:
    file = tmp_path / "glsl" / "vkep.glsl"
    own = Path(__file__).resolve().parents[2] / "shaders" / "vkep.glsl"
    old = "layout(local_size_x_id = 1, local_size_y_id = 2, local_size_z_id = 3) in;"
    text = own.read_text()
    assert old in text
    file.write_text(text.replace(old, "layout(local_size_x = 64) in;"))
    (difference,) = check()
    assert difference.startswith("the workgroup size is set by constants (None, None, None), expected (1, 2, 3)")


def test_a_missing_indirect_constant(check: Callable[..., tuple[str, ...]], tmp_path: Path) -> None:
    own = Path(__file__).resolve().parents[2] / "shaders" / "vkep.glsl"
    text = own.read_text().replace("layout(constant_id = 0) const uint INDIRECT", "const uint INDIRECT")
    (tmp_path / "glsl" / "vkep.glsl").write_text(text)
    assert check() == ('spec constant 0 (INDIRECT) is missing: #include "vkep.glsl"',)


def test_a_descriptor(check: Callable[..., tuple[str, ...]]) -> None:
    found = check(("void main", "layout(set = 0, binding = 3) buffer Extra { float v[]; } extra;\nvoid main"))
    assert found == ("'extra' uses a descriptor (set 0, binding 3); kernels take addresses only",)


def test_every_difference_is_listed(check: Callable[..., tuple[str, ...]]) -> None:
    found = check(params=(("n", "int"), ("beta", "float")), spec={"UNROLL": 1})
    assert len(found) == 5


def test_extra_arguments_are_read_from_the_definitions(check: Callable[..., tuple[str, ...]]) -> None:
    defines = (("EXTRA_OPERANDS", "uvec2 bias; uvec2 skip;"), ("EXTRA_PARAMS", "float low;"))
    assert check(defines=defines) == ()


def test_extra_arguments_given_by_the_caller(check: Callable[..., tuple[str, ...]]) -> None:
    defines = (("EXTRA_OPERANDS", "uvec2 bias;"), ("EXTRA_PARAMS", "float low;"))
    assert check(defines=defines, extra=([Operand("bias")], [("low", "float")])) == ()
    found = check(defines=defines, extra=([Operand("skip")], [("low", "int")]))
    assert found == (
        "argument 'skip' (uvec2) is declared in Python but missing in GLSL",
        "argument 'bias' (uvec2) is in GLSL but not declared in Python",
        "argument 'low' is float in GLSL, int in Python",
    )


def test_an_extra_operand_that_is_no_address(check: Callable[..., tuple[str, ...]]) -> None:
    found = check(defines=(("EXTRA_OPERANDS", "float low;"),))
    assert "EXTRA_OPERANDS declares float low, expected uvec2 (an address)" in found


def test_arguments_that_ignore_the_mode(
    make_library: Callable[..., ShaderLibrary], tmp_path: Path, kernel: Kernel
) -> None:
    file = tmp_path / "glsl" / "scale.comp"
    own = "layout(push_constant, std430) uniform Push ARGS_BODY args;"
    file.write_text(file.read_text().replace('#include "args.glsl"', own))
    library = make_library()
    library.check(kernel, library.spirv(ShaderVariant("scale.comp")))
    with pytest.raises(ShaderInterfaceError, match=r"read from push constants, expected from memory.*args\.glsl"):
        library.check(kernel, library.spirv(ShaderVariant("scale.comp"), arguments_in_memory=True))


def test_offsets_follow_the_contract(kernel: Kernel) -> None:
    assert expected_arguments(kernel, [Operand("b")], [("c", "int")]) == (
        ("x", "uvec2", 0),
        ("y", "uvec2", 8),
        ("b", "uvec2", 16),
        ("n", "uint", 24),
        ("alpha", "float", 28),
        ("c", "int", 32),
    )


def test_declarations_are_parsed_or_refused() -> None:
    assert declared_members(" uvec2 a;\n uvec2  b ; ") == (("a", "uvec2"), ("b", "uvec2"))
    assert declared_members("") == ()
    with pytest.raises(ValueError, match="no declaration"):
        declared_members("uvec2 a[3];")
