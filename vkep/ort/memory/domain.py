"""Device memory in ONNX Runtime: pointers that it passes on but never dereferences.

A pointer is a device address (buffer device address) with the number of its memory domain in the bits above bit 48, so
that two contexts, whose addresses may coincide, never mix; the first domain's number is 0, and its pointers are plain
addresses. ONNX Runtime may add offsets to such pointers.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gpu_shared.errors import GpuError
from gpu_shared.steady import settle
from vkep.arena.config import ArenaConfig
from vkep.arena.records import ArenaOutOfMemory, ArenaStats
from vkep.device.tensor import DeviceTensor, ExternalBlock
from vkep.device.uses import Uses
from vkep.dtypes import DType
from vkep.memory.device_arena import DeviceArena, DeviceBlock, shared_device_arena, warn_of_another
from vkep.memory.upload import Uploader
from vkep.ort.boundary import ffi, lib, wait_for_releases
from vkep.ort.memory.transfers import Transfers, in_c

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpu_shared.context import SharedGpuContext
    from gpu_shared.memory import Buffer

NUMBER_SHIFT = 48
_ADDRESS_MASK = (1 << NUMBER_SHIFT) - 1
AnyBlock = DeviceBlock | ExternalBlock
Bytes = np.ndarray[Any, Any]  # contiguous uint8, one axis
#: blocks of equal sizes (in grains) are reused without the arena: the next run requests the sizes that this one freed
_GRAIN = 256
_MOST_SPARE_BYTES = 64 << 20


class MemoryDomain:
    """The memory of one context as pointers, with its transfers. Counted: `acquire` and `release`. Thread-safe.

    All work on a context is ordered on its one timeline, so later work may reuse a freed block at once; only the host,
    where it maps the memory, must wait.
    """

    def __init__(self, context: SharedGpuContext, config: ArenaConfig | None, number: int) -> None:
        self.context = context
        self.number = number
        self._tag = number << NUMBER_SHIFT
        self.users = 0
        self.lock = threading.RLock()
        self._bases: list[int] = []
        # maps an address to its block and size class (0: none); includes spare blocks
        self._blocks: dict[int, tuple[AnyBlock, int]] = {}
        #: blocks that are reused without the arena (a ``VkepSpares``)
        self.spares = ffi.new("VkepSpares *", {"grain": _GRAIN, "most": _MOST_SPARE_BYTES})
        self._gave_back = False  #: whether a block was returned to the arena since `run_ended`
        self.lease = context.lease("onnxruntime memory", copies_only=True)
        try:
            self._shared = shared_device_arena(self.lease, config)
            self.arena: DeviceArena = self._shared.value
            self._uploader = Uploader(self.lease)
        except BaseException:
            self.lease.close()
            raise
        self.arena.add(self)
        self.uploads = Transfers(self, "upload", self._uploader)
        self.downloads = Transfers(self, "download", self._uploader)

    # ---- blocks

    def alloc(self, nbytes: int) -> int:
        """A pointer to ``nbytes``. Raises `ArenaOutOfMemory`, `GpuError`."""
        spare: int = lib.vkep_take(self.spares, nbytes)
        if spare:
            return spare
        size = -(-nbytes // _GRAIN) * _GRAIN
        return self._enter(self._taken(lambda: self.arena.alloc(size, self.context.timeline)), size)

    def reserve(self, nbytes: int) -> int:
        """As `alloc`, in a separate buffer outside the arena's bins, for memory that lives as long as the session."""
        return self._enter(self._taken(lambda: self.arena.reserve(nbytes)), 0)

    def _taken(self, take: Callable[[], DeviceBlock]) -> DeviceBlock:
        try:
            return take()
        except ArenaOutOfMemory:
            waited = wait_for_releases()
            if not self.trim() and not waited:
                raise
        return take()

    def free(self, pointer: int) -> None:
        """Free a block; the memory is reused once the GPU has finished with what was submitted so far. Raises
        ``ValueError`` where no block starts there."""
        given = lib.vkep_give(self.spares, pointer)
        if given == 1:
            return
        address = pointer & _ADDRESS_MASK
        with self.lock:
            block, size = self._blocks.get(address, (None, 0))
            if block is None or given < 0:
                raise ValueError(f"no block starts at {pointer:#x} (freed before?)")
            if size and isinstance(block, DeviceBlock) and lib.vkep_add(self.spares, pointer, size):
                return
            self._forget(address)
        timeline = self.context.timeline
        block.free(stream=timeline, sync_value=timeline.submitted)
        self._gave_back = True

    def run_ended(self) -> None:
        """Make the memory that was freed since the last run, and that the GPU has finished with, available to all
        streams."""
        if self._gave_back:
            timeline = self.context.timeline
            completed = timeline.completed
            self._gave_back = completed < timeline.submitted  # more may be released after the next run
            self.arena.release_stream(timeline, completed)

    def trim(self) -> int:
        """Return the blocks kept for allocations of the same size to the arena; returns their bytes."""
        pointers = ffi.new("uint64_t[]", len(self.spares.blocks))
        with self.lock:
            addresses = [p & _ADDRESS_MASK for p in pointers[0 : lib.vkep_drain(self.spares, pointers)]]
            drained = [self._forget(address) for address in addresses]
        timeline = self.context.timeline
        self.uploads.trim()
        self.downloads.trim()
        for block, _ in drained:
            block.free(stream=timeline, sync_value=timeline.submitted)
        self._gave_back = True
        return sum(size for _, size in drained)

    last_used = 0  #: spare blocks go before anything that a run needs again

    def evict(self, weights: bool) -> bool:
        """Return spare blocks to the arena: see `vkep.memory.device_arena.Evictable`."""
        if weights or not self.spares.free_count or not self.lock.acquire(blocking=False):
            return False
        try:
            freed = self.trim()
        finally:
            self.lock.release()
        self.context.timeline.wait()
        return freed > 0

    def busy(self, mine: object) -> bool:
        """Never: see `vkep.memory.device_arena.Evictable`."""
        return False

    def shrink(self) -> int:
        """Return all free memory to the device; returns its bytes."""
        self.trim()
        return self.arena.shrink()

    def _enter(self, block: AnyBlock, size: int) -> int:
        if block.address & ~_ADDRESS_MASK:
            block.free()
            raise GpuError(
                "allocating for ONNX Runtime", hint=f"the device's address {block.address:#x} has over 48 bits"
            )
        with self.lock:
            self._blocks[block.address] = (block, size)
            insort(self._bases, block.address)
        return block.address | self._tag

    def _forget(self, address: int) -> tuple[AnyBlock, int]:
        """Remove a block from the table; the caller holds the lock."""
        del self._bases[bisect_left(self._bases, address)]
        return self._blocks.pop(address)

    def adopt(self, block: ExternalBlock) -> int:
        """A pointer to imported memory, until `disown`."""
        return self._enter(block, 0)

    def disown(self, pointer: int) -> None:
        """Forget imported memory."""
        address = pointer & _ADDRESS_MASK
        with self.lock:
            if address in self._blocks:
                self._forget(address)

    def find(self, pointer: int) -> tuple[AnyBlock, int]:
        """The block that contains a pointer's address, and the byte offset. Raises `ValueError`."""
        address = pointer & _ADDRESS_MASK
        block = self._blocks.get(address, (None, 0))[0]
        if block is None:
            with self.lock:
                at = bisect_right(self._bases, address) - 1
                block = self._blocks[self._bases[at]][0] if at >= 0 else None
        if block is None or address >= block.address + block.size or self._is_spare(block):
            raise ValueError(f"the pointer {pointer:#x} lies in no block of {self.context.label}")
        return block, address - block.address

    def _is_spare(self, block: AnyBlock) -> bool:
        turn: int = lib.vkep_turn(self.spares, block.address | self._tag)
        return turn >= 0 and turn % 2 == 1

    def holds(self, block: AnyBlock) -> bool:
        """Whether a block is still allocated since it was found."""
        return self._blocks.get(block.address, (None, 0))[0] is block and not self._is_spare(block)

    @property
    def live_blocks(self) -> int:
        """Blocks that ONNX Runtime holds."""
        return len(self._blocks) - int(self.spares.free_count)

    # ---- transfers

    def upload(self, pointer: int, data: Bytes) -> None:
        """Copy contiguous bytes to the device, visible to work submitted later. ``data`` may be freed on return."""
        if data.nbytes:
            self.uploads.run(*in_c([(pointer, ffi.from_buffer(data), data.nbytes)]))

    def download(self, pointer: int, out: Bytes) -> None:
        """Copy bytes to the host, once everything submitted so far is done."""
        if out.nbytes:
            self.downloads.run(*in_c([(pointer, ffi.from_buffer(out, require_writable=True), out.nbytes)]))

    def copy(self, items: Iterable[tuple[int, int, int]]) -> None:
        """Copy on the device, with one submit, ordered with earlier and later submits. ``items``: the pointers of a
        source and a target, and bytes, more than 0; they must not depend on each other."""
        found = [(self.find(source), self.find(target), nbytes) for source, target, nbytes in items]
        with self.lock:
            commands = self.lease.allocate("onnxruntime copy")
            commands.begin(one_time=True)
            commands.barrier_before_transfer()
            for (origin, start), (goal, end), nbytes in found:
                commands.copy_buffer(origin.buffer, goal.buffer, nbytes, origin.offset + start, goal.offset + end)
            commands.barrier_after_transfer()
            commands.barrier_to_host()  # where the host maps the memory
            commands.end()
            self.lease.submit(self.lease.prepare([commands]))
            commands.close()

    def wait(self, value: int | None = None) -> None:
        """Block until the timeline reaches ``value`` (None: all that is submitted)."""
        self.lease.wait(value)

    # ---- life

    def release(self) -> None:
        """Release one reference; the last one frees the memory."""
        with _registry_lock:
            self.users -= 1
            if self.users or _domains.get(self.number) is not self:
                return
            del _domains[self.number]
        self._uploader.close()
        self.trim()
        self.uploads.close()
        self.downloads.close()
        for block, _size in self._blocks.values():
            block.free()
        self._blocks.clear()
        self._bases.clear()
        self._shared.release()
        self.lease.close()
        del self.arena


