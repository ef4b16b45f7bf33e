"""ShaderLibrary: each variant is compiled once; memory, disk and prebuilt folders come before the compiler."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from vkep.kernels.kernel import Kernel
from vkep.kernels.tool import DeclaredVariant, build, write_results
from vkep.plan.records import ShaderVariant
from vkep.shaders import compiler as compiler_module
from vkep.shaders import library as library_module
from vkep.shaders.errors import CompilerNotFoundError, ShaderCompileError, ShaderSourceError
from vkep.shaders.library import ShaderLibrary

SCALE = ShaderVariant("scale.comp")


def variant(**defines: str) -> ShaderVariant:
    return ShaderVariant("scale.comp", tuple(sorted(defines.items())))


def test_a_variant_is_compiled_once_and_then_held(make_library: Callable[..., ShaderLibrary], counting: Any) -> None:
    library = make_library()
    first = library.spirv(SCALE)
    assert first.origin == "compiler"
    assert library.spirv(SCALE) is first
    assert len(counting.calls) == 1


def test_a_later_process_needs_no_compilation(make_library: Callable[..., ShaderLibrary], counting: Any) -> None:
    first = make_library().spirv(SCALE)
    again = make_library().spirv(SCALE)
    assert again.origin == "cache"
    assert (again.words, again.reflection, again.key) == (first.words, first.reflection, first.key)
    assert len(counting.calls) == 1


def test_another_compiler_has_its_own_entries(make_library: Callable[..., ShaderLibrary], counting: Any) -> None:
    make_library().spirv(SCALE)
    counting.version = " newer"
    assert make_library().spirv(SCALE).origin == "compiler"


def test_a_damaged_entry_is_built_again(
    make_library: Callable[..., ShaderLibrary], tmp_path: Path, counting: Any
) -> None:
    first = make_library().spirv(SCALE)
    (path,) = (tmp_path / "disk").iterdir()
    path.write_bytes(path.read_bytes()[:100])
    assert make_library().spirv(SCALE).words == first.words
    assert len(counting.calls) == 2
    assert make_library().spirv(SCALE).origin == "cache"


def test_the_order_of_definitions_does_not_matter(make_library: Callable[..., ShaderLibrary], counting: Any) -> None:
    library = make_library()
    first = library.spirv(ShaderVariant("scale.comp", (("A", "1"), ("B", "2"))))
    second = library.spirv(ShaderVariant("scale.comp", (("B", "2"), ("A", "1"))))
    assert (second.key, second.origin) == (first.key, "cache")
    assert len(counting.calls) == 1


def test_a_changed_include_is_seen_after_forget(make_library: Callable[..., ShaderLibrary], tmp_path: Path) -> None:
    library = make_library()
    glsl = tmp_path / "glsl"
    text = (glsl / "scale.comp").read_text().replace("* args.alpha", "* FACTOR")
    (glsl / "scale.comp").write_text(text.replace("TENSOR(", '#include "factor.glsl"\nTENSOR(', 1))
    (glsl / "factor.glsl").write_text("#define FACTOR 2.0\n")
    first = library.spirv(SCALE)
    (glsl / "factor.glsl").write_text("#define FACTOR 3.0\n")
    assert library.spirv(SCALE) is first
    library.forget()
    second = library.spirv(SCALE)
    assert second.key != first.key
    assert second.words != first.words


def test_a_variants_error_is_raised_and_a_corrected_source_is_tried_again(
    make_library: Callable[..., ShaderLibrary], tmp_path: Path
) -> None:
    library = make_library()
    file = tmp_path / "glsl" / "scale.comp"
    good = file.read_text()
    file.write_text(good.replace("* args.alpha", "* nosuch"))
    with pytest.raises(ShaderCompileError, match="nosuch") as caught:
        library.spirv(SCALE)
    assert caught.value.file == str(file)
    assert "nosuch" in file.read_text().splitlines()[caught.value.line - 1]
    file.write_text(good)
    assert library.spirv(SCALE).words


def test_threads_that_ask_together_share_one_compilation(
    make_library: Callable[..., ShaderLibrary], counting: Any
) -> None:
    library = make_library()
    barrier = threading.Barrier(8)

    def ask(_: int) -> int:
        barrier.wait()
        return id(library.spirv(SCALE))

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(ask, range(8)))) == 1
    assert len(counting.calls) == 1


def test_compile_many_reports_progress_and_keeps_order(
    make_library: Callable[..., ShaderLibrary], counting: Any
) -> None:
    library = make_library()
    requests = [(variant(UNUSED=str(i % 3)), bool(i % 2)) for i in range(8)]
    seen: list[tuple[int, int]] = []
    shaders = library.compile_many(requests, jobs=2, progress=lambda done, total, _: seen.append((done, total)))
    assert [(s.variant, s.arguments_in_memory) for s in shaders] == requests
    assert seen == [(i, 6) for i in range(1, 7)]
    assert len(counting.calls) == 6


def test_compile_many_reads_caches_without_threads(
    make_library: Callable[..., ShaderLibrary], counting: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads that only hold one another up: a process with warm caches waits for this."""
    requests = [(variant(UNUSED=str(i)), False) for i in range(3)]
    make_library().compile_many(requests)
    library = make_library()
    held = library.spirv(*requests[0])
    monkeypatch.setattr(library_module, "Threads", None)  # would be a TypeError
    seen: list[tuple[int, int]] = []
    shaders = library.compile_many(requests, progress=lambda done, total, _: seen.append((done, total)))
    assert shaders[0] is held
    assert library.spirv(*requests[1]) is shaders[1]
    assert seen == [(1, 3), (2, 3), (3, 3)]
    assert len(counting.calls) == 3


