"""Runs kernel calls on a separate device, without a session or a plan: pipelines, buffers and submissions."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from gpu_shared.capabilities import DeviceCapabilities
from gpu_shared.commands import CommandBuffer, CommandPool
from gpu_shared.device import Device
from gpu_shared.instance import Instance
from gpu_shared.memory import Buffer
from gpu_shared.pipeline import ComputePipeline, PipelineLayout, ShaderModule
from gpu_shared.timeline import PreparedSubmit, Timeline
from vkep.kernels.kernel import PUSH_CONSTANT_BYTES, KernelCall
from vkep.plan.records import PipelineKey
from vkep.shaders.interface import ADDRESS_BYTES
from vkep.shaders.library import ShaderLibrary

TIMEOUT_S = 120


@dataclass(frozen=True)
class ReadyCall:
    """A call prepared for recording; ``block`` holds its arguments where push constants do not."""

    pipeline: ComputePipeline
    push_constants: bytes
    grid: tuple[int, int, int]
    block: Buffer | None

    def record(self, commands: CommandBuffer) -> None:
        """Record the pipeline, its arguments and one dispatch, without a barrier."""
        commands.bind_pipeline(self.pipeline)
        commands.push_constants(self.pipeline.layout, self.push_constants)
        commands.dispatch(*self.grid)

    def close(self) -> None:
        """Free its memory, once the GPU has finished the call."""
        if self.block is not None:
            self.block.close()


class KernelRunner:
    """Runs calls on one device. Pipelines are kept until `close`; the caller owns the operands' memory."""

    def __init__(self, label: str, select: int | str | None = None, validation: bool | None = None) -> None:
        """``validation``: as for `gpu_shared.SharedGpuContext.create`."""
        self.instance = Instance(label, validation=validation)
        self.device = Device(self.instance, select)
        self.caps: DeviceCapabilities = self.device.capabilities
        self.library = ShaderLibrary()
        self.pool = CommandPool(self.device)
        self.timeline = Timeline(self.device)
        self._pipelines: dict[PipelineKey, ComputePipeline] = {}
        self._layouts: dict[int, PipelineLayout] = {}

    def close(self) -> None:
        """Destroy the device and everything made on it."""
        self.device.close()
        self.instance.close()

    def ready(
        self, call: KernelCall, addresses: Sequence[int], *, indirect: int = 0, in_memory: bool | None = None
    ) -> ReadyCall:
        """Prepare the call with its operands at ``addresses`` (those of their slots where ``indirect`` has a bit); its
        arguments are in memory where they must be, or by choice. Raises the shader library's errors."""
        arguments = struct.pack(f"<{len(addresses)}Q", *addresses) + call.scalars
        if in_memory is None:
            in_memory = len(arguments) > PUSH_CONSTANT_BYTES
        spec = tuple(sorted({**call.spec, "INDIRECT": indirect}.items()))
        key = PipelineKey(call.variant, spec, len(arguments), in_memory, call.subgroup_size)
        if key not in self._pipelines:
            self._pipelines[key] = self._make(key, call)
        block = self.buffer(len(arguments), arguments) if in_memory else None
        pushed = arguments if block is None else struct.pack("<Q", block.address)
        return ReadyCall(self._pipelines[key], pushed, call.grid, block)

    def buffer(self, nbytes: int, data: bytes | memoryview = b"") -> Buffer:
        """Allocate a device buffer of ``nbytes`` and upload ``data`` to its start."""
        made = Buffer(self.device, max(nbytes, 16), "device")
        if made.mapped is not None:
            made.mapped[: len(data)] = data
            made.flush()
        elif data:
            staging = Buffer(self.device, len(data), "upload")
            assert staging.mapped is not None
            staging.mapped[:] = data
            self.copy(staging, made, len(data))
            staging.close()
        return made

    def copy(self, source: Buffer, target: Buffer, nbytes: int) -> None:
        """Copy the first ``nbytes`` and wait."""
        commands = self.pool.allocate().begin(one_time=True)
        commands.barrier_before_transfer()
        commands.copy_buffer(source, target, nbytes)
        self.submit(commands)

    def submit(self, commands: CommandBuffer) -> None:
        """End, submit and wait: the results are then visible to the GPU and to the host."""
        commands.barrier_all()
        commands.end()
        self.timeline.wait(PreparedSubmit(self.timeline, [commands]).submit(), timeout_s=TIMEOUT_S)
        commands.close()

    def _make(self, key: PipelineKey, call: KernelCall) -> ComputePipeline:
        shader = self.library.spirv(key.shader, key.arguments_in_memory)
        self.library.check(shader)
        ids = shader.spec_ids
        pushed = ADDRESS_BYTES if key.arguments_in_memory else key.argument_bytes
        if pushed not in self._layouts:
            self._layouts[pushed] = PipelineLayout(self.device, pushed)
        words = self.library.fitted(shader, self.device.capabilities.features)
        module = ShaderModule(self.device, words, label=key.shader.source)
        pipeline = ComputePipeline(
            self.device,
            self._layouts[pushed],
            module,
            {ids[name]: value for name, value in key.spec},
            required_subgroup_size=key.subgroup_size,
            label=key.shader.source,
        )
        module.close()
        return pipeline
