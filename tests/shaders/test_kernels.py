"""Every kernel that vkep declares: compiles, agrees with its declaration, passes spirv-val."""

from __future__ import annotations

from pathlib import Path

import pytest

import vkep.kernels
from vkep.kernels import all_kernels, tool
from vkep.kernels.kernel import MOST_OPERANDS, Kernel, KernelCall
from vkep.kernels.pointwise import POINTWISE
from vkep.passes.split import MAX_OPERANDS
from vkep.shaders.compiler import Compiler, find_compiler
from vkep.shaders.interface import Operand
from vkep.shaders.library import ShaderLibrary
from vkep.shaders.source import glsl_root
from vkep.shaders.validate import find_validator, validate


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ShaderLibrary:
    return ShaderLibrary(cache_dir=tmp_path_factory.mktemp("spirv"), compiler=find_compiler())


@pytest.mark.parametrize("kernel", all_kernels(), ids=lambda kernel: kernel.source)
def test_every_declared_variant(kernel: Kernel, library: ShaderLibrary) -> None:
    declared = tool.declared_variants([kernel])
    declared += [d for d in tool.declared_variants([kernel], both=True)[:2] if d not in declared]
    results = tool.build(library, declared, jobs=2, run_validator=find_validator() is not None)
    problems = [f"{dict(r.declared.variant.defines)}: {problem}" for r in results for problem in r.problems]
    assert not problems, "\n".join(problems)


def test_every_glsl_kernel_is_declared() -> None:
    assert tool.undeclared_sources() == []


def test_every_declaration_names_an_existing_file() -> None:
    assert [k.source for k in all_kernels() if not (glsl_root() / k.source).is_file()] == []


def test_two_declarations_of_one_file_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "again_one.py").write_text(
        'from vkep.kernels.kernel import Kernel\nA = Kernel("again.comp", reach=lambda call: {})\n'
    )
    (tmp_path / "again_two.py").write_text("from vkep.kernels.again_one import A\n")
    monkeypatch.setattr(vkep.kernels, "__path__", [*vkep.kernels.__path__, str(tmp_path)])
    assert "again.comp" in [kernel.source for kernel in all_kernels.__wrapped__()]  # an import is no second one
    (tmp_path / "again_three.py").write_text((tmp_path / "again_one.py").read_text())
    with pytest.raises(ValueError, match=r"again\.comp is declared twice: as .*again_one\.A and as .*again_three\.A"):
        all_kernels.__wrapped__()


def test_a_kernel_without_a_reach_does_not_register(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "boundless.py").write_text('from vkep.kernels.kernel import Kernel\nA = Kernel("boundless.comp")\n')
    monkeypatch.setattr(vkep.kernels, "__path__", [*vkep.kernels.__path__, str(tmp_path)])
    with pytest.raises(ValueError, match=r"boundless\.comp: .*boundless\.A does not state its reach"):
        all_kernels.__wrapped__()


def test_spirv_val_finds_what_is_wrong(compiler: Compiler) -> None:
    if find_validator() is None:
        pytest.skip("spirv-val is not installed")
    binary = compiler.compile("#version 460\nlayout(local_size_x = 1) in;\nvoid main() {}\n")
    verdict = validate(binary)
    assert verdict is not None
    assert verdict.valid
    words = bytearray(binary)
    words[20:28] = bytes.fromhex("11000200 04000000")  # OpCapability Shader becomes Addresses
    verdict = validate(bytes(words))
    assert verdict is not None
    assert not verdict.valid
    assert verdict.message


def test_a_validator_that_does_not_exist_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VKEP_SPIRV_VAL", str(tmp_path / "none"))
    with pytest.raises(ValueError, match="VKEP_SPIRV_VAL"):
        find_validator()
    monkeypatch.delenv("VKEP_SPIRV_VAL")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert validate(b"") is None


def test_a_call_has_an_operand_for_each_bit_of_the_mask() -> None:
    """GLSL does not define a shift of INDIRECT by 32 or more."""

    def call(operands: int) -> KernelCall:
        extra = [(Operand(f"x{k}"), None) for k in range(operands - 1)]
        return POINTWISE.call(grid=(1,), operands={"y": None}, params={"n": 1, "iterations": 1}, extra_operands=extra)

    assert len(call(MOST_OPERANDS).operands) == 32
    with pytest.raises(ValueError, match=r"pointwise\.comp: 33 operands, expected at most 32"):
        call(MOST_OPERANDS + 1)


def test_every_epilogue_has_room_in_the_mask() -> None:
    found = [k for k in all_kernels() if '#include "epilogue.glsl"' in (glsl_root() / k.source).read_text()]
    assert len(found) > 10
    own = [len(kernel.interface(variant).operands) for kernel in found for variant in kernel.variants]
    assert max(own) + MAX_OPERANDS <= MOST_OPERANDS
