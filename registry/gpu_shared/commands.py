"""Command pools, command buffers and timestamp queries.

Recording is kept fast: each call is one raw call with structures that are built once. Only one thread at a time may use
a pool and its command buffers (Vulkan's rule); each delegate has a separate pool.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpu_shared import arm_abi, vk
from gpu_shared.handles import DeviceObject, Handle

if TYPE_CHECKING:
    from gpu_shared.data_graph import DataGraphPipeline, DataGraphSession
    from gpu_shared.descriptors import DescriptorSets
    from gpu_shared.device import Device
    from gpu_shared.memory import Buffer
    from gpu_shared.pipeline import ComputePipeline, PipelineLayout

# VkPipelineStageFlagBits and VkAccessFlagBits, as plain numbers for the hot path
STAGE_INDIRECT, STAGE_COMPUTE, STAGE_TRANSFER, STAGE_HOST, STAGE_ALL = 0x2, 0x800, 0x1000, 0x4000, 0x10000
ACCESS_INDIRECT_READ = 0x1
ACCESS_SHADER_READ, ACCESS_SHADER_WRITE = 0x20, 0x40
ACCESS_TRANSFER_READ, ACCESS_TRANSFER_WRITE = 0x800, 0x1000
ACCESS_HOST_READ = 0x2000
ACCESS_MEMORY_READ, ACCESS_MEMORY_WRITE = 0x8000, 0x10000
_SHADER = ACCESS_SHADER_READ | ACCESS_SHADER_WRITE
_TRANSFER = ACCESS_TRANSFER_READ | ACCESS_TRANSFER_WRITE


class CommandPool(DeviceObject):
    """A command pool of the device's queue family, whose buffers can be reset one by one."""

    kind = "command_pool"
    vulkan_name = "CommandPool"

    def __init__(self, device: Device, *, label: str = "command pool") -> None:
        info = vk.make(
            "VkCommandPoolCreateInfo",
            flags=vk.VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT,
            queueFamilyIndex=device.queue_family,
        )
        # closed command buffers are returned here: freeing them would need the pool, which its thread may be recording
        # with
        self._free: list[Any] = []
        super().__init__(device, info, label)

    def allocate(self, label: str = "command buffer") -> CommandBuffer:
        """A primary command buffer, new or one that was closed before."""
        pool = self.raw
        try:
            raw = self._free.pop()
        except IndexError:
            info = vk.make(
                "VkCommandBufferAllocateInfo",
                commandPool=pool,
                level=vk.VK_COMMAND_BUFFER_LEVEL_PRIMARY,
                commandBufferCount=1,
            )
            out = vk.out("VkCommandBuffer")
            result = self.device.fn.vkAllocateCommandBuffers(self.device.raw, info.ptr, out)
            vk.check(result, "vkAllocateCommandBuffers", label)
            raw = out[0]
        return CommandBuffer(self, raw, label)


