"""The arena on Vulkan memory: its regions are buffers.

A `BufferArena` joins `BfcArena` to ``gpu_shared`` buffers of one memory kind. `DeviceArena` is the stream-aware one for
device memory; `vkep.memory.staging_ring` has the one for staging. `shared_device_arena` gives the one arena of a context,
counted by its users: all sessions on the context share it (CUDA plugin EP arena allocator design, sections 3.3 to 3.5).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable
from threading import Lock
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, TypeVar

from gpu_shared.errors import GpuError, OutOfDeviceMemoryError, OutOfHostMemoryError
from gpu_shared.memory import Buffer, memory_budget
from gpu_shared.steady import run_steady
from gpu_shared.timeline import Timeline
from gpu_shared.weak import WeakValues
from vkep.arena.bfc import BfcArena
from vkep.arena.chunks import MIN_ALIGNMENT, round_up
from vkep.arena.config import ArenaConfig
from vkep.arena.dump import ArenaSnapshot
from vkep.arena.records import (
    ArenaOutOfMemory,
    ArenaStats,
    Block,
    IsPassed,
    RegionOutOfMemory,
    SourceRegion,
    StreamTag,
    StreamUse,
    format_bytes,
)

if TYPE_CHECKING:
    from gpu_shared.context import SharedGpuContext
    from gpu_shared.device import Device
    from gpu_shared.lease import DelegateLease
    from gpu_shared.resources import SharedResource

logger = logging.getLogger("vkep.memory")

Arena = TypeVar("Arena", bound="BufferArena")
#: seconds that a run waits for memory that others use, and between two attempts; attempts where no other uses any: one may have
#: during an attempt
_PATIENCE_S, _MOMENT_S, _UNSURE = 10.0, 0.001, 30


class BufferSource:
    """Regions that are buffers of ``device``: the `RegionSource` of a `BufferArena` (which locks)."""

    def __init__(self, device: Device, memory_kind: str, *, label: str, alignment: int = MIN_ALIGNMENT) -> None:
        self.device = device
        self.memory_kind = memory_kind
        self._label = label
        self._alignment = alignment
        self._slack = 0  # above 0 where the driver aligns buffers to less than the arena requires
        self._heap: int | None = None  # known after the first buffer
        self._next_id = 1
        self.buffers: dict[int, tuple[Buffer, int]] = {}  # region id -> buffer, offset of the region's first byte in it

    def allocate_region(self, nbytes: int) -> SourceRegion:
        """A buffer of ``nbytes``. Raises `RegionOutOfMemory`, or `GpuError` for failures that are no lack of memory."""
        self._check_budget(nbytes)
        buffer = self._buffer(nbytes + self._slack)
        if buffer.address % self._alignment and not self._slack:
            buffer.close()
            self._slack = self._alignment
            buffer = self._buffer(nbytes + self._slack)
        self._heap = buffer.heap
        base = round_up(buffer.address, self._alignment)
        region_id = self._next_id
        self._next_id += 1
        self.buffers[region_id] = (buffer, base - buffer.address)
        logger.debug("%s: took region %d of %s", self._label, region_id, format_bytes(nbytes))
        return SourceRegion(region_id, base)

    def free_region(self, region_id: int) -> None:
        """Close the region's buffer; its memory is freed once the GPU has finished every submit made so far."""
        buffer, _offset = self.buffers.pop(region_id)
        logger.debug("%s: gave region %d of %s back", self._label, region_id, format_bytes(buffer.size))
        buffer.close()

    def _buffer(self, nbytes: int) -> Buffer:
        try:
            return Buffer(self.device, nbytes, self.memory_kind, label=f"{self._label} region {self._next_id}")
        except (OutOfDeviceMemoryError, OutOfHostMemoryError) as error:
            raise RegionOutOfMemory(str(error)) from error

    def _check_budget(self, nbytes: int) -> None:
        """Raise where VK_EXT_memory_budget reports too little memory: some drivers would page, or take it from other
        programs."""
        shortage = self._shortage(nbytes)
        if shortage and self.device.collect():  # buffers that were closed while the GPU used them may be free now
            shortage = self._shortage(nbytes)
        if shortage:
            raise RegionOutOfMemory(shortage)

    def _shortage(self, nbytes: int) -> str:
        """Why ``nbytes`` fit no heap that the region may come from; empty where they fit or the budget is unknown."""
        heaps = memory_budget(self.device)
        if self._heap is not None:
            heaps = tuple(heap for heap in heaps if heap.index == self._heap)
        if not heaps or any(not heap.exact or heap.used + nbytes <= heap.budget for heap in heaps):
            return ""
        heap = max(heaps, key=lambda h: h.budget - h.used)
        return (
            f"{format_bytes(nbytes)} exceed the budget of memory heap {heap.index} of {self.device.label}: "
            f"{format_bytes(heap.budget)}, {format_bytes(heap.used)} of them used (VK_EXT_memory_budget)"
        )


