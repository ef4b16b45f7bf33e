"""What registering the provider needs of the rest of vkep, in a module that imports nothing."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vkep.ops.registry import OperatorDef

#: the provider's name in ONNX Runtime
EP_NAME = "VulkanExecutionProvider"
#: the name under which its library is registered
REGISTRATION_NAME = "vkep"


def users_operators() -> list[OperatorDef]:
    """The operators that programs declared (`vkep.ops.operator`)."""
    registry = sys.modules.get("vkep.ops.registry")
    return registry.users_operators() if registry is not None else []
