"""Errors between GLSL text and a checked SPIR-V module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vkep.errors import VkepError


class ShaderError(VkepError):
    """Base of the shader tool's errors."""


class CompilerNotFoundError(ShaderError):
    """No GLSL compiler on this machine; the message says what to install."""


class InvalidSpirvError(ShaderError, ValueError):
    """The bytes are not a well-formed SPIR-V module."""


class ShaderSourceError(ShaderError, ValueError):
    """A GLSL file that a variant names does not exist or cannot be read."""


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One message of the compiler. ``line`` is 1-based; 0 where the compiler gives none."""

    file: str
    line: int
    message: str
    source_line: str = ""  #: the text of that line, where it is known
    severity: str = "error"

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}: " if self.line else f"{self.file}: " if self.file else ""
        text = f"{where}{self.severity}: {self.message}"
        if self.source_line.strip():
            text += f"\n{self.line:6d} | {self.source_line.rstrip()}"
        return text


class ShaderCompileError(ShaderError, ValueError):
    """The compiler refused the GLSL. ``file``, ``line``, ``message`` and ``source_line`` are those of the first error;
    ``diagnostics`` has all of them. Raises ``ValueError`` when it is made without a diagnostic."""

    def __init__(self, diagnostics: Sequence[Diagnostic], defines: Mapping[str, str], compiler: str) -> None:
        if not diagnostics:
            raise ValueError("a ShaderCompileError needs at least one diagnostic")
        self.diagnostics = tuple(diagnostics)
        self.defines = dict(defines)
        self.compiler = compiler
        first = self.diagnostics[0]
        self.file, self.line, self.message, self.source_line = first.file, first.line, first.message, first.source_line
        lines = [str(d) for d in self.diagnostics]
        if self.defines:
            lines.append("with the definitions")
            lines += [f"  {name} = {value}".replace("\n", "\n      ") for name, value in sorted(self.defines.items())]
        if any("'#include' : required extension not requested" in d.message for d in self.diagnostics):
            lines.append(
                "(a shader with includes starts with #version 460 and #extension GL_GOOGLE_include_directive : require)"
            )
        lines.append(f"(compiler: {compiler})")
        super().__init__("\n".join(lines))


class ShaderInterfaceError(ShaderError, ValueError):
    """A compiled module differs from the interface that its GLSL declares, or breaks the kernel contract; ``differences`` lists
    every difference found."""

    def __init__(self, source: str, differences: Sequence[str]) -> None:
        self.source = source
        self.differences = tuple(differences)
        super().__init__(
            f"{source}: the compiled module has another interface than its GLSL declares; declare it as docs/architecture.md, "
            f'"Kernel contract", says:\n' + "\n".join(f"  - {d}" for d in self.differences)
        )