class DeviceBlock:
    """A live block of a `BufferArena`; usable in ``with``, which frees it.

    ``address`` is the device address, ``size`` the usable bytes, ``requested`` the requested bytes; the block is in
    ``buffer`` at byte ``offset``.
    """

    __slots__ = ("_arena", "_live", "address", "block", "buffer", "offset", "requested", "size")

    def __init__(self, arena: BufferArena, block: Block, buffer: Buffer, offset: int) -> None:
        self._arena = arena
        self._live = True
        self.block = block
        self.address = block.address
        self.size = block.size
        self.requested = block.requested
        self.buffer = buffer
        self.offset = offset

    @property
    def mapped(self) -> memoryview | None:
        """The block's bytes for the host to read and write, or None where the host cannot map them.

        A view keeps the whole region's memory, so drop it before the arena ends. Raises ``ValueError`` after ``free``.
        """
        if not self._live:
            raise ValueError(f"the block at {self.address:#x} is freed; take its view before")
        whole = self.buffer.mapped
        return None if whole is None else whole[self.offset : self.offset + self.size]

    @property
    def freed(self) -> bool:
        """Whether `free` was called."""
        return not self._live

    def free(self, *, stream: Hashable | StreamTag | None = StreamTag.ALLOCATED, sync_value: int | None = None) -> None:
        """Free the block; arguments and errors as `BfcArena.free` (a second call is a double free)."""
        self._arena._free(self, stream, sync_value)
        self._live = False

    def __enter__(self) -> DeviceBlock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self.free()

    def __repr__(self) -> str:
        state = "" if self._live else " freed"
        return f"<DeviceBlock {self.address:#x}, {format_bytes(self.size)} in {self.buffer.label!r}{state}>"


class Evictable(Protocol):
    """What holds device memory that it can give back while no run uses it, and takes again for its next run."""

    @property
    def last_used(self) -> int:
        """The timeline value of its latest run."""

    def evict(self, weights: bool) -> bool:
        """Give memory back once the device has finished with it: temporary memory, or ``weights``. Returns whether there was any.
        The caller may hold any lock: another one is only taken where it is free."""

    def busy(self, mine: object) -> bool:
        """Whether a run uses it, other than one in the room ``mine``, so that `evict` may give more later."""


class Patience:
    """Attempts of a run at memory that others use. ``mine``: the room of that run."""

    def __init__(self, arena: BufferArena, mine: object) -> None:
        self._arena, self._mine = arena, mine
        self._began, self._alone = time.monotonic(), 0

    def again(self) -> bool:
        """Wait for a moment: the caller tries again. False some seconds after the first time, and where no other run has used
        memory before and after several attempts."""
        self._alone = 0 if self._arena.busy(self._mine) else self._alone + 1
        if self._alone > _UNSURE or time.monotonic() - self._began > _PATIENCE_S:
            return False
        time.sleep(_MOMENT_S)
        return True


