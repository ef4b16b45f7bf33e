"""Data graph pipelines and their sessions (VK_ARM_data_graph)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpu_shared import arm_abi, vk
from gpu_shared.errors import ContextIncompatibleError, GpuError
from gpu_shared.handles import Handle
from gpu_shared.memory import Buffer
from gpu_shared.tensors import tensor_description

if TYPE_CHECKING:
    from gpu_shared.device import Device
    from gpu_shared.pipeline import PipelineLayout, ShaderModule


@dataclass(frozen=True)
class GraphResource:
    """A tensor that the graph reads or writes: where it is bound, its VkFormat and shape."""

    set: int
    binding: int
    format: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class GraphConstant:
    """A constant of the graph, by its number in the module; ``data`` holds the dense elements."""

    id: int
    format: int
    shape: tuple[int, ...]
    data: bytes | memoryview


def check_data_graphs(device: Device) -> None:
    """Raise `ContextIncompatibleError` where the device or its queue cannot run data graphs."""
    missing = [name for name in arm_abi.EXTENSIONS if name not in device.extensions]
    flags = () if "data_graph" in device.family.flags else ("data_graph",)
    if missing or flags:
        raise ContextIncompatibleError(
            device.label,
            extensions=missing,
            queue_flags=flags,
            hint="no driver feature and no emulation layer: whoever creates the context decides; let the session "
            "that wants data graphs create it, or use another token or group",
        )


class DataGraphPipeline(Handle):
    """The graph ``entry_point`` of a SPIR-V module, compiled by the driver.

    ``resources`` are its inputs and outputs, ``constants`` what the module names as constants. Raises
    `ContextIncompatibleError`, and `GpuError` where the driver refuses the module.
    """

    kind = "data_graph_pipeline"

    def __init__(
        self,
        device: Device,
        layout: PipelineLayout,
        module: ShaderModule,
        entry_point: str,
        resources: Sequence[GraphResource],
        constants: Sequence[GraphConstant] = (),
        *,
        label: str = "data graph",
    ) -> None:
        check_data_graphs(device)
        infos = [
            vk.make(
                "VkDataGraphPipelineResourceInfoARM",
                pNext=tensor_description(r.format, r.shape),
                descriptorSet=r.set,
                binding=r.binding,
            )
            for r in resources
        ]
        held = [
            vk.make(
                "VkDataGraphPipelineConstantARM",
                pNext=tensor_description(c.format, c.shape),
                id=c.id,
                pConstantData=c.data,
            )
            for c in constants
        ]
        stage = vk.make(
            "VkDataGraphPipelineShaderModuleCreateInfoARM",
            module=vk.number(module.raw),
            pName=entry_point,
            constantCount=len(held),
            pConstants=held,
        )
        info = vk.make(
            "VkDataGraphPipelineCreateInfoARM",
            pNext=stage,
            layout=vk.number(layout.raw),
            resourceInfoCount=len(infos),
            pResourceInfos=infos,
        )
        fn, device_raw = device.fn, device.raw
        api = vk.extra_ffi()
        out = api.new("uint64_t *")
        result = fn.vkCreateDataGraphPipelinesARM(device_raw, 0, 0, 1, info.ptr, api.NULL, out)
        if result < 0 or not out[0]:
            vk.check(result if result < 0 else -3, "vkCreateDataGraphPipelinesARM", label)
        raw = vk.handle("VkPipeline", out[0])
        super().__init__(
            raw,
            parent=device,
            destroy=lambda: fn.vkDestroyPipeline(device_raw, raw, vk.ffi.NULL),
            label=label,
            reaper=device.reaper,
        )
        self.layout = layout
        self._module = module  # some drivers read it again when a session is made


class DataGraphSession(Handle):
    """What one execution at a time of a pipeline needs: the session object and its memory."""

    kind = "data_graph_session"

    def __init__(self, device: Device, pipeline: DataGraphPipeline, *, label: str = "data graph session") -> None:
        fn, device_raw = device.fn, device.raw
        api = vk.extra_ffi()
        info = vk.make("VkDataGraphPipelineSessionCreateInfoARM", dataGraphPipeline=vk.number(pipeline.raw))
        out = api.new("VkDataGraphPipelineSessionARM *")
        result = fn.vkCreateDataGraphPipelineSessionARM(device_raw, info.ptr, api.NULL, out)
        vk.check(result, "vkCreateDataGraphPipelineSessionARM", label)
        raw = out[0]
        self.pipeline = pipeline
        self.memory: list[Buffer] = []
        try:
            self._bind_memory(device, raw, label)
        except BaseException:
            fn.vkDestroyDataGraphPipelineSessionARM(device_raw, raw, api.NULL)
            for buffer in self.memory:
                buffer.close()
            raise
        super().__init__(
            raw,
            parent=pipeline,
            destroy=lambda: fn.vkDestroyDataGraphPipelineSessionARM(device_raw, raw, api.NULL),
            label=label,
            reaper=device.reaper,
        )

    @property
    def memory_bytes(self) -> int:
        """Bytes of session memory."""
        return sum(buffer.size for buffer in self.memory)

    def _bind_memory(self, device: Device, raw: int, label: str) -> None:
        fn, api = device.fn, vk.extra_ffi()
        asked = vk.make("VkDataGraphPipelineSessionBindPointRequirementsInfoARM", session=raw)
        call = fn.vkGetDataGraphPipelineSessionBindPointRequirementsARM
        count = api.new("uint32_t *")
        name = "vkGetDataGraphPipelineSessionBindPointRequirementsARM"
        vk.check(call(device.raw, asked.ptr, count, api.NULL), name, label)
        template = vk.make("VkDataGraphPipelineSessionBindPointRequirementARM")
        points = api.new("VkDataGraphPipelineSessionBindPointRequirementARM[]", [template.ptr[0]] * count[0])
        vk.check(call(device.raw, asked.ptr, count, points), name, label)
        for point in points[0 : count[0]]:
            if point.bindPointType != arm_abi.BIND_POINT_TYPE_MEMORY:
                raise GpuError(name, label=label, hint=f"session bind point type {point.bindPointType} is not memory")
            for index in range(point.numObjects):
                which: dict[str, Any] = {"session": raw, "bindPoint": point.bindPoint, "objectIndex": index}
                requirements = vk.make("VkMemoryRequirements2")
                info = vk.make("VkDataGraphPipelineSessionMemoryRequirementsInfoARM", **which)
                fn.vkGetDataGraphPipelineSessionMemoryRequirementsARM(device.raw, info.ptr, requirements.ptr)
                need = requirements.ptr.memoryRequirements
                if not need.size:
                    continue
                # at offset 0 of an allocation of its own: aligned to whatever the driver asks
                buffer = Buffer(device, need.size, memory_types=need.memoryTypeBits, label=f"{label} memory")
                self.memory.append(buffer)
                bind = vk.make("VkBindDataGraphPipelineSessionMemoryInfoARM", memory=vk.number(buffer.memory), **which)
                result = fn.vkBindDataGraphPipelineSessionMemoryARM(device.raw, 1, bind.ptr)
                vk.check(result, "vkBindDataGraphPipelineSessionMemoryARM", label)

    def _before_retire(self) -> None:
        for buffer in self.memory:
            buffer.close()
        self.memory = []
