"""Compute pipelines and their parts. Kernels receive addresses through push constants: there are no descriptors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpu_shared import vk
from gpu_shared.errors import ContextIncompatibleError
from gpu_shared.handles import DeviceObject, Handle

if TYPE_CHECKING:
    from gpu_shared.descriptors import DescriptorSetLayout
    from gpu_shared.device import Device

SPIRV_MAGIC = b"\x03\x02\x23\x07"


class ShaderModule(DeviceObject):
    """A SPIR-V module on a device. Raises ``ValueError`` for bytes that are not little-endian SPIR-V, ``TypeError`` for
    anything but bytes, `GpuError` where the driver refuses it."""

    kind = "shader_module"
    vulkan_name = "ShaderModule"

    def __init__(self, device: Device, spirv: bytes, *, label: str = "shader") -> None:
        if not isinstance(spirv, (bytes, bytearray, memoryview)):
            raise TypeError(f"{label}: spirv is of type {type(spirv).__name__}, expected bytes")
        spirv = bytes(spirv)
        if len(spirv) < 20 or len(spirv) % 4 or spirv[:4] != SPIRV_MAGIC:
            raise ValueError(f"{label}: {len(spirv)} bytes starting with {spirv[:4].hex()} are no SPIR-V module")
        code = vk.ffi.new("uint32_t[]", len(spirv) // 4)  # aligned, unlike bytes
        vk.ffi.memmove(code, spirv, len(spirv))
        info = vk.make("VkShaderModuleCreateInfo", codeSize=len(spirv), pCode=code)
        super().__init__(device, info, label)
        device.set_name(vk.VK_OBJECT_TYPE_SHADER_MODULE, self.raw, label)


class PipelineLayout(DeviceObject):
    """A layout of ``push_bytes`` bytes of push constants for the compute stage and of descriptor sets, which vkep's own
    kernels do not have. Raises ``ValueError`` unless ``push_bytes`` is a multiple of 4 within the device's limit."""

    kind = "pipeline_layout"
    vulkan_name = "PipelineLayout"

    def __init__(
        self,
        device: Device,
        push_bytes: int,
        set_layouts: Sequence[DescriptorSetLayout] = (),
        *,
        label: str = "pipeline layout",
    ) -> None:
        limit = device.capabilities.max_push_constants_size
        if not 0 <= push_bytes <= limit or push_bytes % 4:
            raise ValueError(f"{label}: push_bytes is {push_bytes}, expected a multiple of 4 from 0 to {limit}")
        self.push_bytes = push_bytes
        push = vk.make("VkPushConstantRange", stageFlags=vk.VK_SHADER_STAGE_COMPUTE_BIT, offset=0, size=push_bytes)
        count = 1 if push_bytes else 0
        sets = vk.ffi.new("VkDescriptorSetLayout[]", [layout.raw for layout in set_layouts])
        info = vk.make(
            "VkPipelineLayoutCreateInfo",
            setLayoutCount=len(set_layouts),
            pSetLayouts=sets,
            pushConstantRangeCount=count,
            pPushConstantRanges=[push] * count,
        )
        super().__init__(device, info, label)


class PipelineCache(DeviceObject):
    """The driver's pipeline cache, initialized with the ``initial`` bytes of an earlier `data` (a driver ignores
    another driver's)."""

    kind = "pipeline_cache"
    vulkan_name = "PipelineCache"

    def __init__(self, device: Device, initial: bytes = b"", *, label: str = "pipeline cache") -> None:
        if initial and not self.compatible(device, initial):
            initial = b""
        info = vk.make("VkPipelineCacheCreateInfo", initialDataSize=len(initial), pInitialData=initial or None)
        super().__init__(device, info, label)

    @staticmethod
    def compatible(device: Device, data: bytes) -> bool:
        """Whether the header (specification, "Pipeline Cache Header") names this device and driver: a protection
        against files of other machines, which drivers should reject themselves, but some do not."""
        if len(data) < 32:
            return False
        properties = vk.out("VkPhysicalDeviceProperties")
        device.instance.fn.vkGetPhysicalDeviceProperties(device.physical_device, properties)
        words = [int.from_bytes(data[i : i + 4], "little") for i in (0, 4, 8, 12)]
        return (
            32 <= words[0] <= len(data)
            and words[1] == 1
            and words[2] == properties.vendorID
            and words[3] == properties.deviceID
            and data[16:32] == bytes(properties.pipelineCacheUUID)
        )

    def data(self) -> bytes:
        """The cache's bytes, for saving to disk."""
        fn, raw = self.device.fn, self.raw
        size = vk.out("size_t")
        while True:
            vk.check(
                fn.vkGetPipelineCacheData(self.device.raw, raw, size, vk.ffi.NULL),
                "vkGetPipelineCacheData",
                self.label,
            )
            room = vk.ffi.new("char[]", max(size[0], 1))
            result = fn.vkGetPipelineCacheData(self.device.raw, raw, size, room)
            if vk.check(result, "vkGetPipelineCacheData", self.label) == 0:  # not VK_INCOMPLETE: it has grown meanwhile
                return bytes(vk.ffi.buffer(room, size[0]))


