"""GLSL files as text: their paths, their includes, and the insertion of definitions."""

from __future__ import annotations

import functools
import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from vkep.cache import digest_of_files
from vkep.shaders.errors import ShaderSourceError

_DEFINE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\([A-Za-z0-9_, ]*\))?\Z")
_INCLUDE = re.compile(r'^(?P<directive>[ \t]*#[ \t]*include[ \t]*)["<](?P<name>[^">\n]+)[">]', re.MULTILINE)
_INCLUDED = re.compile(r'"vkep-include-(\d+)\.glsl"')
_VERSION = re.compile(r"[ \t]*#[ \t]*version\b")
#: name of the text that `with_defines` inserts, in the compiler's messages
DEFINES_FILE = "definitions"


@functools.cache
def glsl_root() -> Path:
    """The folder of vkep's own GLSL: package data of an installed wheel, ``shaders/`` of a source checkout.

    Raises `ShaderSourceError` where neither exists.
    """
    package = Path(__file__).resolve().parents[1]
    candidates = (package / "_glsl", package.parent / "shaders")
    for folder in candidates:
        if (folder / "vkep.glsl").is_file():
            return folder
    raise ShaderSourceError(
        f"vkep's GLSL files are missing: no vkep.glsl in {' or '.join(map(str, candidates))}; reinstall vkep"
    )


@functools.cache
def shader_digest() -> str:
    """A digest of vkep's own GLSL."""
    return digest_of_files(glsl_root(), (".comp", ".glsl"))


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file's text; its ``#include`` lines name the snapshot's files (``include_name``) instead of real ones."""

    path: str  #: in messages
    text: str  #: on disk
    rewritten: str


@dataclass(frozen=True, slots=True)
class GlslSource:
    """One GLSL file and everything it includes, read once: what a compilation depends on.

    The scan does not run the preprocessor: it also follows an include in a branch that is not compiled, so it may
    contain too much, never too little. Compilers are given this snapshot instead of include folders: a file that is
    edited meanwhile cannot end up in a cache under a wrong key, every compiler resolves includes alike, and no
    machine's paths get into the module.
    """

    main: SourceFile
    includes: tuple[SourceFile, ...] = ()  #: in order of discovery
    own: bool = False  #: whether all of it was read from vkep's own files

    @property
    def path(self) -> str:
        """The file's path."""
        return self.main.path

    def digest(self, defines: Mapping[str, str]) -> str:
        """SHA-256 (hex) of everything that a compiler reads: texts and definitions, but neither paths nor the
        compiler."""
        digest = hashlib.sha256(b"vkep glsl 1\0")
        parts = [self.main.rewritten, *(f.rewritten for f in self.includes)]
        for group in (parts, [text for item in sorted(defines.items()) for text in item]):
            digest.update(len(group).to_bytes(8, "little"))
            for text in group:
                raw = text.encode("utf-8")
                digest.update(len(raw).to_bytes(8, "little") + raw)
        return digest.hexdigest()

    def line(self, file: str, number: int) -> str:
        """The text of a line (1-based) of one of the files, by the path that messages show; empty where unknown."""
        for candidate in (self.main, *self.includes):
            if quoted_path(candidate.path) == quoted_path(file):
                lines = candidate.text.split("\n")
                return lines[number - 1] if 1 <= number <= len(lines) else ""
        return ""

    def included(self, name: str) -> SourceFile | None:
        """The file that an ``#include`` in a rewritten text names; None for one that was not found."""
        index = _INCLUDED.fullmatch(name.strip())
        return self.includes[int(index[1])] if index else None

    def texts(self, defines: Mapping[str, str]) -> Iterator[str]:
        """The texts of a compilation: the main file's with the definitions, then each include's, in order."""
        yield with_defines(self.main.rewritten, defines, self.path)
        for file in self.includes:
            yield f'#line 1 "{quoted_path(file.path)}"\n{file.rewritten}'

    def write(self, folder: Path, defines: Mapping[str, str]) -> Path:
        """Write the snapshot for a compiler that searches ``folder`` for includes; return the main file's path."""
        names = ["shader.comp", *(include_name(index) for index in range(len(self.includes)))]
        for name, text in zip(names, self.texts(defines), strict=True):
            (folder / name).write_text(text, encoding="utf-8", newline="\n")
        return folder / names[0]


def include_name(index: int) -> str:
    """The file name of an include in a written snapshot."""
    return f"vkep-include-{index}.glsl"


