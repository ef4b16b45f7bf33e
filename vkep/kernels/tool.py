"""The work of ``vkep shaders`` as functions with plain results; the command line only prints them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from vkep.kernels import all_kernels
from vkep.kernels.kernel import PUSH_CONSTANT_BYTES, Kernel
from vkep.plan.records import ShaderVariant
from vkep.shaders.cache import PrebuiltEntry, write_prebuilt
from vkep.shaders.compiler import find_compiler
from vkep.shaders.errors import (
    CompilerNotFoundError,
    InvalidSpirvError,
    ShaderCompileError,
    ShaderInterfaceError,
    ShaderSourceError,
)
from vkep.shaders.library import CompiledShader, ShaderLibrary
from vkep.shaders.reflect import Reflection, reflect
from vkep.shaders.source import GlslSource, SourceFile, glsl_root, parse_source
from vkep.shaders.spirv import is_spirv
from vkep.shaders.validate import find_validator, validate


@dataclass(frozen=True, slots=True)
class DeclaredVariant:
    """One compilation that a `Kernel` declares."""

    kernel: Kernel
    variant: ShaderVariant
    arguments_in_memory: bool


@dataclass(frozen=True, slots=True)
class VariantResult:
    """The result of one variant; ``problems`` is empty on success."""

    declared: DeclaredVariant
    shader: CompiledShader | None
    problems: tuple[str, ...] = ()
    validated: bool = False  #: whether spirv-val has accepted it
    diagnostics: tuple[dict[str, Any], ...] = ()  #: the compiler's messages, where it rejected the GLSL

    def to_json(self) -> dict[str, Any]:
        """For ``--json``."""
        shader = self.shader
        return {
            "source": self.declared.variant.source,
            "defines": dict(self.declared.variant.defines),
            "arguments_in_memory": self.declared.arguments_in_memory,
            "ok": not self.problems,
            "problems": list(self.problems),
            "diagnostics": list(self.diagnostics),
            "validated": self.validated,
            "origin": shader.origin if shader else None,
            "bytes": len(shader.words) if shader else None,
            "key": shader.key if shader else None,
        }


def select_kernels(names: Sequence[str] = ()) -> tuple[Kernel, ...]:
    """The declared kernels with these sources (``softmax.comp`` or ``softmax``), or all. `ValueError` for others."""
    kernels = all_kernels()
    if not names:
        return kernels
    known = {key for kernel in kernels for key in (kernel.source, kernel.source.removesuffix(".comp"))}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"no kernel named {', '.join(unknown)}; declared are {', '.join(k.source for k in kernels)}")
    return tuple(k for k in kernels if k.source in names or k.source.removesuffix(".comp") in names)


def declared_variants(kernels: Iterable[Kernel], both: bool = False) -> list[DeclaredVariant]:
    """Every variant that the kernels declare, with arguments as the planner would pass them: in push constants, or in
    memory if they are larger than 128 bytes. ``both`` adds the in-memory form of those that fit.
    """
    found = []
    for kernel in kernels:
        for defines in kernel.variants:
            variant = ShaderVariant(kernel.source, tuple(sorted(defines.items())))
            large = kernel.interface(defines).argument_bytes > PUSH_CONSTANT_BYTES
            for in_memory in (False, True) if both and not large else (large,):
                found.append(DeclaredVariant(kernel, variant, in_memory))
    return found


def undeclared_sources() -> list[str]:
    """The .comp files of vkep that no `Kernel` declares: nothing builds or checks them."""
    declared = {kernel.source for kernel in all_kernels()}
    root = glsl_root()
    found = sorted(path.relative_to(root).as_posix() for path in root.rglob("*.comp"))
    return [source for source in found if source not in declared]


def build(
    library: ShaderLibrary,
    declared: Sequence[DeclaredVariant],
    *,
    jobs: int | None = None,
    progress: Callable[[int, int, ShaderVariant], None] | None = None,
    run_validator: bool = False,
) -> list[VariantResult]:
    """Compile variants in parallel, compare each with the interface that its GLSL declares, and, if requested, run spirv-val.

    A failure is a result, so that one call shows all of them. Raises `ValueError` if ``run_validator`` is set on a
    machine without spirv-val, and `CompilerNotFoundError` if no variant could be built for want of a compiler.
    """
    validator = find_validator() if run_validator else None
    if run_validator and validator is None:
        raise ValueError("spirv-val is not installed (package spirv-tools), or set VKEP_SPIRV_VAL to its path")
    compiled = library.try_many([(d.variant, d.arguments_in_memory) for d in declared], jobs, progress)
    missing = [result for result in compiled if isinstance(result, CompilerNotFoundError)]
    if missing and len(missing) == len(compiled):
        raise missing[0]
    results = []
    for item, shader in zip(declared, compiled, strict=True):
        if isinstance(shader, Exception):
            diagnostics = shader.diagnostics if isinstance(shader, ShaderCompileError) else ()
            results.append(VariantResult(item, None, (str(shader),), diagnostics=tuple(asdict(d) for d in diagnostics)))
            continue
        problems: list[str] = []
        try:
            library.check(shader)
        except ShaderInterfaceError as error:
            problems += error.differences
        verdict = validate(shader.words, validator) if validator else None
        if verdict is not None and not verdict.valid:
            problems.append(f"spirv-val: {verdict.message}")
        results.append(VariantResult(item, shader, tuple(problems), verdict is not None and verdict.valid))
    return results


def write_results(results: Iterable[VariantResult], folder: Path) -> int:
    """Write the shaders as a prebuilt folder (a wheel carries it as ``vkep/_spirv``); return how many modules it has.

    Raises `ValueError` if one of the results has problems.
    """
    modules = {}
    for result in results:
        if result.shader is None or result.problems:
            raise ValueError(f"{result.declared.variant.source} has problems; nothing was written to {folder}")
        shader = result.shader
        modules[shader.key] = (
            PrebuiltEntry(
                key=shader.key,
                source=shader.variant.source,
                defines=dict(shader.variant.defines),
                arguments_in_memory=shader.arguments_in_memory,
                sha256=hashlib.sha256(shader.words).hexdigest(),
            ),
            shader.words,
        )
    write_prebuilt(folder, modules.values())
    return len(modules)


@dataclass(frozen=True, slots=True)
class FileResult:
    """The result of one of a user's own GLSL files."""

    source: str
    output: str | None
    bytes: int
    problems: tuple[str, ...] = ()
    diagnostics: tuple[dict[str, Any], ...] = field(default=())

    def to_json(self) -> dict[str, Any]:
        """For ``--json``."""
        return {**asdict(self), "ok": not self.problems}


