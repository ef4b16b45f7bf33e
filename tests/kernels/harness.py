"""Runs kernel calls on the machine's driver with numpy arrays as operands.

Every tensor lies between two guards; `Harness.run` fails when a kernel writes outside of its tensors. Outputs begin as
garbage, so a kernel that misses an element is found out too.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpu_shared.capabilities import DeviceCapabilities
from gpu_shared.commands import CommandBuffer, CommandPool, QueryPool
from gpu_shared.device import Device
from gpu_shared.instance import Instance
from gpu_shared.memory import Buffer
from gpu_shared.pipeline import ComputePipeline, PipelineLayout, ShaderModule
from gpu_shared.timeline import PreparedSubmit, Timeline
from vkep.kernels.kernel import ADDRESS_BYTES, KernelCall
from vkep.shaders.library import ShaderLibrary

PUSH_BYTES = 128
GUARD = 256  #: bytes on either side of a tensor; also its alignment
GUARD_BYTE = 0xA5
GARBAGE_BYTE = 0xCD


@dataclass(eq=False)
class Tensor:
    """An operand: its content before a run and, where calls write it, after."""

    array: np.ndarray
    offset: int = 0  #: bytes by which its address is off the guard's alignment

    @classmethod
    def empty(cls, shape: Sequence[int], dtype: Any) -> Tensor:
        """An output: garbage until a kernel writes it."""
        size = math.prod(shape) * np.dtype(dtype).itemsize
        return cls(np.frombuffer(bytes([GARBAGE_BYTE]) * size, dtype).reshape(shape))


@dataclass
class NumpyWorkspace:
    """The workspace that selection functions ask for scratch tensors and tables."""

    tensors: list[Tensor] = field(default_factory=list)

    def scratch(self, dtype: str, shape: tuple[int, ...]) -> Tensor:
        self.tensors.append(Tensor.empty(shape, dtype))
        return self.tensors[-1]

    def constant(self, array: np.ndarray) -> Tensor:
        self.tensors.append(Tensor(array))
        return self.tensors[-1]


class Harness:
    """One device for a test session; pipelines are kept between runs."""

    def __init__(self, select: int | str | None = None) -> None:
        self.instance = Instance("vkep kernel tests")
        self.device = Device(self.instance, select)
        self.caps: DeviceCapabilities = self.device.capabilities
        self.library = ShaderLibrary()
        self._pool = CommandPool(self.device)
        self._timeline = Timeline(self.device)
        self._layouts: dict[int, PipelineLayout] = {}
        self._pipelines: dict[Any, ComputePipeline] = {}

    def close(self) -> None:
        self.device.close()
        self.instance.close()

    def pipeline(self, call: KernelCall, indirect_mask: int = 0, in_memory: bool | None = None) -> ComputePipeline:
        """The call's pipeline; its interface is checked against the declaration."""
        in_memory = call.argument_bytes > PUSH_BYTES if in_memory is None else in_memory
        spec = {**call.spec, "INDIRECT": indirect_mask}
        key = (call.variant, in_memory, tuple(sorted(spec.items())), call.subgroup_size)
        if key not in self._pipelines:
            shader = self.library.spirv(call.variant, in_memory)
            extra_operands = [o for o, _ in call.operands[len(call.kernel.operands) :]]
            if not extra_operands:
                self.library.check(call.kernel, shader)
            ids = {c.name: c.id for c in shader.reflection.spec_constants}
            push = ADDRESS_BYTES if in_memory else call.argument_bytes
            if push not in self._layouts:
                self._layouts[push] = PipelineLayout(self.device, push)
            module = ShaderModule(self.device, shader.words, label=call.variant.source)
            self._pipelines[key] = ComputePipeline(
                self.device,
                self._layouts[push],
                module,
                {ids[name]: value for name, value in spec.items() if name in ids},
                required_subgroup_size=call.subgroup_size,
                label=call.variant.source,
            )
            module.close()
        return self._pipelines[key]

    def run(
        self,
        calls: Sequence[KernelCall],
        *,
        indirect: bool = False,
        in_memory: bool | None = None,
        repeats: int = 0,
    ) -> float | None:
        """Run the calls in order and read every written tensor back into its ``array``.

        ``indirect`` passes every operand through a slot of a table; ``in_memory`` forces where arguments lie. With
        ``repeats``, returns the median GPU time of the calls in milliseconds. Raises `AssertionError` where a guard
        changed.
        """
        tensors = {id(t): t for call in calls for _, t in call.operands if t is not None}
        written = {id(t) for call in calls for o, t in call.operands if t is not None and o.writes}
        buffers = {key: self._upload(t) for key, t in tensors.items()}
        addresses = {key: buffers[key].address + GUARD + t.offset for key, t in tensors.items()}
        table = Buffer(self.device, sum(16 * len(c.operands) + len(c.scalars) + 8 for c in calls) or 8, "upload")
        prepared, at = [], 0
        for call in calls:
            prepared.append(self._prepare(call, addresses, indirect, in_memory, table, at))
            at += 16 * len(call.operands) + (len(call.scalars) + 7 & ~7)
        times = [self._submit(prepared, timed=repeats > 0) for _ in range(max(1, repeats))]
        table.close()
        for key, buffer in buffers.items():
            self._download(tensors[key], buffer, key in written)
            buffer.close()
        return float(np.median(times)) if repeats else None

    def _prepare(
        self,
        call: KernelCall,
        addresses: dict[int, int],
        indirect: bool,
        in_memory: bool | None,
        table: Buffer,
        at: int,
    ) -> tuple[ComputePipeline, bytes, tuple[int, int, int]]:
        """(pipeline, push constants, grid). At byte ``at`` of the table lie the operands' slots, then the arguments."""
        assert table.mapped is not None
        targets = [addresses[id(t)] if t is not None else 0 for _, t in call.operands]
        mask = sum(1 << i for i, target in enumerate(targets) if target) if indirect else 0
        slots = struct.pack(f"<{len(targets)}Q", *targets)
        table.mapped[at : at + len(slots)] = slots
        if indirect:
            targets = [table.address + at + 8 * i if target else 0 for i, target in enumerate(targets)]
        block = struct.pack(f"<{len(targets)}Q", *targets) + call.scalars
        far = len(block) > PUSH_BYTES if in_memory is None else in_memory
        if far:
            at += len(slots)
            table.mapped[at : at + len(block)] = block
            block = struct.pack("<Q", table.address + at)
        return self.pipeline(call, mask, far), block, call.grid

    def _submit(self, prepared: Sequence[tuple[ComputePipeline, bytes, tuple[int, int, int]]], timed: bool) -> float:
        """Record and run; milliseconds on the GPU when ``timed``."""
        commands: CommandBuffer = self._pool.allocate()
        queries = QueryPool(self.device, 2) if timed else None
        commands.begin(one_time=True)
        if queries is not None:
            commands.reset_query_pool(queries)
            commands.write_timestamp(queries, 0)
        for n, (pipeline, block, grid) in enumerate(prepared):
            if n:
                commands.memory_barrier()
            commands.bind_pipeline(pipeline)
            commands.push_constants(pipeline.layout, block)
            commands.dispatch(*grid)
        commands.barrier_all()
        if queries is not None:
            commands.write_timestamp(queries, 1)
        commands.end()
        self._timeline.wait(PreparedSubmit(self._timeline, [commands]).submit(), timeout_s=120)
        elapsed = 0.0
        if queries is not None:
            first, last = queries.results() or (0, 0)
            elapsed = queries.nanoseconds(first, last) / 1e6
            queries.close()
        commands.close()
        return elapsed

    def _upload(self, tensor: Tensor) -> Buffer:
        data = np.ascontiguousarray(tensor.array).tobytes()
        whole = np.full(2 * GUARD + tensor.offset + len(data), GUARD_BYTE, np.uint8)
        start = GUARD + tensor.offset
        whole[start : start + len(data)] = np.frombuffer(data, np.uint8)
        buffer = Buffer(self.device, len(whole), "device")
        if buffer.mapped is not None:
            buffer.mapped[:] = whole.tobytes()
            return buffer
        staging = Buffer(self.device, len(whole), "upload")
        assert staging.mapped is not None
        staging.mapped[:] = whole.tobytes()
        self._copy(staging, buffer)
        staging.close()
        return buffer

    def _download(self, tensor: Tensor, buffer: Buffer, written: bool) -> None:
        source = buffer
        if buffer.mapped is None:
            source = Buffer(self.device, buffer.size, "download")
            self._copy(buffer, source)
            source.invalidate()
        assert source.mapped is not None
        whole = np.frombuffer(bytes(source.mapped), np.uint8)
        start, size = GUARD + tensor.offset, tensor.array.nbytes
        before, after = whole[:start], whole[start + size :]
        assert (before == GUARD_BYTE).all(), "a kernel wrote before the start of a tensor"
        assert (after == GUARD_BYTE).all(), "a kernel wrote beyond the end of a tensor"
        content = np.frombuffer(whole[start : start + size].tobytes(), tensor.array.dtype).reshape(tensor.array.shape)
        if written:
            tensor.array = content.copy()
        else:
            assert content.tobytes() == np.ascontiguousarray(tensor.array).tobytes(), "a kernel wrote an input"
        if source is not buffer:
            source.close()

    def _copy(self, source: Buffer, target: Buffer) -> None:
        commands = self._pool.allocate().begin(one_time=True)
        commands.barrier_before_transfer()
        commands.copy_buffer(source, target, source.size)
        commands.barrier_all()
        commands.end()
        self._timeline.wait(PreparedSubmit(self._timeline, [commands]).submit(), timeout_s=120)
        commands.close()
