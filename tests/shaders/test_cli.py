"""``vkep shaders``: output, JSON and exit status."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from vkep.cli import shaders
from vkep.kernels import tool
from vkep.kernels.kernel import Kernel
from vkep.shaders.cache import PrebuiltSpirv
from vkep.shaders.reflect import reflect

REPOSITORY = Path(__file__).resolve().parents[2]

OWN = """#version 460
#extension GL_GOOGLE_include_directive : require
#include "helper.glsl"
layout(local_size_x = 64) in;
layout(push_constant) uniform P { T scale; } args;
void main() { T value = helper(args.scale); }
"""


@pytest.fixture
def run() -> Callable[..., Any]:
    def invoke(*arguments: object) -> Any:
        return CliRunner().invoke(shaders.app, [str(argument) for argument in arguments])

    return invoke


@pytest.fixture
def own(tmp_path: Path) -> Path:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "helper.glsl").write_text("T helper(T x) { return x * x; }\n")
    (tmp_path / "own.comp").write_text(OWN)
    return tmp_path / "own.comp"


@pytest.fixture
def declared(template: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """vkep with one kernel only, whose file is returned."""
    file = tmp_path / "scale.comp"
    file.write_text(template)
    only = Kernel(str(file), variants=({}, {"FAST": "1"}))
    monkeypatch.setattr(tool, "all_kernels", lambda: (only,))
    monkeypatch.setattr(tool, "undeclared_sources", list)
    return file


def test_compile_an_own_shader(run: Any, own: Path, tmp_path: Path) -> None:
    result = run("compile", own, "-D", "T=float", "-I", tmp_path / "lib", "--out", tmp_path / "sub" / "own.spv")
    assert result.exit_code == 0, result.output
    assert reflect((tmp_path / "sub" / "own.spv").read_bytes()).arguments[0].type == "float"


def test_an_own_shader_lands_beside_its_source(run: Any, own: Path, tmp_path: Path) -> None:
    assert run("compile", own, "-DT=int", "-I", tmp_path / "lib").exit_code == 0
    assert reflect((tmp_path / "own.spv").read_bytes()).arguments[0].type == "int"


def test_an_own_shader_with_an_error(run: Any, own: Path, tmp_path: Path) -> None:
    result = run("compile", own, "-D", "T=nosuch", "-I", tmp_path / "lib")
    assert result.exit_code == 1
    assert "helper.glsl:1: error:" in result.output
    assert not (tmp_path / "own.spv").exists()
    result = run("compile", own, "-D", "T=nosuch", "-I", tmp_path / "lib", "--json")
    (file,) = json.loads(result.stdout)["files"]
    assert not file["ok"]
    assert (Path(file["diagnostics"][0]["file"]).name, file["diagnostics"][0]["line"]) == ("helper.glsl", 1)


@pytest.mark.parametrize(
    "arguments",
    [
        ["compile", "none.comp"],
        ["compile", "--define", "T=float"],
        ["compile", "--kernel", "none"],
        ["compile", "--jobs", "0"],
        ["compile", "{own}", "-k", "softmax"],
        ["compile", "{own}", "-D", "=1"],
        ["compile", "{own}", "-D", "1A=1"],
        ["compile", "{own}", "-I", "none"],
        ["compile", "{own}", "{own}"],
        ["reflect", "none.spv"],
        ["polish"],
    ],
)
def test_wrong_usage_is_status_2(run: Any, own: Path, arguments: list[str]) -> None:
    result = run(*(argument.format(own=own) for argument in arguments))
    assert result.exit_code == 2, result.output


def test_compile_declared_variants_then_all_from_the_cache(run: Any, declared: Path, tmp_path: Path) -> None:
    first = json.loads(run("compile", "--json", "--jobs", "1", "--out", tmp_path / "pre").stdout)
    assert [row["origin"] for row in first["variants"]] == ["compiler", "compiler"]
    assert len(PrebuiltSpirv(tmp_path / "pre")) == 2
    second = run("compile")
    assert second.exit_code == 0
    assert "2 variants, 0 with problems; 0 compiled now, 2 from the cache" in second.output


def test_check_reports_a_difference(run: Any, declared: Path) -> None:
    assert run("check", "--json").exit_code == 0
    declared.write_text(declared.read_text().replace("constant_id = 4", "constant_id =\n4"))
    result = run("check", "--json")
    assert result.exit_code == 1
    report = json.loads(result.stdout)
    assert report["failed"] == 4  # two variants, each with arguments in push constants and in memory
    problem = "the spec constants and defaults are {'TILE': 16} in the module, {} in the GLSL"
    assert report["variants"][0]["problems"] == [problem]
    assert problem in run("check").output


def test_compile_reports_an_error_and_writes_nothing(run: Any, declared: Path, tmp_path: Path) -> None:
    declared.write_text(declared.read_text().replace("* args.alpha", "* nosuch"))
    result = run("compile", "--json", "--out", tmp_path / "pre")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["variants"][0]["diagnostics"][0]["file"] == str(declared)
    assert not (tmp_path / "pre").exists()


def test_list(run: Any, declared: Path) -> None:
    report = json.loads(run("list", "--json").stdout)
    assert [row["defines"] for row in report["variants"]] == [{}, {"FAST": "1"}]
    assert report["environment"]["compiler"]["version"]
    assert "FAST=1" in run("list", "-k", declared).output


def test_reflect_glsl_and_spirv(run: Any, declared: Path, tmp_path: Path) -> None:
    run("compile", declared, "--out", tmp_path / "s.spv")
    from_spirv = json.loads(run("reflect", tmp_path / "s.spv", "--json").stdout)
    from_glsl = json.loads(run("reflect", declared, "--json").stdout)
    assert from_spirv == from_glsl
    assert from_spirv["shared_memory_bytes"] == 16 * 17 * 4
    in_memory = json.loads(run("reflect", declared, "--args-in-memory", "--json").stdout)
    assert in_memory["arguments_in_memory"]
    assert in_memory["push_constant_bytes"] == 8
    shown = run("reflect", declared).output
    assert "argument    16  uint         n" in shown
    assert "TILE = 16" in shown


def test_no_compiler_is_status_1_with_advice(run: Any, declared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VKEP_GLSLANG", "no-such-glslang")
    result = run("compile", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["error"]["kind"] == "CompilerNotFoundError"
    assert "VKEP_GLSLANG" in result.stderr


def test_a_broken_module_is_status_1(run: Any, tmp_path: Path) -> None:
    (tmp_path / "broken.spv").write_bytes(bytes.fromhex("03022307") + bytes(20))
    result = run("reflect", tmp_path / "broken.spv")
    assert result.exit_code == 1
    assert "SPIR-V version" in result.output


def test_a_broken_file_is_named(run: Any, own: Path, tmp_path: Path) -> None:
    run("compile", own, "-D", "T=float", "-I", tmp_path / "lib", "--out", tmp_path / "own.spv")
    for cut in (0, 402, 400):
        (tmp_path / "cut.spv").write_bytes((tmp_path / "own.spv").read_bytes()[:cut])
        result = run("reflect", tmp_path / "cut.spv")
        assert result.exit_code == 1
        assert result.stderr.startswith(f"error: {tmp_path / 'cut.spv'}: ")
    (tmp_path / "file").touch()
    target = tmp_path / "file" / "x.spv"
    result = run("compile", own, "-D", "T=float", "-I", tmp_path / "lib", "--out", target)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {tmp_path / 'file'}")
    assert "Errno" not in result.stderr


def test_an_include_without_its_extension_gets_a_hint(run: Any, tmp_path: Path) -> None:
    (tmp_path / "plain.comp").write_text('#include "vkep.glsl"\nvoid main() {}\n')
    result = run("compile", tmp_path / "plain.comp")
    assert result.exit_code == 1
    assert "starts with #version 460 and #extension GL_GOOGLE_include_directive : require" in result.stderr


def test_the_page_works(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shader, the commands and the Python of docs/shaders.md, "Your own shaders"."""
    page = (REPOSITORY / "docs" / "shaders.md").read_text(encoding="utf-8")
    shader, code = (re.findall(rf"^```{kind}\n(.*?)^```", page, re.M | re.S) for kind in ("glsl", "python"))
    commands = re.findall(r"^    vkep shaders (.*)$", page, re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    Path("saxpy.comp").write_text(shader[0])
    assert len(commands) == 3
    for command in commands:
        result = run(*shlex.split(command))
        assert result.exit_code == 0, result.output
    exec(code[0], {})