class CommandBuffer(Handle):
    """Made by `CommandPool.allocate`. Record between ``begin`` and ``end``. It keeps the pipelines bound in it alive,
    and the objects passed to `retain` (buffers that kernels access by address).
    """

    kind = "command_buffer"

    def __init__(self, pool: CommandPool, raw: Any, label: str) -> None:
        free = pool._free
        super().__init__(raw, parent=pool, destroy=lambda: free.append(raw), label=label, reaper=pool.device.reaper)
        device = pool.device
        fn, ffi = device.fn, vk.ffi
        self._fn = fn
        self._retained: list[Any] = []
        self._layout: PipelineLayout | None = None
        self._bind, self._push, self._dispatch = fn.vkCmdBindPipeline, fn.vkCmdPushConstants, fn.vkCmdDispatch
        self._barrier = fn.vkCmdPipelineBarrier
        self._limits = device.capabilities.max_workgroup_count
        self._null = ffi.NULL
        self._from_buffer = ffi.from_buffer
        self._memory_barrier = ffi.new("VkMemoryBarrier *")
        self._memory_barrier.sType = vk.VK_STRUCTURE_TYPE_MEMORY_BARRIER
        self._compute_barrier = ffi.new("VkMemoryBarrier *")
        self._compute_barrier.sType = vk.VK_STRUCTURE_TYPE_MEMORY_BARRIER
        self._compute_barrier.srcAccessMask = ACCESS_SHADER_WRITE
        self._compute_barrier.dstAccessMask = _SHADER
        self._copy = ffi.new("VkBufferCopy *")
        self.recording = False

    def begin(self, *, one_time: bool = False, simultaneous: bool = False) -> CommandBuffer:
        """Start recording, and discard what was recorded before. ``simultaneous`` allows submitting it while an earlier
        submit still runs."""
        flags = (vk.VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT if one_time else 0) | (
            vk.VK_COMMAND_BUFFER_USAGE_SIMULTANEOUS_USE_BIT if simultaneous else 0
        )
        info = vk.make("VkCommandBufferBeginInfo", flags=flags)
        vk.check(self._fn.vkBeginCommandBuffer(self.raw, info.ptr), "vkBeginCommandBuffer", self.label)
        self._retained = []
        self._layout = None
        self.recording = True
        return self

    def end(self) -> CommandBuffer:
        """Finish recording. Raises `GpuError` for an error of recording (out of memory)."""
        vk.check(self._fn.vkEndCommandBuffer(self.raw), "vkEndCommandBuffer", self.label)
        self.recording = False
        return self

    def reset(self) -> None:
        """Discard what was recorded; the GPU must have finished with it."""
        vk.check(self._fn.vkResetCommandBuffer(self.raw, 0), "vkResetCommandBuffer", self.label)
        self._retained = []
        self.recording = False

    def retain(self, *objects: Any) -> None:
        """Keep objects alive until this is recorded again, reset or closed."""
        self._retained.extend(objects)

    def _ready(self) -> Any:
        """The raw command buffer; raises when it is not recording."""
        if not self.recording or self._closed:
            self.check_usable()
            raise ValueError(f"{self.label}: not recording; call begin() first")
        return self._raw

    def bind_pipeline(self, pipeline: ComputePipeline) -> None:
        """Use this pipeline for the following dispatches. Raises `ClosedError` for a closed buffer, as every command
        does."""
        self._bind(self._ready(), 1, pipeline.raw)  # VK_PIPELINE_BIND_POINT_COMPUTE
        self._layout = pipeline.layout
        self._retained.append(pipeline)

    def push_constants(self, layout: PipelineLayout, data: bytes | bytearray | memoryview, offset: int = 0) -> None:
        """Set ``data`` at byte ``offset`` of the push constants. Raises ``ValueError`` unless both are multiples of 4
        bytes within ``layout``."""
        size = len(data)
        if not 0 <= offset <= layout.push_bytes - size or size % 4 or offset % 4 or not size:
            raise ValueError(
                f"{self.label}: {size} bytes of push constants at {offset}, expected a positive multiple of 4 "
                f"within {layout.push_bytes}"
            )
        self._push(
            self._ready(), layout.raw, 0x20, offset, size, self._from_buffer(data)
        )  # VK_SHADER_STAGE_COMPUTE_BIT

    def dispatch(self, x: int, y: int = 1, z: int = 1) -> None:
        """Run the bound pipeline on a grid of workgroups. Raises ``ValueError`` beyond the device's limits."""
        raw = self._ready()
        limits = self._limits
        if self._layout is None:
            raise ValueError(f"{self.label}: dispatch before bind_pipeline")
        if not (0 <= x <= limits[0] and 0 <= y <= limits[1] and 0 <= z <= limits[2]):
            raise ValueError(f"{self.label}: a grid of {(x, y, z)} workgroups, the device takes up to {limits}")
        self._dispatch(raw, x, y, z)

    def dispatch_indirect(self, buffer: Buffer, offset: int) -> None:
        """Run the bound pipeline on the grid (three uint32: x, y, z) that byte ``offset`` of ``buffer`` has when the
        GPU executes the command. The writer of the grid must respect the device's limits. Raises ``ValueError`` before
        `bind_pipeline`, and for an offset that is unaligned or out of bounds."""
        if self._layout is None:
            raise ValueError(f"{self.label}: dispatch before bind_pipeline")
        if offset % 4 or not 0 <= offset <= buffer.size - 12:
            raise ValueError(f"{self.label}: a grid at byte {offset} of {buffer.label!r} ({buffer.size} bytes)")
        self._fn.vkCmdDispatchIndirect(self._ready(), buffer.raw, offset)
        self._retained.append(buffer)

    def bind_data_graph(self, pipeline: DataGraphPipeline) -> None:
        """Bind a data graph pipeline, for `dispatch_data_graph`."""
        self._bind(self._ready(), arm_abi.BIND_POINT_DATA_GRAPH, pipeline.raw)
        self._retained.append(pipeline)

    def bind_descriptor_sets(self, layout: PipelineLayout, sets: DescriptorSets, *, data_graph: bool = False) -> None:
        """Bind all sets, starting with the first, for compute dispatches or for data graphs."""
        point = arm_abi.BIND_POINT_DATA_GRAPH if data_graph else 1
        count = len(sets.sets)
        self._fn.vkCmdBindDescriptorSets(self._ready(), point, layout.raw, 0, count, sets.sets, 0, self._null)
        self._retained += (layout, sets)

    def dispatch_data_graph(self, session: DataGraphSession) -> None:
        """Run the bound data graph with the memory of ``session``."""
        self._fn.vkCmdDispatchDataGraphARM(self._ready(), session.raw, self._null)
        self._retained.append(session)

    def full_barrier(self) -> None:
        """Everything before, in any stage, completes before and is visible to everything after (data graphs have no
        stage bit in the 32-bit masks)."""
        self.barrier(STAGE_ALL, ACCESS_MEMORY_WRITE, STAGE_ALL, ACCESS_MEMORY_READ | ACCESS_MEMORY_WRITE)

    def memory_barrier(self) -> None:
        """Earlier writes of shaders are visible to the following dispatches, which wait for the earlier ones."""
        self._barrier(self._ready(), 0x800, 0x800, 0, 1, self._compute_barrier, 0, self._null, 0, self._null)

    def barrier(self, source_stages: int, source_access: int, target_stages: int, target_access: int) -> None:
        """A global memory barrier of the given stages and accesses (constants of this module)."""
        one = self._memory_barrier
        one.srcAccessMask, one.dstAccessMask = source_access, target_access
        self._barrier(self._ready(), source_stages, target_stages, 0, 1, one, 0, self._null, 0, self._null)

    def barrier_before_transfer(self) -> None:
        """The following copies wait for earlier shaders and copies, and see their writes."""
        self.barrier(
            STAGE_COMPUTE | STAGE_TRANSFER, ACCESS_SHADER_WRITE | ACCESS_TRANSFER_WRITE, STAGE_TRANSFER, _TRANSFER
        )

    def barrier_after_transfer(self) -> None:
        """The following dispatches and copies wait for earlier copies, and see their writes."""
        self.barrier(
            STAGE_TRANSFER,
            ACCESS_TRANSFER_WRITE,
            STAGE_INDIRECT | STAGE_COMPUTE | STAGE_TRANSFER,
            ACCESS_INDIRECT_READ | _SHADER | _TRANSFER,
        )

    def barrier_to_host(self) -> None:
        """After waiting for the submit the host sees the writes of shaders and copies. (The host's own writes before a
        submit need no barrier: submitting makes them visible.)"""
        self.barrier(
            STAGE_COMPUTE | STAGE_TRANSFER, ACCESS_SHADER_WRITE | ACCESS_TRANSFER_WRITE, STAGE_HOST, ACCESS_HOST_READ
        )

    def barrier_all(self) -> None:
        """Everything before completes before and is visible to everything after, including reads of the host."""
        writes = ACCESS_SHADER_WRITE | ACCESS_TRANSFER_WRITE
        self.barrier(
            STAGE_COMPUTE | STAGE_TRANSFER, writes, STAGE_ALL | STAGE_HOST, _SHADER | _TRANSFER | ACCESS_HOST_READ
        )

    def copy_buffer(
        self, source: Buffer, target: Buffer, size: int, source_offset: int = 0, target_offset: int = 0
    ) -> None:
        """Copy bytes; the two buffers are kept alive. Raises ``ValueError`` for a range outside either."""
        for buffer, offset in ((source, source_offset), (target, target_offset)):
            if size < 1 or offset < 0 or offset + size > buffer.size:
                raise ValueError(
                    f"{self.label}: {size} bytes at {offset} are outside {buffer.label!r} of {buffer.size}"
                )
        copy = self._copy
        copy.srcOffset, copy.dstOffset, copy.size = source_offset, target_offset, size
        self._fn.vkCmdCopyBuffer(self._ready(), source.raw, target.raw, 1, copy)
        self._retained += (source, target)

    def fill_buffer(self, target: Buffer, value: int = 0, offset: int = 0, size: int | None = None) -> None:
        """Write a 32-bit ``value`` over ``size`` bytes from byte ``offset`` on (both multiples of 4; ``size`` None: to
        the last whole word). Raises ``ValueError`` for a range outside ``target``."""
        size = target.size - offset & ~3 if size is None else size
        if size < 4 or size % 4 or offset % 4 or offset < 0 or offset + size > target.size:
            raise ValueError(
                f"{self.label}: cannot fill {size} bytes at {offset} of {target.label!r} ({target.size} bytes)"
            )
        self._fn.vkCmdFillBuffer(self._ready(), target.raw, offset, size, value & 0xFFFFFFFF)
        self._retained.append(target)

    def reset_query_pool(self, pool: QueryPool, first: int = 0, count: int | None = None) -> None:
        """Reset ``count`` queries from ``first`` on (None: to the end), on the GPU."""
        self._fn.vkCmdResetQueryPool(self._ready(), pool.raw, first, pool.count - first if count is None else count)
        self._retained.append(pool)

    def write_timestamp(self, pool: QueryPool, index: int, stage: int = STAGE_ALL) -> None:
        """Write the time at which the commands so far have passed ``stage`` to query ``index``. Raises ``ValueError``
        for a query that the pool does not have."""
        if not 0 <= index < pool.count:
            raise ValueError(f"{self.label}: query {index} of a pool of {pool.count}")
        self._fn.vkCmdWriteTimestamp(self._ready(), stage, pool.raw, index)

    def _before_retire(self) -> None:
        self._retained = []
        self._layout = None


