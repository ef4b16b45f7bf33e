"""Best-fit-with-coalescing arena over an abstract source of regions: pure arithmetic, no Vulkan.

The design is the plugin arena of ONNX Runtime (CUDA plugin EP arena allocator design, section 2), itself after
TensorFlow's BFC allocator and Doug Lea's malloc: chunks of power-of-two bins, doubly linked within their region, split
and coalesced, regions growing by powers of two. A freed chunk stays assigned to the stream that used it last: that
stream may take it again at once (its own work is in order), others only when the assignment has ended, by
``release_stream`` at the end of a run or by proof that the timeline value of the last use has passed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable
from threading import Lock

from vkep.arena.chunks import (
    MIN_ALIGNMENT,
    BinTable,
    Chunk,
    Region,
    RegionKind,
    backoff_sizes,
    may_merge,
    merged_use,
    plan_growth,
    round_up,
)
from vkep.arena.config import ArenaConfig, ArenaMode
from vkep.arena.dump import ArenaSnapshot, render, take_snapshot
from vkep.arena.records import (
    ArenaOutOfMemory,
    ArenaStats,
    Block,
    IsPassed,
    RegionOutOfMemory,
    RegionSource,
    StreamTag,
    StreamUse,
)
from vkep.arena.regions import RegionTable

#: under a limit that is set later a region of several blocks has at most this part of it
_LIMITED_GROWTH = 128


class BfcArena:
    """An arena over ``source``; all methods may be called from any thread.

    Args:
        source: allocates and frees regions. It is called with the arena's lock held.
        config: the ``arena.*`` settings.
        name: used in messages and dumps.
        alignment: of addresses and sizes, bytes: a power of two, 256 or more.
        is_passed: proof that device work is done, consulted before the arena grows (see ``IsPassed``).

    Raises:
        TypeError, ValueError: a bad ``alignment``.
    """

    def __init__(
        self,
        source: RegionSource,
        config: ArenaConfig | None = None,
        *,
        name: str = "arena",
        alignment: int = MIN_ALIGNMENT,
        is_passed: IsPassed | None = None,
    ) -> None:
        if isinstance(alignment, bool) or not isinstance(alignment, int):
            raise TypeError(f"arena {name!r}: alignment: expected an int, got {type(alignment).__name__}")
        if alignment < MIN_ALIGNMENT or alignment & (alignment - 1):
            raise ValueError(
                f"arena {name!r}: alignment: expected a power of two of {MIN_ALIGNMENT} bytes or more, got {alignment}"
            )
        self.name = name
        self.config = self.configured = config or ArenaConfig()
        self.alignment = alignment
        self._is_passed = is_passed
        self._lock = Lock()
        self._bins = BinTable()
        self._regions = RegionTable(source, name, alignment)
        self._by_stream: dict[Hashable, set[Chunk]] = {}  # chunks assigned to a stream, in use or free
        self._stats = ArenaStats(bytes_limit=self.config.max_mem)
        self._next_allocation_id = 1
        self._closed = False
        first = self.config.initial_chunk_size_bytes
        self._growth_bytes = round_up(min(first, self.config.max_mem or first), alignment)

    # ---- allocation -------------------------------------------------------------------------------------------

    def alloc(self, nbytes: int, stream: Hashable | None = None, *, is_passed: IsPassed | None = None) -> Block:
        """A block of at least ``nbytes`` bytes for work on ``stream`` (None: for host work, or work ordered elsewhere).

        ``is_passed`` replaces the arena's own proof for this call.

        Raises:
            TypeError, ValueError: ``nbytes`` is no positive int, or the arena is closed.
            ArenaOutOfMemory: no region has room for the request; the arena is unchanged.
        """
        self._check_size("alloc", nbytes)
        rounded = round_up(nbytes, self.alignment)
        with self._lock:
            self._check_open("alloc")
            proof = is_passed or self._is_passed
            if self.config.mode is ArenaMode.SEPARATE:
                self._reclaim(proof)
                chunk = self._add_region(nbytes, rounded, RegionKind.SEPARATE, stream, proof)
            else:
                found = self._bins.find(rounded, stream)
                if found is None and self._reclaim(proof):
                    found = self._bins.find(rounded, stream)
                chunk = found or self._add_region(nbytes, rounded, RegionKind.CHUNKS, stream, proof)
                self._bins.remove(chunk)
                self._split_off_rest(chunk, rounded)
            return self._give_out(chunk, nbytes, stream)

    def reserve(self, nbytes: int) -> Block:
        """A block in a separate region, outside the bins, so that long-lived data (weights) neither steers the
        arena's growth nor pins its regions. ``free`` gives the region back at once.

        Raises: as ``alloc``.
        """
        self._check_size("reserve", nbytes)
        rounded = round_up(nbytes, self.alignment)
        with self._lock:
            self._check_open("reserve")
            chunk = self._add_region(nbytes, rounded, RegionKind.RESERVED, None, self._is_passed)
            self._count(num_reserves=self._stats.num_reserves + 1)
            return self._give_out(chunk, nbytes, None)

    def free(
        self,
        block: Block | int,
        *,
        stream: Hashable | StreamTag | None = StreamTag.ALLOCATED,
        sync_value: int | None = None,
    ) -> None:
        """Take a block (or the address of one) back.

        Args:
            block: what ``alloc`` or ``reserve`` gave.
            stream: the stream that used it last, if not the one it was allocated for; None: the device is done with it.
            sync_value: the timeline value on that stream at which its last use is done, where known.

        Raises:
            TypeError, ValueError: an address that was never given out or is freed already, a ``sync_value`` without a
                stream, or a closed arena.
        """
        with self._lock:
            self._check_open("free")
            chunk = self._regions.live_chunk(block)
            owner = chunk.stream if isinstance(stream, StreamTag) else stream
            if sync_value is not None and owner is None:
                raise ValueError(f"arena {self.name!r}: free: sync_value {sync_value} needs a stream, and got none")
            chunk.in_use, chunk.requested, chunk.allocation_id = False, 0, -1
            self._count(bytes_in_use=self._stats.bytes_in_use - chunk.size)
            self._assign(chunk, None if owner is None else StreamUse(owner, sync_value))
            self._settle(chunk)

    # ---- streams and regions ----------------------------------------------------------------------------------

    def release_stream(self, stream: Hashable, up_to: int | None = None) -> int:
        """End the assignment of chunks to ``stream``: its work is done, so every stream may use the chunks that it
        freed.

        Args:
            stream: as given to ``alloc``; an unknown stream is no error (it has no chunks).
            up_to: end only the assignment of free chunks whose sync value is known and at most this. Without it the
                whole stream is taken to be idle, and its live blocks lose their assignment as well, as in ONNX
                Runtime's ResetChunksUsingStream: a caller that uses such a block on the stream again names the stream
                at ``free``.

        Returns:
            Bytes of free chunks that became usable by every stream (or went back to the source).
        """
        with self._lock:
            return self._end_assignments(self._by_stream.get(stream, set()), up_to)

    def shrink(self) -> int:
        """Return wholly free regions to the source, and restart the growth at ``initial_growth_chunk_size_bytes``.
        Reserved blocks stay, and chunks of streams whose work is not proven done.

        Returns:
            Bytes returned.
        """
        with self._lock:
            self._check_open("shrink")
            before = self._stats.total_allocated_bytes
            self._reclaim(self._is_passed)
            self._return_idle_regions()
            self._growth_bytes = round_up(self.config.initial_growth_chunk_size_bytes, self.alignment)
            return before - self._stats.total_allocated_bytes

    def close(self) -> int:
        """Give every region back, live blocks or not, and refuse further use; the device must be done with them all.

        Returns:
            Blocks that were still live: 0 after a clean end.
        """
        with self._lock:
            if self._closed:
                return 0
            self._closed = True
            live = self._regions.count_live()
            self._by_stream.clear()
            self._bins = BinTable()
            self._count(bytes_in_use=0, total_allocated_bytes=0)
            self._regions.drop_all()
            return live

    def bound(self, max_mem: int | None) -> None:
        """Set the limit where it is less than the configured one, and grow by small parts of it, since reserved blocks need the
        rest; None: as configured. What is held above the limit stays until it is freed. Where the limit changes, the peak is
        counted from now on."""
        with self._lock:
            before, self.config = self.config, self.configured
            if max_mem is not None:
                limit = min(max_mem, self.config.max_mem or max_mem)
                if limit != before.max_mem:
                    self._count(max_bytes_in_use=self._stats.bytes_in_use)
                self._reclaim(self._is_passed)
                self._return_idle_regions()
                growth = max(limit // _LIMITED_GROWTH, self.alignment)
                self.config = dataclasses.replace(self.config, max_mem=limit, max_power_of_two_extend_bytes=growth)
            self._count(bytes_limit=self.config.max_mem)

    # ---- looking inside ---------------------------------------------------------------------------------------

    @property
    def stats(self) -> ArenaStats:
        """Return the current counters."""
        with self._lock:
            return self._stats

    @property
    def growth_bytes(self) -> int:
        """Return the size in bytes at which the next power-of-two extension starts."""
        with self._lock:
            return self._growth_bytes

    def snapshot(self) -> ArenaSnapshot:
        """Regions, chunks and bins as plain data."""
        with self._lock:
            return take_snapshot(self.name, self.config, self._stats, self._regions, self._bins.counts())

    def dump(self) -> str:
        """``snapshot`` as text for a person to read."""
        return render(self.snapshot())

    # ---- inside: the lock is held -----------------------------------------------------------------------------

    def _check_size(self, call: str, nbytes: int) -> None:
        if isinstance(nbytes, bool) or not isinstance(nbytes, int):
            raise TypeError(f"arena {self.name!r}: {call}: expected an int (bytes), got {type(nbytes).__name__}")
        if nbytes <= 0:
            raise ValueError(
                f"arena {self.name!r}: {call}: expected 1 byte or more, got {nbytes}; an empty tensor needs no block"
            )

    def _check_open(self, call: str) -> None:
        if self._closed:
            raise ValueError(f"arena {self.name!r}: {call}: the arena is closed")

    def _count(self, **changes: int) -> None:
        self._stats = dataclasses.replace(self._stats, **changes)

    def _assign(self, chunk: Chunk, use: StreamUse | None) -> None:
        """Set a chunk's last use and keep the index by stream."""
        if chunk.use is not None:
            members = self._by_stream[chunk.use.stream]
            members.discard(chunk)
            if not members:
                del self._by_stream[chunk.use.stream]
        chunk.use = use
        if use is not None:
            self._by_stream.setdefault(use.stream, set()).add(chunk)

    def _split_off_rest(self, chunk: Chunk, rounded: int) -> None:
        rest = chunk.size - rounded
        if rest > 0 and (chunk.size >= 2 * rounded or rest >= self.config.max_dead_bytes_per_chunk):
            piece = chunk.split(rounded)
            self._regions.index(piece)
            self._assign(piece, chunk.use)
            self._bins.add(piece)

    def _give_out(self, chunk: Chunk, nbytes: int, stream: Hashable | None) -> Block:
        chunk.in_use, chunk.requested, chunk.allocation_id = True, nbytes, self._next_allocation_id
        self._next_allocation_id += 1
        self._assign(chunk, None if stream is None else StreamUse(stream, None))
        stats = self._stats
        in_use = stats.bytes_in_use + chunk.size
        self._count(
            num_allocs=stats.num_allocs + 1,
            bytes_in_use=in_use,
            max_bytes_in_use=max(stats.max_bytes_in_use, in_use),
            max_alloc_size=max(stats.max_alloc_size, chunk.size),
        )
        return Block(chunk.address, chunk.size, nbytes, chunk.region.id, chunk.offset, chunk.allocation_id)

    def _settle(self, chunk: Chunk) -> None:
        """Insert a chunk that has become free, or has lost its stream, into the bins and merge it with free
        neighbours."""
        region = chunk.region
        if region.kind is not RegionKind.CHUNKS:
            if region.idle:
                self._drop_region(region)
            return
        if chunk.next is not None and may_merge(chunk, chunk.next):
            self._bins.remove(chunk.next)
            self._merge_with_next(chunk)
        if chunk.prev is not None and may_merge(chunk.prev, chunk):
            chunk = chunk.prev
            self._bins.remove(chunk)
            self._merge_with_next(chunk)
        self._bins.add(chunk)

    def _merge_with_next(self, chunk: Chunk) -> None:
        other = chunk.next
        assert other is not None
        use = merged_use(chunk.use, other.use)
        self._assign(other, None)
        self._assign(chunk, use)
        self._regions.unindex(other)
        chunk.absorb_next()

    def _end_assignments(self, chunks: set[Chunk], up_to: int | None = None) -> int:
        freed = 0
        for chunk in list(chunks):
            use = chunk.use
            if use is None:
                continue
            if up_to is not None and (chunk.in_use or use.sync_value is None or use.sync_value > up_to):
                continue
            if chunk.in_use:
                self._assign(chunk, None)
                continue
            freed += chunk.size
            if chunk.region.kind is RegionKind.CHUNKS:
                self._bins.remove(chunk)
            self._assign(chunk, None)
            self._settle(chunk)
        return freed

    def _reclaim(self, proof: IsPassed | None) -> int:
        """End the assignment of free chunks whose last use is proven done. Returns their bytes."""
        if proof is None or not self._by_stream:
            return 0
        answers: dict[StreamUse, bool] = {}
        done: set[Chunk] = set()
        for chunks in self._by_stream.values():
            for chunk in chunks:
                if chunk.in_use or chunk.use is None:
                    continue
                if chunk.use not in answers:
                    answers[chunk.use] = proof(chunk.use)
                if answers[chunk.use]:
                    done.add(chunk)
        return self._end_assignments(done)

    def _add_region(
        self, nbytes: int, rounded: int, kind: RegionKind, stream: Hashable | None, proof: IsPassed | None
    ) -> Chunk:
        """A new region of at least ``rounded`` bytes; its chunk is in the bins if the region is for chunks."""
        try:
            try:
                return self._extend(rounded, kind)
            except RegionOutOfMemory:
                # Idle regions may hold memory that is too small for the request: return them and try once more.
                if not self._reclaim(proof) + self._return_idle_regions():
                    raise
                return self._extend(rounded, kind)
        except RegionOutOfMemory as error:
            raise ArenaOutOfMemory(
                self.name,
                asked=nbytes,
                in_use=self._stats.bytes_in_use,
                allocated=self._stats.total_allocated_bytes,
                limit=self.config.max_mem,
                largest_free=self._bins.largest(stream),
                reason=str(error),
            ) from error

    def _extend(self, rounded: int, kind: RegionKind) -> Chunk:
        available: int | None = None
        if self.config.max_mem:
            available = (self.config.max_mem - self._stats.total_allocated_bytes) // self.alignment * self.alignment
            if rounded > available:
                raise RegionOutOfMemory(f"the limit leaves {available} bytes for new regions, {rounded} are needed")
        sizes, growth = [rounded], self._growth_bytes
        if kind is RegionKind.CHUNKS:
            plan = plan_growth(self.config, growth, rounded, available, self.alignment)
            sizes, growth = list(backoff_sizes(plan.extend_bytes, rounded, self.alignment)), plan.next_growth_bytes
        region = self._regions.allocate(sizes, kind)
        self._growth_bytes = growth  # only now: a failed extension must not make the next one larger
        stats = self._stats
        self._count(
            total_allocated_bytes=stats.total_allocated_bytes + region.size,
            num_arena_extensions=stats.num_arena_extensions + (kind is RegionKind.CHUNKS),
        )
        if kind is RegionKind.CHUNKS:
            self._bins.add(region.first)
        return region.first

    def _return_idle_regions(self) -> int:
        """Give wholly free regions back. Returns their number."""
        idle = self._regions.idle()
        for region in idle:
            self._bins.remove(region.first)
            self._count(num_arena_shrinkages=self._stats.num_arena_shrinkages + 1)
            self._drop_region(region)
        return len(idle)

    def _drop_region(self, region: Region) -> None:
        self._count(total_allocated_bytes=self._stats.total_allocated_bytes - region.size)
        self._regions.drop(region)