def find_source(name: str, shader_dirs: Sequence[Path]) -> Path:
    """The file that a variant's ``source`` names: an absolute path, or a name below one of the folders (first wins).
    Raises `ShaderSourceError` that lists where it looked."""
    path = Path(name)
    candidates = [path] if path.is_absolute() else [folder / path for folder in shader_dirs]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    raise ShaderSourceError(f"no GLSL file {name!r}; looked at {', '.join(map(str, candidates)) or 'no folder'}")


def read_source(path: Path, include_dirs: Sequence[Path] = ()) -> GlslSource:
    """Read a file and its includes, transitively: see `parse_source`. Raises `ShaderSourceError` if it cannot."""
    source, root = parse_source(_read(path), str(path), include_dirs), str(glsl_root()) + os.sep
    # every text was read from its path, which cannot be said of a text that `parse_source` is given
    own = all(os.path.abspath(file.path).startswith(root) for file in (source.main, *source.includes))
    return replace(source, own=own)


def parse_source(text: str, file: str, include_dirs: Sequence[Path] = ()) -> GlslSource:
    """The snapshot for a text that messages call ``file``.

    An include is searched in the including file's folder, in ``file``'s folder, then in ``include_dirs``. One that is
    not found is left to the compiler, which reports its line (or never compiles that branch). Raises
    `ShaderSourceError` for a file that cannot be read.
    """
    home = os.path.dirname(os.path.abspath(file))
    dirs = [os.path.abspath(folder) for folder in include_dirs]
    index: dict[str, int] = {}
    pending: list[str] = []

    def rewrite(content: str, folder: str) -> str:
        def replace(match: re.Match[str]) -> str:
            for base in (folder, home, *dirs):
                candidate = os.path.normpath(os.path.join(base, match["name"]))
                if os.path.isfile(candidate):
                    if candidate not in index:
                        index[candidate] = len(index)
                        pending.append(candidate)
                    return f'{match["directive"]}"{include_name(index[candidate])}"'
            return match[0]

        return _INCLUDE.sub(replace, content)

    main = SourceFile(file, text, rewrite(text, home))
    includes = []
    while pending:
        path = pending.pop(0)
        content = _read(path)
        includes.append(SourceFile(path, content, rewrite(content, os.path.dirname(path))))
    return GlslSource(main, tuple(includes))


def _read(path: Path | str) -> str:
    try:
        with open(path, encoding="utf-8") as file:  # universal newlines: a checkout's line ends do not change the key
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise ShaderSourceError(f"cannot read the GLSL file {path}: {error}") from error


def with_defines(text: str, defines: Mapping[str, str], file: str) -> str:
    """``text`` with the definitions inserted after its ``#version`` line; messages still have the line numbers of
    ``file``.

    A value may span lines and hold any tokens: backslash-newlines are added. A name may carry parameters (``F(x)``).
    Raises `ValueError` for a name that is not a macro name and for a value that ends in a backslash.
    """
    lines = text.split("\n")
    version = _version_line(lines)
    inserted = [_define(name, value) for name, value in sorted(defines.items())]
    # Without this extension, #line accepts no file name.
    head = ["#extension GL_GOOGLE_cpp_style_line_directive : enable", f'#line 1 "{DEFINES_FILE}"', *inserted]
    resume = f'#line {version + 1} "{quoted_path(file)}"'
    return "\n".join([*lines[:version], *head, resume, *lines[version:]])


def _version_line(lines: Sequence[str]) -> int:
    """Number of lines up to and with ``#version`` (only comments may stand before it); 0 where there is none."""
    in_comment = False
    for number, line in enumerate(lines, start=1):
        rest = line
        while rest.strip():
            if in_comment:
                _, closed, rest = rest.partition("*/")
                in_comment = not closed
            elif rest.lstrip().startswith("/*"):
                in_comment, rest = True, rest.lstrip()[2:]
            elif rest.lstrip().startswith("//"):
                break
            elif _VERSION.match(rest):
                return number
            else:
                return 0
    return 0


def _define(name: str, value: str) -> str:
    if not _DEFINE_NAME.match(name):
        raise ValueError(f"{name!r} is no macro name; expected letters, digits and underscores, and parameters at most")
    value = value.strip().replace("\r\n", "\n")
    parts = [line.rstrip() for line in value.split("\n")]
    parts = [line[:-1].rstrip() if line.endswith("\\") and i < len(parts) - 1 else line for i, line in enumerate(parts)]
    if parts[-1].endswith("\\"):
        raise ValueError(f"the definition of {name} ends in a backslash: it would swallow the next line")
    if any("//" in line for line in parts[:-1]):
        raise ValueError(f"the definition of {name} has a // comment before its last line: it would swallow the rest")
    return f"#define {name} " + " \\\n".join(parts)


def quoted_path(file: str) -> str:
    """A path quoted for a #line directive."""
    return file.replace("\\", "/").replace('"', "'")
