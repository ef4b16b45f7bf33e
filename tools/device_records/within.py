"""Whether a plan stays within a device's record."""

from __future__ import annotations

import math
from collections.abc import Iterator

from gpu_shared.capabilities import DeviceCapabilities
from vkep.plan.records import PipelineKey, Plan
from vkep.shaders.errors import InvalidSpirvError
from vkep.shaders.library import ShaderLibrary
from vkep.shaders.reflect import Reflection, reflect

_LOCAL = ("LOCAL_X", "LOCAL_Y", "LOCAL_Z")


class Checker:
    """Reports the parts of plans that a device could not run. Compiles each shader once, and caches its findings."""

    def __init__(self, caps: DeviceCapabilities, library: ShaderLibrary) -> None:
        self.caps, self.library = caps, library
        self._modules: dict[tuple[object, bool], Reflection] = {}
        self._seen: set[PipelineKey] = set()

    def beyond(self, plan: Plan) -> Iterator[str]:
        """The parts of a plan that exceed the record. Pipelines of earlier plans are not reported again."""
        caps = self.caps
        largest = min(caps.max_buffer_size, caps.max_allocation_size)
        for what, nbytes in (("activations", plan.activation_bytes), *((c.label, c.nbytes) for c in plan.constants)):
            if nbytes > largest:
                yield f"{what}: {nbytes} bytes, the device allocates {largest}"
        for dispatch in plan.dispatches:
            if any(size > most for size, most in zip(dispatch.grid, caps.max_workgroup_count, strict=True)):
                yield f"{dispatch.label}: a grid of {dispatch.grid}, the device has {caps.max_workgroup_count}"
        for key in plan.pipelines:
            if key not in self._seen:
                self._seen.add(key)
                yield from (f"{key.shader.source}: {problem}" for problem in self._pipeline(key))

    def _pipeline(self, key: PipelineKey) -> Iterator[str]:
        caps, spec = self.caps, dict(key.spec)
        local = [spec.get(name, 1) for name in _LOCAL]
        if math.prod(local) > caps.max_workgroup_invocations or any(
            size > most for size, most in zip(local, caps.max_workgroup_size, strict=True)
        ):
            yield f"a workgroup of {local}, the device has {caps.max_workgroup_invocations} lanes"
        size = key.subgroup_size
        if size is not None and not (
            caps.has("subgroup_size_control") and caps.min_subgroup_size <= size <= caps.max_subgroup_size
        ):
            yield f"subgroups of {size} are asked for, which cannot be had"
        if not key.arguments_in_memory and key.argument_bytes > caps.max_push_constants_size:
            yield f"{key.argument_bytes} bytes of push constants, the device has {caps.max_push_constants_size}"
        try:
            module = self._module(key)
        except InvalidSpirvError as error:
            yield str(error)
            return
        shared = module.shared_memory_bytes({name: value for name, value in key.spec if name in module.spec_ids})
        if shared is None or shared > caps.max_shared_memory_bytes:
            yield f"{shared} bytes of shared memory, the device has {caps.max_shared_memory_bytes}"

    def _module(self, key: PipelineKey) -> Reflection:
        """Raises `InvalidSpirvError` for a module that needs capabilities which the device lacks."""
        name = (key.shader, key.arguments_in_memory)
        if name not in self._modules:
            shader = self.library.spirv(key.shader, key.arguments_in_memory)
            self._modules[name] = reflect(self.library.fitted(shader, self.caps.features))
        return self._modules[name]
