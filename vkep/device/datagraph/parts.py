"""Completes a VGF file before it runs: shaders in source form are compiled, and push constants get values."""

from __future__ import annotations

from collections.abc import Mapping

from vkep.shaders.errors import ShaderError
from vkep.shaders.library import ShaderLibrary
from vkep.shaders.source import parse_source
from vkep.vgf.records import InvalidVgfError, Vgf


def module_code(vgf: Vgf, given: Mapping[str, bytes], library: ShaderLibrary) -> dict[str, bytes]:
    """SPIR-V by module name for the modules without: ``given``, else compiled from their GLSL.

    Raises `InvalidVgfError` for HLSL, for GLSL whose entry point is not main, and for GLSL that does not compile or
    that no compiler is installed for.
    """
    code = dict(given)
    for module in vgf.modules:
        if module.spirv is not None or module.source is None or module.name in code:
            continue
        where = f"module {module.name!r}"
        if module.language != "GLSL":
            raise InvalidVgfError(
                f"{where} is {module.language} source, which vkep does not compile: give its SPIR-V by name"
            )
        if module.kind != "compute" or module.entry_point != "main":
            raise InvalidVgfError(
                f"{where} is a {module.kind} module in GLSL with the entry point {module.entry_point!r}; "
                "GLSL has compute shaders whose entry point is 'main'"
            )
        try:
            code[module.name] = library.compiler.compile_source(
                parse_source(module.source, f"{module.name}.comp", ()), {}
            )
        except (ShaderError, ValueError) as error:
            raise InvalidVgfError(f"{where} in GLSL cannot be compiled: {error}") from error
    return code


def push_values(vgf: Vgf, given: Mapping[str, bytes]) -> dict[str, bytes]:
    """The push constants of each segment that takes some, from byte 0 on: a file has only their ranges.

    Raises `InvalidVgfError` for a segment without values, ``ValueError`` for values of another size or for no segment.
    """
    wanted = {s.name: max(at + size for _, at, size in s.push_constants) for s in vgf.segments if s.push_constants}
    for name in given:
        if name not in wanted:
            raise ValueError(f"push constants for {name!r}; segments that take some: {sorted(wanted)}")
    for name, size in wanted.items():
        if name not in given:
            raise InvalidVgfError(
                f"segment {name!r} has push constants, {size} bytes that a VGF file does not hold: give their values "
                f"(push_constants={{{name!r}: ...}}, or --push {name}=FILE)"
            )
        if len(given[name]) != size:
            raise ValueError(f"{len(given[name])} bytes of push constants for segment {name!r}, which takes {size}")
    return {name: bytes(given[name]) for name in wanted}
