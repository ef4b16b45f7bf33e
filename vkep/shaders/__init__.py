"""GLSL to checked SPIR-V: compiler wrapper, content-addressed cache, reflection. Pure: no Vulkan here."""

from vkep.shaders.compiler import Compiler, find_compiler
from vkep.shaders.errors import (
    CompilerNotFoundError,
    Diagnostic,
    InvalidSpirvError,
    ShaderCompileError,
    ShaderError,
    ShaderInterfaceError,
    ShaderSourceError,
)
from vkep.shaders.library import CompiledShader, ShaderLibrary
from vkep.shaders.reflect import Reflection, reflect
from vkep.shaders.source import glsl_root

__all__ = [
    "CompiledShader",
    "Compiler",
    "CompilerNotFoundError",
    "Diagnostic",
    "InvalidSpirvError",
    "Reflection",
    "ShaderCompileError",
    "ShaderError",
    "ShaderInterfaceError",
    "ShaderLibrary",
    "ShaderSourceError",
    "find_compiler",
    "glsl_root",
    "reflect",
]
