"""Descriptor sets, for pipelines that bind their resources: data graphs, and foreign shaders."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpu_shared import arm_abi, vk
from gpu_shared.handles import DeviceObject
from gpu_shared.memory import Buffer

if TYPE_CHECKING:
    from gpu_shared.device import Device
    from gpu_shared.tensors import ArmTensor

STORAGE_BUFFER, UNIFORM_BUFFER, TENSOR = 7, 6, arm_abi.DESCRIPTOR_TYPE_TENSOR
_ALL_STAGES = 0x7FFFFFFF  # required for a data graph pipeline (VUID-VkDataGraphPipelineCreateInfoARM-layout)


@dataclass(frozen=True)
class BufferRange:
    """``size`` bytes at ``offset`` of a buffer, for a storage or uniform buffer binding."""

    buffer: Buffer
    offset: int
    size: int


class DescriptorSetLayout(DeviceObject):
    """One descriptor of a type (VkDescriptorType) at each binding: ``bindings`` maps binding to type."""

    kind = "descriptor_set_layout"
    vulkan_name = "DescriptorSetLayout"

    def __init__(self, device: Device, bindings: Mapping[int, int], *, label: str = "descriptor set layout") -> None:
        self.bindings = dict(sorted(bindings.items()))
        parts = [
            vk.make(
                "VkDescriptorSetLayoutBinding",
                binding=binding,
                descriptorType=kind,
                descriptorCount=1,
                stageFlags=_ALL_STAGES,
            )
            for binding, kind in self.bindings.items()
        ]
        info = vk.make("VkDescriptorSetLayoutCreateInfo", bindingCount=len(parts), pBindings=parts)
        super().__init__(device, info, label)


class DescriptorSets(DeviceObject):
    """One set for each layout, from a separate pool that is destroyed with them.

    ``write`` a set before a command buffer that binds it is recorded; never while the GPU may use it. Raises
    ``ValueError`` for no layouts.
    """

    kind = "descriptor_pool"
    vulkan_name = "DescriptorPool"

    def __init__(
        self, device: Device, layouts: Sequence[DescriptorSetLayout], *, label: str = "descriptor sets"
    ) -> None:
        if not layouts:
            raise ValueError(f"{label}: no layouts")
        counts = Counter(kind for layout in layouts for kind in layout.bindings.values())
        sizes = [vk.make("VkDescriptorPoolSize", type=k, descriptorCount=n) for k, n in sorted(counts.items())]
        info = vk.make("VkDescriptorPoolCreateInfo", maxSets=len(layouts), poolSizeCount=len(sizes), pPoolSizes=sizes)
        super().__init__(device, info, label)
        self._layouts = tuple(layouts)
        handles = vk.ffi.new("VkDescriptorSetLayout[]", [layout.raw for layout in layouts])
        allocate = vk.make(
            "VkDescriptorSetAllocateInfo", descriptorPool=self.raw, descriptorSetCount=len(layouts), pSetLayouts=handles
        )
        self.sets = vk.ffi.new("VkDescriptorSet[]", len(layouts))
        try:
            result = device.fn.vkAllocateDescriptorSets(device.raw, allocate.ptr, self.sets)
            vk.check(result, "vkAllocateDescriptorSets", label)
        except BaseException:
            self.close()
            raise
        self._bound: dict[tuple[int, int], Any] = {}

    def write(self, index: int, resources: Mapping[int, ArmTensor | BufferRange]) -> None:
        """Bind a resource to each named binding of set ``index``; they are kept alive.

        Raises ``ValueError`` for a binding that the layout lacks or a resource whose type does not match.
        """
        fn, layout = self.device.fn, self._layouts[index]
        keep: list[Any] = []
        writes = []
        for binding, resource in resources.items():
            kind = layout.bindings.get(binding)
            if kind is None or (kind == TENSOR) == isinstance(resource, BufferRange):
                raise ValueError(
                    f"{self.label}: set {index} binding {binding}: got {type(resource).__name__}, "
                    f"the layout has {'no such binding' if kind is None else f'descriptor type {kind}'}"
                )
            common = {
                "dstSet": self.sets[index],
                "dstBinding": binding,
                "descriptorCount": 1,
                "descriptorType": kind,
            }
            if isinstance(resource, BufferRange):
                part = vk.make(
                    "VkDescriptorBufferInfo", buffer=resource.buffer.raw, offset=resource.offset, range=resource.size
                )
                writes.append(vk.make("VkWriteDescriptorSet", pBufferInfo=part, **common))
            else:
                part = vk.make("VkWriteDescriptorSetTensorARM", tensorViewCount=1, pTensorViews=[resource.view])
                writes.append(vk.make("VkWriteDescriptorSet", pNext=part, **common))
            keep.append(part)
            self._bound[index, binding] = resource
        array = vk.ffi.new("VkWriteDescriptorSet[]", [one.ptr[0] for one in writes])
        fn.vkUpdateDescriptorSets(self.device.raw, len(writes), array, 0, vk.ffi.NULL)

    def _before_retire(self) -> None:
        self._bound = {}