def test_compile_many_mixes_what_is_cached_with_what_is_not(
    make_library: Callable[..., ShaderLibrary], counting: Any
) -> None:
    requests = [(variant(UNUSED=str(i)), False) for i in range(4)]
    make_library().compile_many(requests[::2])
    seen: list[int] = []
    shaders = make_library().compile_many(requests, progress=lambda done, total, _: seen.append(done))
    assert [s.origin for s in shaders] == ["cache", "compiler", "cache", "compiler"]
    assert [s.variant for s in shaders] == [request[0] for request in requests]
    assert seen == [1, 2, 3, 4]


def test_compile_many_builds_the_others_when_one_fails(
    make_library: Callable[..., ShaderLibrary], counting: Any
) -> None:
    library = make_library()
    bad = ShaderVariant("missing.comp")
    with pytest.raises(ShaderSourceError, match=r"missing\.comp"):
        library.compile_many([(bad, False), (SCALE, False)])
    assert library.spirv(SCALE).origin == "compiler"
    assert len(counting.calls) == 1
    with pytest.raises(ValueError, match="jobs"):
        library.compile_many([(SCALE, False)], jobs=0)


def test_an_own_shader_lies_anywhere(make_library: Callable[..., ShaderLibrary], tmp_path: Path, template: str) -> None:
    (tmp_path / "elsewhere").mkdir()
    own = tmp_path / "elsewhere" / "own.comp"
    own.write_text(template)
    shader = make_library().spirv(ShaderVariant(str(own)))
    assert [member.name for member in shader.reflection.arguments] == ["x", "y", "n", "alpha"]


def test_without_a_compiler_prebuilt_shaders_run_and_others_say_what_to_install(
    make_library: Callable[..., ShaderLibrary], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared = [DeclaredVariant(Kernel("scale.comp"), SCALE, in_memory) for in_memory in (False, True)]
    results = build(make_library(), declared)
    assert write_results(results, tmp_path / "prebuilt") == 2

    def none() -> None:
        raise CompilerNotFoundError(compiler_module._NOT_FOUND)

    monkeypatch.setattr(library_module, "find_compiler", none)
    library = make_library(compiler=None, cache_dir=tmp_path / "empty", prebuilt_dir=tmp_path / "prebuilt")
    for result in results:
        shader = library.spirv(SCALE, result.declared.arguments_in_memory)
        assert result.shader is not None
        assert (shader.origin, shader.words) == ("prebuilt", result.shader.words)
        library.check(shader)
    with pytest.raises(CompilerNotFoundError, match=r"scale\.comp is not prebuilt.*pip install"):
        library.spirv(variant(OTHER="1"))
    assert not (tmp_path / "empty").exists()


def test_a_prebuilt_shader_of_an_older_source_is_not_used(
    make_library: Callable[..., ShaderLibrary], tmp_path: Path
) -> None:
    write_results(build(make_library(), [DeclaredVariant(Kernel("scale.comp"), SCALE, False)]), tmp_path / "prebuilt")
    file = tmp_path / "glsl" / "scale.comp"
    file.write_text(file.read_text().replace("* args.alpha", "+ args.alpha"))
    assert make_library(prebuilt_dir=tmp_path / "prebuilt").spirv(SCALE).origin == "compiler"