class BufferArena:
    """An arena over buffers of one memory kind; all methods may be called from any thread.

    Args:
        device: whose memory it is.
        memory_kind: of `gpu_shared.memory.Buffer`.
        config: the ``arena.*`` settings; None: the defaults.
        label: used in messages, dumps and the buffers' names.
        timeline: the timeline of sync values: a chunk whose last use has one may be used by every stream once the
            timeline (or the stream itself, where it is a `Timeline`) has passed it.
    """

    def __init__(
        self,
        device: Device,
        memory_kind: str,
        config: ArenaConfig | None = None,
        *,
        label: str,
        timeline: Timeline | None = None,
    ) -> None:
        self.device = device
        self.memory_kind = memory_kind
        self.label = label
        self._timeline = timeline
        self._source = BufferSource(device, memory_kind, label=label)
        self._bfc = BfcArena(self._source, config, name=label, is_passed=_proof(timeline))
        self._evictable: WeakValues[int, Evictable] = WeakValues()
        self.max_memory: int | None = None  #: the limit that `bound` has set
        self._bounds: dict[int, int] = {}  # by user
        self._bounding = Lock()

    def close(self) -> None:
        """Free all memory and refuse further use; warns of blocks that are still live. Idempotent.

        The memory is freed once the GPU has finished every submit made so far.
        """
        live = self._bfc.close()
        if live:
            logger.warning("%s ends with %d live blocks: their owners did not free them", self.label, live)

    def __enter__(self: Arena) -> Arena:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- blocks ----

    def alloc(self, nbytes: int) -> DeviceBlock:
        """A block of at least ``nbytes`` bytes. Raises as `BfcArena.alloc`, and `GpuError`."""
        return self._taken(lambda: self._bfc.alloc(nbytes))

    def reserve(self, nbytes: int) -> DeviceBlock:
        """A block in a separate buffer, outside the bins: for weights. Raises as ``alloc``."""
        return self._taken(lambda: self._bfc.reserve(nbytes))

    def bound(self, user: object, max_memory: int | None) -> None:
        """Limit the arena to ``max_memory`` bytes for a user; None: that user's limit ends. The smallest one applies."""
        with self._bounding:
            self._bounds.pop(id(user), None)
            if max_memory is not None:
                self._bounds[id(user)] = max_memory
            self.max_memory = min(self._bounds.values(), default=None)
            self._bfc.bound(self.max_memory)

    def add(self, user: Evictable) -> None:
        """Ask ``user`` for memory where an allocation would fail, as long as it lives."""
        self._evictable[id(user)] = user

    def shrink(self) -> int:
        """Return wholly free regions to the device; returns their bytes."""
        return self._bfc.shrink()

    # ---- looking inside ----

    @property
    def config(self) -> ArenaConfig:
        """The configuration, without the limit of `bound`."""
        return self._bfc.configured

    @property
    def stats(self) -> ArenaStats:
        """The current counters."""
        return self._bfc.stats

    def snapshot(self) -> ArenaSnapshot:
        """The arena's state as plain data."""
        return self._bfc.snapshot()

    def dump(self) -> str:
        """The arena's state as text, and the heaps' budgets."""
        lines = [self._bfc.dump(), "  heaps"]
        for heap in memory_budget(self.device):
            kind = "device-local" if heap.device_local else "host"
            used = (
                f"{format_bytes(heap.used)} used of "
                if heap.exact
                else "use not known (no VK_EXT_memory_budget), size "
            )
            lines.append(f"    {heap.index} ({kind}): {used}{format_bytes(heap.budget)}")
        return "\n".join(lines)

    # ---- inside ----

    def _taken(self, take: Callable[[], Block]) -> DeviceBlock:
        waited = False  # once: other threads may go on submitting
        while True:
            try:
                return self._wrap(take())
            except ArenaOutOfMemory:
                if not waited and self._timeline is not None:  # what was freed while the device used it is free then
                    waited = True
                    self._timeline.wait()
                elif not run_steady(self._evict):
                    raise

    def busy(self, mine: object) -> bool:
        """Whether others may give memory back later: see `Evictable.busy`."""
        return any(user.busy(mine) for user in self._evictable.values())

    def _evict(self) -> bool:
        """Have one user give memory back: temporary memory before weights, and what was used the longest time ago first."""
        users = sorted(self._evictable.values(), key=lambda user: user.last_used)
        return any(user.evict(weights) for weights in (False, True) for user in users)

    def _wrap(self, block: Block) -> DeviceBlock:
        buffer, base = self._source.buffers[block.region]
        return DeviceBlock(self, block, buffer, base + block.offset)

    def _free(self, block: DeviceBlock, stream: Hashable | StreamTag | None, sync_value: int | None) -> None:
        self._bfc.free(block.block, stream=stream, sync_value=sync_value)


