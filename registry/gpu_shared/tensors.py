"""VkTensorARM: a typed, shaped resource over memory that a buffer holds (VK_ARM_tensors)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpu_shared import arm_abi, vk
from gpu_shared.errors import GpuError
from gpu_shared.handles import Handle
from gpu_shared.memory import Buffer

if TYPE_CHECKING:
    from gpu_shared.device import Device

#: VkFormat of one-component elements, and their bytes
FORMATS = {
    9: 1, 13: 1, 14: 1, 74: 2, 75: 2, 76: 2, 98: 4, 99: 4, 100: 4, 110: 8, 111: 8, 112: 8,
    1000460000: 1, 1000460001: 2, 1000460002: 1, 1000460003: 1,
}  # fmt: skip


class ArmTensor(Handle):
    """A tensor with a view of all of it, bound to ``buffer`` at byte ``offset``: both see the same bytes.

    ``format`` is a VkFormat of one component, ``shape`` has at least one dimension, none of them 0. ``strides`` are in
    bytes, none: dense; others need the feature tensor_non_packed. The buffer is kept alive. Raises ``ValueError`` for
    an impossible format, shape or offset, `GpuError` where the driver requires another memory type than the buffer's.
    """

    kind = "tensor"

    def __init__(
        self,
        device: Device,
        format: int,
        shape: Sequence[int],
        buffer: Buffer,
        offset: int = 0,
        *,
        usage: int = arm_abi.USAGE_DATA_GRAPH | arm_abi.USAGE_SHADER,
        strides: Sequence[int] = (),
        label: str = "tensor",
    ) -> None:
        if format not in FORMATS:
            raise ValueError(f"{label}: VkFormat {format} is none of one component: {sorted(FORMATS)}")
        if not shape or any(d < 1 for d in shape):
            raise ValueError(f"{label}: shape {tuple(shape)}, expected one or more dimensions of at least 1")
        self.format, self.shape = format, tuple(int(d) for d in shape)
        self.nbytes = self.shape[0] * strides[0] if strides else math.prod(self.shape) * FORMATS[format]
        self.buffer, self.offset = buffer, offset
        if offset < 0 or offset + self.nbytes > buffer.size:
            raise ValueError(
                f"{label}: {self.nbytes} bytes at {offset} are outside {buffer.label!r} of {buffer.size} bytes"
            )
        fn, raw_device = device.fn, device.raw
        null = vk.extra_ffi().NULL
        description = tensor_description(format, self.shape, usage, strides)
        info = vk.make("VkTensorCreateInfoARM", pDescription=description)
        out = vk.extra_ffi().new("VkTensorARM *")
        vk.check(fn.vkCreateTensorARM(raw_device, info.ptr, null, out), "vkCreateTensorARM", label)
        raw = out[0]
        try:
            self._bind(device, raw, label)
            view_info = vk.make("VkTensorViewCreateInfoARM", tensor=raw, format=format)
            view = vk.extra_ffi().new("VkTensorViewARM *")
            vk.check(fn.vkCreateTensorViewARM(raw_device, view_info.ptr, null, view), "vkCreateTensorViewARM", label)
        except BaseException:
            fn.vkDestroyTensorARM(raw_device, raw, null)
            raise
        self.view: int = view[0]  #: the raw VkTensorViewARM

        def destroy(view: int = view[0]) -> None:
            fn.vkDestroyTensorViewARM(raw_device, view, null)
            fn.vkDestroyTensorARM(raw_device, raw, null)

        # a child of the buffer: in any order of closing, its memory is freed after the tensor
        super().__init__(raw, parent=buffer, destroy=destroy, label=label, reaper=device.reaper)

    def _bind(self, device: Device, raw: int, label: str) -> None:
        fn = device.fn
        requirements = vk.make("VkMemoryRequirements2")
        asked = vk.make("VkTensorMemoryRequirementsInfoARM", tensor=raw)
        fn.vkGetTensorMemoryRequirementsARM(device.raw, asked.ptr, requirements.ptr)
        need = requirements.ptr.memoryRequirements
        memory = self.buffer.memory_size - self.offset
        if self.offset % need.alignment or not need.memoryTypeBits >> self.buffer.memory_type & 1 or need.size > memory:
            raise GpuError(
                "vkBindTensorMemoryARM",
                label=label,
                hint=f"the driver wants {need.size} bytes aligned to {need.alignment} in memory types "
                f"{need.memoryTypeBits:#x}; {self.buffer.label!r} has {memory} bytes at {self.offset} of "
                f"type {self.buffer.memory_type}",
            )
        bind = vk.make(
            "VkBindTensorMemoryInfoARM", tensor=raw, memory=vk.number(self.buffer.memory), memoryOffset=self.offset
        )
        vk.check(fn.vkBindTensorMemoryARM(device.raw, 1, bind.ptr), "vkBindTensorMemoryARM", label)


def tensor_description(
    format: int, shape: Sequence[int], usage: int = arm_abi.USAGE_DATA_GRAPH, strides: Sequence[int] = ()
) -> vk.Struct:
    """A linear tensor's VkTensorDescriptionARM; ``strides`` in bytes, none: packed."""
    return vk.make(
        "VkTensorDescriptionARM",
        tiling=arm_abi.TILING_LINEAR,
        format=format,
        dimensionCount=len(shape),
        pDimensions=[int(d) for d in shape],
        pStrides=[int(s) for s in strides] if strides else None,
        usage=usage,
    )
