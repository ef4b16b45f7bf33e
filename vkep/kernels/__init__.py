"""The kernels: one Python declaration per GLSL file, and what chooses among their variants."""

from vkep.kernels.catalog import all_kernels

__all__ = ["all_kernels"]
