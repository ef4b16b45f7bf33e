"""Every operator that vkep runs on Vulkan. Its modules are imported when the first operator is looked up."""

from vkep.ops.registry import declared, find, operator

__all__ = ["declared", "find", "operator"]
