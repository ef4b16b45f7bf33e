"""Fixtures: a cache folder of the test's own, the machine's compiler, a kernel from the contract's template."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from vkep.shaders.compiler import Compiler, find_compiler
from vkep.shaders.library import ShaderLibrary
from vkep.shaders.source import GlslSource

REPOSITORY = Path(__file__).resolve().parents[2]

BODY = """
TENSOR(float, TensorF)
layout(constant_id = 4) const uint TILE = 16;
shared float tile[TILE][TILE + 1];
void main() {
    uint i = gl_GlobalInvocationID.x;
    if (i >= args.n) return;
    tile[i % TILE][0] = TensorF(operand(args.x, 0)).v[i];
    TensorF(operand(args.y, 1)).v[i] = tile[i % TILE][0] * args.alpha;
}
"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "own-cache"
    monkeypatch.setenv("VKEP_CACHE_DIR", str(folder))
    monkeypatch.delenv("VKEP_SPIRV_VAL", raising=False)
    return folder


@pytest.fixture(scope="session")
def compiler() -> Compiler:
    return find_compiler()


@pytest.fixture(scope="session")
def template() -> str:
    """The kernel that docs/architecture.md shows, with a body."""
    page = (REPOSITORY / "docs" / "architecture.md").read_text(encoding="utf-8")
    match = re.search(r"(?:^      ?[^\n]*\n)*^ +#version 460\n(?:^      [^\n]*\n)+", page, re.MULTILINE)
    assert match, "docs/architecture.md no longer shows the template of a kernel"
    return "".join(line.strip() + "\n" for line in match[0].splitlines()) + BODY


class CountingCompiler:
    """Counts compilations; the work is a real compiler's."""

    def __init__(self, real: Compiler) -> None:
        self.real = real
        self.version = ""
        self.calls: list[str] = []
        self._lock = threading.Lock()

    def identity_for(self, source: GlslSource) -> str:
        return self.real.identity_for(source) + self.version

    def compile_source(self, source: GlslSource, defines: Mapping[str, str]) -> bytes:
        with self._lock:
            self.calls.append(source.path)
        return self.real.compile_source(source, defines)


@pytest.fixture
def counting(compiler: Compiler) -> CountingCompiler:
    return CountingCompiler(compiler)


@pytest.fixture
def make_library(tmp_path: Path, counting: CountingCompiler, template: str) -> Callable[..., ShaderLibrary]:
    """Libraries over one folder with scale.comp and one disk cache, with the counting compiler."""
    folder = tmp_path / "glsl"
    folder.mkdir()
    (folder / "scale.comp").write_text(template, encoding="utf-8")

    def make(**options: Any) -> ShaderLibrary:
        return ShaderLibrary([folder], **{"cache_dir": tmp_path / "disk", "compiler": counting, **options})

    return make
