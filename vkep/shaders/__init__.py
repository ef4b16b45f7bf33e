"""GLSL to checked SPIR-V: compiler wrapper, content-addressed cache. Pure: no Vulkan here. ``reflect`` is imported by
its own name: a session whose shaders are cached does not need it.
"""

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
from vkep.shaders.source import glsl_root

__all__ = [
    "CompiledShader",
    "Compiler",
    "CompilerNotFoundError",
    "Diagnostic",
    "InvalidSpirvError",
    "ShaderCompileError",
    "ShaderError",
    "ShaderInterfaceError",
    "ShaderLibrary",
    "ShaderSourceError",
    "find_compiler",
    "glsl_root",
]
