"""ExecuTorch with vkep: running .pte programs without torch, and exporting them with the unified partitioner.

Running needs only vkep (`Program`, `Runtime`). Exporting needs the extra ``executorch`` (torch and executorch), which
is imported when one of its names is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_shared.lazy import lazy

if TYPE_CHECKING:
    from vkep.errors import InvalidPteError, UnsupportedProgramError
    from vkep.executorch.metadata import MethodMeta, TensorInfo
    from vkep.executorch.method import Method
    from vkep.executorch.options import ProgramOptions
    from vkep.executorch.program import Program
    from vkep.executorch.runtime import BackendRegistry, OperatorRegistry, Runtime

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


#: public names and the module that each is imported from on first use
__getattr__ = lazy(
    __name__,
    {
        "vkep.errors": "InvalidPteError UnsupportedProgramError",
        "vkep.executorch.metadata": "MethodMeta TensorInfo",
        "vkep.executorch.method": "Method",
        "vkep.executorch.options": "ProgramOptions",
        "vkep.executorch.program": "Program",
        "vkep.executorch.runtime": "BackendRegistry OperatorRegistry Runtime",
    },
)


def __dir__() -> list[str]:
    return sorted(set(__all__) | set(globals()))