_registry_lock = threading.Lock()
_domains: dict[int, MemoryDomain] = {}


def acquire(context: SharedGpuContext, config: ArenaConfig | None = None) -> MemoryDomain:
    """Take a reference to the domain of a context, which is created for its first user; `MemoryDomain.release` it. A later
    ``config`` that differs logs a warning."""
    with _registry_lock:
        for domain in _domains.values():
            if domain.context is context:
                domain.users += 1
                warn_of_another(domain.arena, config)
                return domain
        number = next(n for n in range(1 << 15) if n not in _domains)
        domain = _domains[number] = MemoryDomain(context, config, number)
        domain.users = 1
        return domain


def domain_of(pointer: int) -> MemoryDomain:
    """The domain that a pointer belongs to. Raises `ValueError`."""
    domain = _domains.get(pointer >> NUMBER_SHIFT)
    if domain is None:
        raise ValueError(f"{pointer:#x} is no pointer of vkep's to device memory (of a closed session, perhaps)")
    return domain


def stats_of(uuid: str) -> ArenaStats:
    """The counters of the arena of a device; all 0 where it has none. Of two contexts on one device, those of the one that holds
    more."""
    with _registry_lock:
        found = [d.arena.stats for d in _domains.values() if d.context.capabilities.uuid == uuid]
    return max(found, key=lambda stats: stats.bytes_in_use, default=ArenaStats())