def compile_file(
    library: ShaderLibrary,
    source: Path,
    output: Path,
    defines: Mapping[str, str] | None = None,
    arguments_in_memory: bool = False,
) -> FileResult:
    """Compile a user's own shader to ``output``. A GLSL error is a result; an unwritable output is `OSError`."""
    variant = ShaderVariant(str(source.absolute()), tuple(sorted((defines or {}).items())))
    try:
        shader = library.spirv(variant, arguments_in_memory)
    except ShaderCompileError as error:
        diagnostics = tuple(asdict(d) for d in error.diagnostics)
        return FileResult(str(source), None, 0, (str(error),), diagnostics)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_bytes(shader.words)
    return FileResult(str(source), str(output), len(shader.words))


def reflect_file(
    library: ShaderLibrary,
    path: Path,
    defines: Mapping[str, str] | None = None,
    arguments_in_memory: bool = False,
) -> Reflection:
    """The interface of a file, SPIR-V or GLSL (compiled first). Raises the errors of `ShaderLibrary.spirv`."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ShaderSourceError(f"cannot read {path}: {error}") from error
    if is_spirv(content) or path.suffix == ".spv":
        try:
            return reflect(content)
        except InvalidSpirvError as error:
            raise InvalidSpirvError(f"{path}: {error}") from error
    variant = ShaderVariant(str(path.absolute()), tuple(sorted((defines or {}).items())))
    return library.spirv(variant, arguments_in_memory).reflection


def reflection_to_json(reflection: Reflection) -> dict[str, Any]:
    """A reflection as plain data, for the manifest."""
    return {
        "spirv_version": f"{reflection.version[0]}.{reflection.version[1]}",
        "entry_point": reflection.entry_point,
        "capabilities": list(reflection.capabilities),
        "extensions": list(reflection.extensions),
        "local_size": list(reflection.local_size),
        "local_size_ids": list(reflection.local_size_ids),
        "arguments": [asdict(member) for member in reflection.arguments],
        "arguments_in_memory": reflection.arguments_in_memory,
        "argument_bytes": reflection.argument_bytes,
        "push_constant_bytes": reflection.push_constant_bytes,
        "spec_constants": [asdict(constant) for constant in reflection.spec_constants],
        "bindings": [asdict(binding) for binding in reflection.bindings],
        "shared_memory_bytes": reflection.shared_memory_bytes(),
    }


def environment() -> dict[str, Any]:
    """The tools and folders in use, for reports. Never raises: a missing one is None with a reason."""
    report: dict[str, Any] = {"glsl": str(glsl_root())}
    # of vkep's own GLSL, and of other GLSL
    for name, source in (
        ("compiler", GlslSource(SourceFile("", "", ""), own=True)),
        ("other_compiler", parse_source("", "")),
    ):
        report[name] = report[f"{name}_error"] = None
        try:
            compiler = find_compiler().for_source(source)
            report[name] = {"kind": compiler.kind, "version": compiler.version, "path": str(compiler.path)}
        except CompilerNotFoundError as error:
            report[f"{name}_error"] = str(error)
    try:
        found = find_validator()
        report["spirv_val"] = str(found) if found else None
    except ValueError as error:
        report["spirv_val"] = None
        report["spirv_val_error"] = str(error)
    return report
