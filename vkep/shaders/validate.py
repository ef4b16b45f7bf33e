"""spirv-val, if it is installed: checks a module against the rules of SPIR-V and of Vulkan 1.3."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from vkep.shaders.compiler import TARGET, run_tool

#: spirv-val's message for a capability that is newer than it; a compiler writes no other unknown ones
_UNKNOWN_CAPABILITY = "Invalid capability operand"


@dataclass(frozen=True, slots=True)
class Validation:
    """The validator's result for a module."""

    valid: bool
    message: str = ""  #: spirv-val's message about an invalid module


def find_validator() -> Path | None:
    """``spirv-val``: ``$VKEP_SPIRV_VAL``, or on the search path; None where it is not installed (package spirv-tools).

    Raises `ValueError` if the variable does not name an executable.
    """
    chosen = os.environ.get("VKEP_SPIRV_VAL")
    found = shutil.which(chosen or "spirv-val")
    if chosen and found is None:
        raise ValueError(f"VKEP_SPIRV_VAL is {chosen!r}, which is no executable file; correct or unset it")
    return Path(found) if found else None


def validate(binary: bytes, validator: Path | None = None) -> Validation | None:
    """Validate a module for Vulkan 1.3. Raises `ShaderError` if the validator cannot be run.

    None if there is no validator, or one that is older than a capability that the module declares (cooperative matrices):
    it can say nothing about such a module.

    Blocks behind buffer references use scalar layout, which Vulkan 1.2 allows (feature ``scalarBlockLayout``).
    """
    tool = validator or find_validator()
    if tool is None:
        return None
    with tempfile.TemporaryDirectory(prefix="vkep-val-") as folder:
        module = Path(folder) / "shader.spv"
        module.write_bytes(binary)
        done = run_tool([str(tool), "--target-env", TARGET, "--scalar-block-layout", str(module)])
    message = f"{done.stdout}\n{done.stderr}".strip().replace(str(module), "module")
    if _UNKNOWN_CAPABILITY in message:
        return None
    return Validation(done.returncode == 0, "" if done.returncode == 0 else message)
