"""Every operator that vkep runs on Vulkan; importing this package declares them."""

import importlib
import pkgutil

from vkep.ops.registry import declared, find, operator

for _module in pkgutil.walk_packages(__path__, f"{__name__}."):
    importlib.import_module(_module.name)

__all__ = ["declared", "find", "operator"]
