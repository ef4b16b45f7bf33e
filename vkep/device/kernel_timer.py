"""Times kernel calls on the GPU with timestamps, without a session: operands are plain device buffers."""

from __future__ import annotations

import statistics
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpu_shared.capabilities import DeviceCapabilities
from gpu_shared.commands import CommandPool, QueryPool
from gpu_shared.device import Device
from gpu_shared.instance import Instance
from gpu_shared.memory import Buffer
from gpu_shared.pipeline import ComputePipeline, PipelineLayout, ShaderModule
from gpu_shared.timeline import PreparedSubmit, Timeline
from vkep.kernels.kernel import KernelCall
from vkep.shaders.library import ShaderLibrary

_SAMPLES = 5
#: an idle GPU runs at a low clock and takes this long to raise it
_WARM_SECONDS = 0.05
_PUSH_BYTES = 128


@dataclass(eq=False)
class Operand:
    """A device buffer of ``nbytes``; ``data`` is uploaded before the first use."""

    nbytes: int
    data: np.ndarray | None = None
    buffer: Buffer | None = field(default=None, repr=False)


class KernelTimer:
    """One device; operands keep their buffers until `close`, pipelines are made once."""

    def __init__(self, select: int | str | None = None) -> None:
        self.instance = Instance("vkep kernel timer")
        self.device = Device(self.instance, select)
        self.caps: DeviceCapabilities = self.device.capabilities
        self.library = ShaderLibrary()
        self._pool = CommandPool(self.device)
        self._timeline = Timeline(self.device)
        self._pipelines: dict[Any, ComputePipeline] = {}
        self._layouts: dict[int, PipelineLayout] = {}
        self._tables: list[Operand] = []

    def operand(self, data: np.ndarray | None = None, nbytes: int = 0) -> Operand:
        return Operand(data.nbytes if data is not None else nbytes, data)

    def scratch(self, nbytes: int) -> Operand:
        return Operand(nbytes)

    def prepack(self, operand: Operand) -> Any:
        """The `Prepack` of a constant operand."""
        assert operand.data is not None
        return lambda transform, tag: self.operand(np.ascontiguousarray(transform(operand.data)))

    def close(self) -> None:
        self.device.close()
        self.instance.close()

    def milliseconds(self, calls: Sequence[KernelCall], repeats: int = 10) -> float:
        """GPU time of one pass over the calls (each waits for the last): the median of several timed batches."""
        return statistics.median(self.samples(calls, repeats)[-_SAMPLES:])

    def samples(self, calls: Sequence[KernelCall], repeats: int = 10) -> list[float]:
        """As `milliseconds`: the time of each batch, over ``repeats``; the first ones may be of an idle GPU."""
        prepared = [self._prepare(call) for call in calls]
        commands, queries = self._pool.allocate(), QueryPool(self.device, 2)
        commands.begin(simultaneous=False)
        commands.reset_query_pool(queries)
        commands.memory_barrier()
        commands.write_timestamp(queries, 0)
        for _ in range(repeats):
            for pipeline, block, grid in prepared:
                commands.bind_pipeline(pipeline)
                commands.push_constants(pipeline.layout, block)
                commands.dispatch(*grid)
                commands.memory_barrier()
        commands.write_timestamp(queries, 1)
        commands.end()
        submit = PreparedSubmit(self._timeline, [commands])
        times: list[float] = []
        until = time.perf_counter() + _WARM_SECONDS
        while len(times) < _SAMPLES or time.perf_counter() < until:
            self._timeline.wait(submit.submit(), timeout_s=60)
            first, last = queries.results() or (0, 0)
            times.append(queries.nanoseconds(first, last) / 1e6 / repeats)
        queries.close()
        commands.close()
        return times

    def read(self, operand: Operand, dtype: Any, count: int) -> np.ndarray:
        """The first ``count`` elements of an operand."""
        assert operand.buffer is not None
        size = count * np.dtype(dtype).itemsize
        staging = Buffer(self.device, size, "download")
        self._copy(operand.buffer, staging, size)
        staging.invalidate()
        assert staging.mapped is not None
        found = np.frombuffer(bytes(staging.mapped[:size]), dtype)
        staging.close()
        return found

    def release(self, *operands: Operand) -> None:
        for operand in operands:
            if operand.buffer is not None:
                operand.buffer.close()
                operand.buffer = None

    def _prepare(self, call: KernelCall) -> tuple[ComputePipeline, bytes, tuple[int, int, int]]:
        addresses = [self._address(t) if t is not None else 0 for _, t in call.operands]
        block = struct.pack(f"<{len(addresses)}Q", *addresses) + call.scalars
        far = len(block) > _PUSH_BYTES
        pipeline = self._pipeline(call, far)
        if far:
            table = self.operand(np.frombuffer(block, np.uint8))
            self._tables.append(table)  # the GPU reads it when the call runs
            block = struct.pack("<Q", self._address(table))
        return pipeline, block, call.grid

    def _pipeline(self, call: KernelCall, far: bool) -> ComputePipeline:
        key = (call.variant, far, tuple(sorted(call.spec.items())), call.subgroup_size)
        if key not in self._pipelines:
            shader = self.library.spirv(call.variant, far)
            ids = {c.name: c.id for c in shader.reflection.spec_constants}
            push = 8 if far else call.argument_bytes
            if push not in self._layouts:
                self._layouts[push] = PipelineLayout(self.device, push)
            module = ShaderModule(self.device, shader.words, label=call.variant.source)
            self._pipelines[key] = ComputePipeline(
                self.device,
                self._layouts[push],
                module,
                {ids[name]: value for name, value in call.spec.items() if name in ids},
                required_subgroup_size=call.subgroup_size,
                label=call.variant.source,
            )
            module.close()
        return self._pipelines[key]

    def _address(self, operand: Operand) -> int:
        if operand.buffer is None:
            operand.buffer = Buffer(self.device, max(operand.nbytes, 16), "device")
            if operand.data is not None:
                raw = np.ascontiguousarray(operand.data).reshape(-1).view(np.uint8)
                staging = Buffer(self.device, max(raw.nbytes, 16), "upload")
                assert staging.mapped is not None
                staging.mapped[: raw.nbytes] = raw.data
                self._copy(staging, operand.buffer, raw.nbytes)
                staging.close()
        return operand.buffer.address

    def _copy(self, source: Buffer, target: Buffer, size: int) -> None:
        commands = self._pool.allocate().begin(one_time=True)
        commands.barrier_before_transfer()
        commands.copy_buffer(source, target, size)
        commands.barrier_all()
        commands.end()
        self._timeline.wait(PreparedSubmit(self._timeline, [commands]).submit(), timeout_s=60)
        commands.close()