class ComputePipeline(Handle):
    """A compute pipeline: ``module`` at entry point ``main`` under ``layout``.

    ``spec`` gives specialisation constants: id to a 32-bit value (a bool, an int from -2**31 to 2**32-1; a float's
    bits for a float constant). ``required_subgroup_size`` needs the feature subgroup_size_control and a size within
    the device's range.
    """

    kind = "pipeline"

    def __init__(
        self,
        device: Device,
        layout: PipelineLayout,
        module: ShaderModule,
        spec: Mapping[int, int] | None = None,
        *,
        cache: PipelineCache | None = None,
        required_subgroup_size: int | None = None,
        entry_point: str = "main",
        label: str = "pipeline",
    ) -> None:
        fn, device_raw = device.fn, device.raw
        subgroup = _subgroup_size(device, required_subgroup_size, label)
        stage = vk.make(
            "VkPipelineShaderStageCreateInfo",
            pNext=subgroup,
            stage=vk.VK_SHADER_STAGE_COMPUTE_BIT,
            module=module.raw,
            pName=entry_point,
            pSpecializationInfo=_specialisation(spec or {}, label),
        )
        info = vk.make("VkComputePipelineCreateInfo", stage=stage, layout=layout.raw, basePipelineIndex=-1)
        out = vk.out("VkPipeline")
        result = fn.vkCreateComputePipelines(
            device_raw, cache.raw if cache is not None else vk.ffi.NULL, 1, info.ptr, vk.ffi.NULL, out
        )
        vk.check(result, "vkCreateComputePipelines", label)
        raw = out[0]
        self.layout = layout
        super().__init__(
            raw,
            parent=device,
            destroy=lambda: fn.vkDestroyPipeline(device_raw, raw, vk.ffi.NULL),
            label=label,
            reaper=device.reaper,
        )
        device.set_name(vk.VK_OBJECT_TYPE_PIPELINE, raw, label)


def _subgroup_size(device: Device, size: int | None, label: str) -> Any:
    if size is None:
        return None
    capabilities = device.capabilities
    if "subgroup_size_control" not in capabilities.features:
        raise ContextIncompatibleError(
            device.label, features=("subgroup_size_control",), hint=f"{label} needs subgroups of {size}"
        )
    least, most = capabilities.min_subgroup_size, capabilities.max_subgroup_size
    if not least <= size <= most or size & (size - 1):
        raise ValueError(f"{label}: required_subgroup_size is {size}, expected a power of two from {least} to {most}")
    return vk.make("VkPipelineShaderStageRequiredSubgroupSizeCreateInfo", requiredSubgroupSize=size)


def _specialisation(spec: Mapping[int, int], label: str) -> Any:
    if not spec:
        return None
    entries, data = [], bytearray()
    for constant, value in sorted(spec.items()):
        if not -(2**31) <= int(value) < 2**32:
            raise ValueError(f"{label}: spec constant {constant} is {value}, expected a 32-bit value")
        entries.append(vk.make("VkSpecializationMapEntry", constantID=constant, offset=len(data), size=4))
        data += (int(value) & 0xFFFFFFFF).to_bytes(4, "little")
    return vk.make(
        "VkSpecializationInfo", mapEntryCount=len(entries), pMapEntries=entries, dataSize=len(data), pData=bytes(data)
    )