def live_domains() -> dict[str, int]:
    """Blocks that ONNX Runtime holds, by context."""
    wait_for_releases()
    settle()
    with _registry_lock:
        return {f"{d.context.label}#{d.number}": d.live_blocks for d in _domains.values()}


@dataclass(frozen=True)
class Within:
    """A part of a block, with the attributes that bindings use."""

    buffer: Buffer
    offset: int
    requested: int


class PointerTensor(DeviceTensor):
    """A tensor in memory that ONNX Runtime owns, for one run."""

    def __init__(self, domain: MemoryDomain, pointer: int, dtype: DType, shape: Sequence[int], nbytes: int) -> None:
        # Deliberately does not call DeviceTensor's: nothing is allocated or freed.
        self.dtype, self.shape, self.nbytes = dtype, tuple(shape), nbytes
        self.pointer = pointer
        self.address = pointer & _ADDRESS_MASK
        self.uses = Uses()
        self.checks = []
        self.domain = domain

    @property
    def context_key(self) -> object:
        return self.domain.context

    @property
    def closed(self) -> bool:
        """False: the memory is ONNX Runtime's."""
        return False

    @property
    def block(self) -> Within:  # type: ignore[override]  # the part of DeviceBlock that readers use
        block, offset = self.domain.find(self.pointer)
        return Within(block.buffer, block.offset + offset, self.nbytes)

    def write(self, array: Bytes) -> None:
        """Upload the content; ``array`` has the tensor's dtype and shape."""
        self.domain.upload(self.pointer, np.ascontiguousarray(array).reshape(-1).view(np.uint8))

    def numpy(self) -> Bytes:
        out = np.empty(self.shape, self.dtype.numpy)
        self.domain.download(self.pointer, out.reshape(-1).view(np.uint8))
        self.check()
        return out

    def close(self) -> None:
        """Does nothing: ONNX Runtime frees the memory."""
