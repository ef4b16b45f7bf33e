"""Data graph pipelines and their sessions (VK_ARM_data_graph)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpu_shared import arm_abi, vk
from gpu_shared.errors import ContextIncompatibleError, GpuError
from gpu_shared.handles import Handle
from gpu_shared.layers import EMULATION_LAYERS
from gpu_shared.memory import Buffer
from gpu_shared.tensors import tensor_description

if TYPE_CHECKING:
    from gpu_shared.device import Device
    from gpu_shared.pipeline import PipelineCache, PipelineLayout, ShaderModule


@dataclass(frozen=True)
class GraphResource:
    """A tensor that the graph reads or writes: its binding, VkFormat and shape; strides in bytes (none: dense)."""

    set: int
    binding: int
    format: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] = ()


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
            hint="no driver feature and no emulation layer: the creator of the context decides; let the session "
            "that wants data graphs create it, or use another token or group",
        )


def takes_cache(device: Device) -> bool:
    """Whether data graph pipelines accept a VkPipelineCache: the emulation layers (0.11) do not."""
    return not set(EMULATION_LAYERS) & set(device.instance.layers)


class DataGraphPipeline(Handle):
    """The graph ``entry_point`` of a SPIR-V module, compiled by the driver.

    ``resources`` are its inputs and outputs, ``constants`` those that the module declares; ``cache`` is a driver's
    cache (the emulation layers accept none: `takes_cache`). Raises `ContextIncompatibleError`, and `GpuError` where the
    driver refuses the module.
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
        cache: PipelineCache | None = None,
        label: str = "data graph",
    ) -> None:
        check_data_graphs(device)
        infos = [
            vk.make(
                "VkDataGraphPipelineResourceInfoARM",
                pNext=tensor_description(r.format, r.shape, strides=r.strides),
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
        known = vk.number(cache.raw) if cache is not None and takes_cache(device) else 0
        result = fn.vkCreateDataGraphPipelinesARM(device_raw, 0, known, 1, info.ptr, api.NULL, out)
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
        self._module = module  # some drivers read it again when a session is created


#: (size, alignment, memory type bits) to a buffer and an offset in it, or None
Allocate = Callable[[int, int, int], "tuple[Buffer, int] | None"]


class DataGraphSession(Handle):
    """The objects for one execution at a time of a pipeline: the session and its memory.

    ``allocate`` returns memory that outlives the session and belongs to its owner; where it returns None, or without
    it, the session allocates separately.
    """

    kind = "data_graph_session"

    def __init__(
        self,
        device: Device,
        pipeline: DataGraphPipeline,
        *,
        allocate: Allocate | None = None,
        label: str = "data graph session",
    ) -> None:
        fn, device_raw = device.fn, device.raw
        api = vk.extra_ffi()
        info = vk.make("VkDataGraphPipelineSessionCreateInfoARM", dataGraphPipeline=vk.number(pipeline.raw))
        out = api.new("VkDataGraphPipelineSessionARM *")
        result = fn.vkCreateDataGraphPipelineSessionARM(device_raw, info.ptr, api.NULL, out)
        vk.check(result, "vkCreateDataGraphPipelineSessionARM", label)
        raw = out[0]
        self.pipeline = pipeline
        self.memory: list[Buffer] = []  #: its own allocations
        self.memory_bytes = 0  #: bytes of session memory
        try:
            self._bind_memory(device, raw, allocate, label)
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

    def _bind_memory(self, device: Device, raw: int, allocate: Allocate | None, label: str) -> None:
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
                given = allocate(need.size, need.alignment, need.memoryTypeBits) if allocate is not None else None
                if given is None:
                    # at offset 0 of a separate allocation: aligned for any requirement
                    buffer, offset = (
                        Buffer(device, need.size, memory_types=need.memoryTypeBits, label=f"{label} memory"),
                        0,
                    )
                    self.memory.append(buffer)
                else:
                    buffer, offset = given
                self.memory_bytes += need.size
                bind = vk.make(
                    "VkBindDataGraphPipelineSessionMemoryInfoARM",
                    memory=vk.number(buffer.memory),
                    memoryOffset=offset,
                    **which,
                )
                result = fn.vkBindDataGraphPipelineSessionMemoryARM(device.raw, 1, bind.ptr)
                vk.check(result, "vkBindDataGraphPipelineSessionMemoryARM", label)

    def _before_retire(self) -> None:
        for buffer in self.memory:
            buffer.close()
        self.memory = []
