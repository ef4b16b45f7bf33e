"""ExecuTorch with vkep: running .pte programs without torch, and exporting them with the unified partitioner.

Running needs only vkep (`Program`, `Runtime`). Exporting needs the extra ``executorch`` (torch and executorch), which
is imported when one of its names is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vkep.errors import InvalidPteError, UnsupportedProgramError
    from vkep.executorch.metadata import MethodMeta, TensorInfo
    from vkep.executorch.method import Method
    from vkep.executorch.options import ProgramOptions
    from vkep.executorch.program import Program
    from vkep.executorch.runtime import BackendRegistry, OperatorRegistry, Runtime

#: public names and the module that each is imported from on first use
_LAZY = {
    "BackendRegistry": "vkep.executorch.runtime",
    "InvalidPteError": "vkep.errors",
    "Method": "vkep.executorch.method",
    "MethodMeta": "vkep.executorch.metadata",
    "OperatorRegistry": "vkep.executorch.runtime",
    "Program": "vkep.executorch.program",
    "ProgramOptions": "vkep.executorch.options",
    "Runtime": "vkep.executorch.runtime",
    "TensorInfo": "vkep.executorch.metadata",
    "UnsupportedProgramError": "vkep.errors",
}
__all__ = [
    "BackendRegistry",
    "InvalidPteError",
    "Method",
    "MethodMeta",
    "OperatorRegistry",
    "Program",
    "ProgramOptions",
    "Runtime",
    "TensorInfo",
    "UnsupportedProgramError",
]


def __getattr__(name: str) -> Any:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(__all__) | set(globals()))
