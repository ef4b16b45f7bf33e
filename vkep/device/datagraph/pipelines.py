"""The pipelines of a VGF file on a device: data graphs, and compute shaders that other tools put into the file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from gpu_shared.data_graph import DataGraphPipeline, GraphConstant, GraphResource
from gpu_shared.descriptors import DescriptorSetLayout
from gpu_shared.pipeline import ComputePipeline, PipelineLayout, ShaderModule
from vkep.vgf.interface import check_graph
from vkep.vgf.layout import check_resource, dense, memory_bytes, strides_of
from vkep.vgf.records import STORAGE_BUFFER, TENSOR, InvalidVgfError, Module, Resource, Segment, Vgf

if TYPE_CHECKING:
    from gpu_shared.device import Device
    from gpu_shared.pipeline import PipelineCache


class SegmentPipeline:
    """A segment's pipeline."""

    def __init__(
        self,
        device: Device,
        vgf: Vgf,
        segment: Segment,
        code: Mapping[str, bytes],
        cache: PipelineCache | None = None,
    ) -> None:
        self.segment = segment
        module = vgf.modules[segment.module]
        where = f"segment {segment.name!r}"
        for slots in segment.sets.values():
            for slot in slots:
                check_resource(f"{where} binding {slot.binding}", vgf.resources[slot.resource], takes_gaps(device))
        self.set_layouts: list[DescriptorSetLayout] = []
        self.layout: PipelineLayout | None = None
        self.module: ShaderModule | None = None
        self.graph: DataGraphPipeline | None = None
        self.compute: ComputePipeline | None = None
        try:
            self._make(device, vgf, module, code, cache)
        except BaseException:
            self.close()
            raise

    def _make(
        self, device: Device, vgf: Vgf, module: Module, code: Mapping[str, bytes], cache: PipelineCache | None
    ) -> None:
        segment = self.segment
        where = f"segment {segment.name!r}"
        spirv = _code_of(module, code, where)
        if segment.kind == "graph":
            check_graph(where, vgf, segment, spirv)
        for i in range(max(segment.sets, default=-1) + 1):
            slots = segment.sets.get(i, ())
            types = {slot.binding: binding_type(segment, vgf.resources[slot.resource]) for slot in slots}
            self.set_layouts.append(DescriptorSetLayout(device, types, label=f"{where} set {i}"))
        push_bytes = max((offset + size for _, offset, size in segment.push_constants), default=0)
        self.layout = layout = PipelineLayout(device, push_bytes, self.set_layouts, label=where)
        self.module = made = ShaderModule(device, spirv, label=module.name)
        if segment.kind == "compute":
            self.compute = ComputePipeline(
                device, layout, made, cache=cache, entry_point=module.entry_point, label=segment.name
            )
            return
        resources = [
            GraphResource(i, s.binding, resource.format, dense(resource), strides_of(resource))
            for i, bound in segment.sets.items()
            for s in bound
            for resource in (vgf.resources[s.resource],)
        ]
        constants = []
        for number, index in segment.constants:
            constant = vgf.constants[index]
            resource = vgf.resources[constant.resource]
            check_resource(f"{where} constant {number}", resource)
            constants.append(GraphConstant(number, resource.format, dense(resource), constant.data))
        self.graph = DataGraphPipeline(
            device, layout, made, module.entry_point, resources, constants, cache=cache, label=segment.name
        )

    def close(self) -> None:
        """Destroy the segment's pipeline and layouts."""
        for part in (self.graph, self.compute, self.module, self.layout, *self.set_layouts):
            if part is not None:
                part.close()


class VgfPipelines:
    """Every segment's pipeline of one file on one device; ``cache`` is the driver's."""

    def __init__(self, device: Device, vgf: Vgf, code: Mapping[str, bytes], cache: PipelineCache | None = None) -> None:
        self.steps: list[SegmentPipeline] = []
        try:
            for segment in vgf.segments:
                self.steps.append(SegmentPipeline(device, vgf, segment, code, cache))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Destroy the pipelines of all segments."""
        for step in self.steps:
            step.close()
        self.steps = []


def passed_through(vgf: Vgf) -> list[tuple[int, int]]:
    """(input, output) resources of the outputs that no segment writes: each is the input of its alias group, or at its
    binding.

    The converter writes such files where folding removes every operation between an input and an output. Raises
    `InvalidVgfError` where no such input exists.
    """
    bound = {slot.resource for segment in vgf.segments for slots in segment.sets.values() for slot in slots}
    pairs = []
    for slot in vgf.outputs:
        if slot.resource in bound:
            continue
        group = vgf.resources[slot.resource].alias_group
        sources = [
            s.resource for s in vgf.inputs if group is not None and vgf.resources[s.resource].alias_group == group
        ]
        sources += [s.resource for s in vgf.inputs if s.binding == slot.binding]
        target = vgf.resources[slot.resource]
        source = vgf.resources[sources[0]] if sources else None
        if source is None or memory_bytes(source) != memory_bytes(target) or strides_of(source) != strides_of(target):
            raise InvalidVgfError(f"no segment writes the output {slot.name!r} (resource {slot.resource})")
        pairs.append((sources[0], slot.resource))
    return pairs


def takes_gaps(device: Device) -> bool:
    """Whether tensors may have gaps between their rows."""
    return "tensor_non_packed" in device.capabilities.features


def binding_type(segment: Segment, resource: Resource) -> int:
    """The VkDescriptorType of a binding. Graphs bind tensors, whatever type a shader binds the same resource as."""
    if segment.kind == "graph":
        return TENSOR
    return STORAGE_BUFFER if resource.descriptor_type is None else resource.descriptor_type


def _code_of(module: Module, code: Mapping[str, bytes], where: str) -> bytes:
    found = module.spirv if module.spirv is not None else code.get(module.name)
    if found is None:
        what = "is a placeholder" if module.language == "SPIR-V" else f"is {module.language} source"
        raise InvalidVgfError(f"{where}: module {module.name!r} {what}: give its SPIR-V by name")
    return found