class QueryPool(DeviceObject):
    """``count`` timestamps. Raises ``ValueError`` for a count below 1, and where the queue family has no timestamps."""

    kind = "query_pool"
    vulkan_name = "QueryPool"

    def __init__(self, device: Device, count: int, *, label: str = "query pool") -> None:
        bits = device.family.timestamp_valid_bits
        if not bits:
            raise ValueError(f"{label}: queue family {device.queue_family} of {device.label} has no timestamps")
        if count < 1:
            raise ValueError(f"{label}: count is {count}, expected at least 1")
        self.count = count
        self._mask = (1 << bits) - 1
        info = vk.make("VkQueryPoolCreateInfo", queryType=vk.VK_QUERY_TYPE_TIMESTAMP, queryCount=count)
        super().__init__(device, info, label)

    def reset(self) -> None:
        """Reset all queries from the host (the GPU must not be using them)."""
        self.device.fn.vkResetQueryPool(self.device.raw, self.raw, 0, self.count)

    def results(self, first: int = 0, count: int | None = None) -> list[int]:
        """Timestamps of ``count`` queries (None: the rest of the pool) from ``first`` on, in ticks (see `nanoseconds`).
        It waits until all are available. Raises ``ValueError`` for queries outside the pool, `DeviceLostError`."""
        count = self.count - first if count is None else count
        if first < 0 or count < 1 or first + count > self.count:
            raise ValueError(f"{self.label}: queries {first} to {first + count} of a pool of {self.count}")
        room = vk.ffi.new("uint64_t[]", count)
        flags = vk.VK_QUERY_RESULT_64_BIT | vk.VK_QUERY_RESULT_WAIT_BIT
        result = self.device.fn.vkGetQueryPoolResults(
            self.device.raw, self.raw, first, count, 8 * count, room, 8, flags
        )
        vk.check(result, "vkGetQueryPoolResults", self.label)
        return [value & self._mask for value in room]

    def nanoseconds(self, first: int, second: int) -> float:
        """Time from one tick value to a later one; the counter may have wrapped once between them."""
        return ((second - first) & self._mask) * self.device.capabilities.timestamp_period_ns
