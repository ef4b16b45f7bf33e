"""A GPU's memory and kernels on any driver."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from gpu_shared.capabilities import DeviceCapabilities


def take_for_discrete(patch: Callable[[Any, str, Any], None]) -> None:
    """The driver's devices are taken for discrete GPUs: the host does not see their memory, and kernels are a GPU's. ``patch``
    sets an attribute (``setattr``, or that of a test's fixture)."""
    from gpu_shared import memory, query  # load Vulkan

    asked, chosen = query.capabilities, memory.choose_type

    def capabilities(*given: Any) -> DeviceCapabilities:
        return replace(asked(*given), device_type="discrete", host_visible_device_local=False, compute_units=132)

    def choose_type(device: Any, kind: str, type_bits: int) -> tuple[int, int, int]:
        index, flags, heap = chosen(device, kind, type_bits)
        return index, flags & ~memory.HOST_VISIBLE if kind == "device" else flags, heap

    patch(query, "capabilities", capabilities)
    patch(memory, "choose_type", choose_type)
