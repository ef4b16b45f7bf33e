"""Errors of the pure side and the session."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_shared.errors import PicklableError


class VkepError(PicklableError):
    """Base of vkep's own errors."""


class Decline(VkepError):
    """An operator function's answer for a node that Vulkan does not run: the reason, for a user to read."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class InvalidNode(Decline):
    """A node's inputs and attributes break the operator's specification: no engine may run it.

    A session raises `InvalidModelError` for it where the model alone says so, `InvalidInputError` where a run's inputs do.
    """

    def at(self, title: str) -> InvalidNode:
        """The same of the node that ``title`` names."""
        return InvalidNode(f"{title}: {self.reason}")


class InvalidModelError(VkepError, ValueError):
    """The bytes are no ONNX model, or the model breaks the ONNX specification."""


class UnsupportedModelError(VkepError, ValueError):
    """Some nodes can run neither on Vulkan nor on the CPU (or ``fallback="error"`` refuses the CPU)."""


class InvalidInputError(VkepError, ValueError):
    """A run's inputs do not fit the model (name, rank, shape or dtype), or one of its nodes does not allow what comes to it
    (a shape, a value): the message names the node.
    """


class RunTerminatedError(VkepError):
    """A run ended because ``terminate`` of its `RunOptions` was set."""


class KernelBoundsError(VkepError):
    """A planned kernel may leave the memory of an operand: a mistake of vkep's own, found before anything runs."""


class InvalidPteError(VkepError, ValueError):
    """The bytes are no ExecuTorch program (.pte), or a damaged one; or one of its data files (.ptd) is."""


class UnsupportedProgramError(VkepError, ValueError):
    """An ExecuTorch program that asks for backends, operators or a format version that vkep does not have.

    ``missing`` has a line for each.
    """

    def __init__(self, message: str, missing: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.missing = tuple(missing)