def _proof(timeline: Timeline | None) -> IsPassed:
    """Whether a timeline has passed a use's sync value: the stream itself where it is a `Timeline`, else ``timeline``.

    Not a method of the arena: arena and source would form a reference cycle, and an unclosed arena would not be freed at once.
    """

    def is_passed(use: StreamUse) -> bool:
        counter = use.stream if isinstance(use.stream, Timeline) else timeline
        if use.sync_value is None or counter is None:
            return False
        try:
            return counter.completed >= use.sync_value
        except GpuError:  # lost or closed: nothing can be proven
            return False

    return is_passed


class DeviceArena(BufferArena):
    """The stream-aware arena of device memory. A stream is any hashable that names work in order, such as a
    `gpu_shared.lease.DelegateLease` or a `Timeline`."""

    def __init__(
        self, device: Device, config: ArenaConfig | None = None, *, timeline: Timeline | None = None, label: str = ""
    ) -> None:
        super().__init__(device, "device", config, label=label or f"device arena of {device.label}", timeline=timeline)

    def alloc(self, nbytes: int, stream: Hashable | None = None) -> DeviceBlock:
        """Allocate a block for work on ``stream`` (None: for any work). Raises as `BufferArena.alloc`."""
        return self._taken(lambda: self._bfc.alloc(nbytes, stream))

    def release_stream(self, stream: Hashable, up_to: int | None = None) -> int:
        """The run on ``stream`` has ended: every stream may use the chunks that it freed. See
        `BfcArena.release_stream`."""
        return self._bfc.release_stream(stream, up_to)


def shared_arena(
    user: SharedGpuContext | DelegateLease, key: Hashable, make: Callable[[], Arena], config: ArenaConfig | None
) -> SharedResource[Arena]:
    """The arena of a user's context under ``key``, created by ``make`` for the first user; a different ``config`` logs a
    warning."""
    shared = user.shared_resource(("vkep.memory", key), make)
    warn_of_another(shared.value, config)
    return shared


def warn_of_another(arena: BufferArena, config: ArenaConfig | None) -> None:
    """Log a warning where a later user's ``config`` differs from the arena's."""
    if config is not None and config != arena.config:
        logger.warning(
            "%s has users and keeps its configuration: %s; close their sessions first, or use another context",
            arena.label,
            ", ".join(f"{k} is {old} (asked: {new})" for k, (old, new) in arena.config.differences(config).items()),
        )


def shared_device_arena(
    user: SharedGpuContext | DelegateLease, config: ArenaConfig | None = None
) -> SharedResource[DeviceArena]:
    """One user's reference to the device arena of a context; the last ``release`` frees the memory.

    The first user's configuration applies. A later one that differs is logged as a warning and not applied, because
    others rely on the first (design, section 3.5); None accepts any.
    """
    return shared_arena(user, "device arena", lambda: DeviceArena(user.device, config, timeline=user.timeline), config)
