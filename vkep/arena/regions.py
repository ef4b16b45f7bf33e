"""The regions that an arena holds, and its chunks by address. No locking: the arena's lock is held."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator

from vkep.arena.chunks import Chunk, Region, RegionKind
from vkep.arena.records import Block, RegionOutOfMemory, RegionSource


class RegionTable:
    """Regions by address, allocated from a source and returned to it."""

    def __init__(self, source: RegionSource, arena_name: str, alignment: int) -> None:
        self._source = source
        self._arena_name = arena_name
        self._alignment = alignment
        self._regions: list[Region] = []
        self._chunks: dict[int, Chunk] = {}

    def __iter__(self) -> Iterator[Region]:
        return iter(self._regions)

    def allocate(self, sizes: Iterable[int], kind: RegionKind) -> Region:
        """Allocate a region of the first of ``sizes`` that the source can provide.

        Raises:
            RegionOutOfMemory: the source has none of them; the message is that of the last attempt.
            ValueError: the source returned a region that is not aligned or overlaps another.
        """
        failure = RegionOutOfMemory("no size to ask for")
        for size in sizes:
            try:
                given = self._source.allocate_region(size)
            except RegionOutOfMemory as error:
                failure = error
                continue
            region = Region(given.id, given.address, size, kind)
            at = bisect_right(self._regions, given.address, key=lambda r: r.address)
            apart = (at == 0 or self._regions[at - 1].end <= region.address) and (
                at == len(self._regions) or region.end <= self._regions[at].address
            )
            if given.address % self._alignment or not apart:
                self._source.free_region(given.id)
                raise ValueError(
                    f"arena {self._arena_name!r}: the region source gave address {given.address:#x} for {size} bytes, "
                    f"expected a multiple of {self._alignment} apart from all other regions: it breaks its contract"
                )
            self._regions.insert(at, region)
            self.index(region.first)
            return region
        raise failure

    def drop(self, region: Region) -> None:
        """Give a region of one chunk back to the source."""
        self._regions.remove(region)
        self.unindex(region.first)
        self._source.free_region(region.id)

    def drop_all(self) -> None:
        """Give every region back, with all chunks in it."""
        self._chunks.clear()
        while self._regions:
            region = self._regions.pop()
            for chunk in region.chunks():
                # a region and its chunks form a reference cycle, which would keep a stream's device alive
                chunk.use = None
            self._source.free_region(region.id)

    def index(self, chunk: Chunk) -> None:
        """Add a new chunk to the index by address."""
        self._chunks[chunk.address] = chunk

    def unindex(self, chunk: Chunk) -> None:
        """Remove a chunk that was merged into its neighbour from the index."""
        del self._chunks[chunk.address]

    def idle(self) -> list[Region]:
        """Chunk regions that are wholly free and belong to no stream."""
        return [region for region in self._regions if region.kind is RegionKind.CHUNKS and region.idle]

    def count_live(self) -> int:
        """Number of live blocks."""
        return sum(chunk.in_use for chunk in self._chunks.values())

    def live_chunk(self, block: Block | int) -> Chunk:
        """The chunk of a live block, or of the live block that starts at an address.

        Raises:
            TypeError: neither a block nor an int.
            ValueError: not live: freed, foreign, or not a block's first address; the text says which.
        """
        if isinstance(block, bool) or not isinstance(block, (Block, int)):
            raise TypeError(
                f"arena {self._arena_name!r}: free: expected a Block or an address, got {type(block).__name__}"
            )
        address = block.address if isinstance(block, Block) else block
        chunk = self._chunks.get(address)
        if chunk is None or not chunk.in_use:
            raise ValueError(f"arena {self._arena_name!r}: free: {self._why_not_live(address)}")
        if isinstance(block, Block) and block.allocation_id != chunk.allocation_id:
            raise ValueError(
                f"arena {self._arena_name!r}: free: the block at {address:#x} is freed already (double free)"
                " or another arena's; a newer block lies at its address"
            )
        return chunk

    def _why_not_live(self, address: int) -> str:
        at = bisect_right(self._regions, address, key=lambda r: r.address) - 1
        if at < 0 or address >= self._regions[at].end:
            return (
                f"address {address:#x} lies in none of the arena's {len(self._regions)} regions: "
                "another allocator gave it out, or it is freed already (double free) and its region given back"
            )
        region = self._regions[at]
        chunk = next(c for c in region.chunks() if c.offset + c.size > address - region.address)
        if chunk.in_use:
            return f"address {address:#x} lies inside the block at {chunk.address:#x}; give the block's first address"
        return f"address {address:#x} lies in free memory: freed already (double free), or never given out"
