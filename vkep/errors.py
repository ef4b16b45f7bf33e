"""Errors of the pure side and the session."""

from __future__ import annotations


class VkepError(Exception):
    """Base of vkep's own errors."""


class Decline(VkepError):
    """An operator function's answer for a node that Vulkan does not run: the reason, for a user to read."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class InvalidModelError(VkepError, ValueError):
    """The bytes are no ONNX model, or the model breaks the ONNX specification."""


class UnsupportedModelError(VkepError, ValueError):
    """Some nodes can run neither on Vulkan nor on the CPU (or ``fallback="error"`` refuses the CPU)."""


class InvalidInputError(VkepError, ValueError):
    """A run's inputs do not fit the model: name, rank, shape or dtype."""
