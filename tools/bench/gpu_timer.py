"""The timer of single kernels, where the bench has had it so far."""

from vkep.device.kernel_timer import KernelTimer, Operand

__all__ = ["KernelTimer", "Operand"]
