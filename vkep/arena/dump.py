"""The state of an arena as plain data, and as readable text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from vkep.arena.chunks import Region
from vkep.arena.config import ArenaConfig
from vkep.arena.records import ArenaStats, StreamUse, format_bytes

MAP_COLUMNS = 64  #: characters of a region's map


@dataclass(frozen=True, slots=True)
class ChunkView:
    """One chunk; bytes."""

    offset: int
    size: int
    requested: int
    in_use: bool
    use: StreamUse | None


@dataclass(frozen=True, slots=True)
class RegionView:
    """One region; bytes. ``kind``: 'chunks', 'reserved' or 'separate'."""

    id: int
    address: int
    size: int
    kind: str
    chunks: tuple[ChunkView, ...]


@dataclass(frozen=True, slots=True)
class ArenaSnapshot:
    """One moment of an arena. ``bins``: (smallest size, free chunks, free bytes) of each bin."""

    name: str
    config: ArenaConfig
    stats: ArenaStats
    regions: tuple[RegionView, ...]
    bins: tuple[tuple[int, int, int], ...]

    @property
    def free_bytes(self) -> int:
        """Bytes of all free chunks, including those assigned to streams."""
        return sum(chunk.size for region in self.regions for chunk in region.chunks if not chunk.in_use)

    @property
    def largest_free(self) -> int:
        """The largest free chunk, whatever stream it is assigned to."""
        return max((c.size for region in self.regions for c in region.chunks if not c.in_use), default=0)

    @property
    def external_fragmentation(self) -> float:
        """1 - largest free chunk / free bytes: 0 when all free memory is one piece."""
        return 1 - self.largest_free / self.free_bytes if self.free_bytes else 0.0

    @property
    def wasted_bytes(self) -> int:
        """Bytes of live blocks beyond the requested sizes: rounding, and remainders too small to split off."""
        return sum(c.size - c.requested for region in self.regions for c in region.chunks if c.in_use)


def take_snapshot(
    name: str, config: ArenaConfig, stats: ArenaStats, regions: Iterable[Region], bins: list[tuple[int, int, int]]
) -> ArenaSnapshot:
    """Copy the arena's state (the caller holds its lock)."""
    views = tuple(
        RegionView(
            region.id,
            region.address,
            region.size,
            region.kind.value,
            tuple(ChunkView(c.offset, c.size, c.requested, c.in_use, c.use) for c in region.chunks()),
        )
        for region in regions
    )
    return ArenaSnapshot(name, config, stats, views, tuple(bins))


def render(snapshot: ArenaSnapshot) -> str:
    """The snapshot as text: totals, regions with a map (``#`` in use, ``s`` free but a stream's, ``.`` free), bins."""
    stats = snapshot.stats
    limit = format_bytes(stats.bytes_limit) if stats.bytes_limit else "none"
    lines = [
        f"arena {snapshot.name!r}: in use {format_bytes(stats.bytes_in_use)}"
        f" of {format_bytes(stats.total_allocated_bytes)} held in {len(snapshot.regions)} regions,"
        f" limit {limit}, peak {format_bytes(stats.max_bytes_in_use)}",
        f"  free {format_bytes(snapshot.free_bytes)}, largest free {format_bytes(snapshot.largest_free)},"
        f" external fragmentation {snapshot.external_fragmentation:.0%},"
        f" wasted in blocks {format_bytes(snapshot.wasted_bytes)}",
        f"  allocations {stats.num_allocs} ({stats.num_reserves} reserved),"
        f" largest {format_bytes(stats.max_alloc_size)},"
        f" extensions {stats.num_arena_extensions}, shrinkages {stats.num_arena_shrinkages}",
    ]
    for region in snapshot.regions:
        lines.append(
            f"  region {region.id} ({region.kind}) at {region.address:#x}, {format_bytes(region.size)}"
            f"  |{_map(region)}|"
        )
        for chunk in region.chunks:
            state = f"in use, asked {chunk.requested} B" if chunk.in_use else "free"
            if chunk.use is not None:
                value = "unknown" if chunk.use.sync_value is None else str(chunk.use.sync_value)
                state += f", stream {chunk.use.stream!r}" + ("" if chunk.in_use else f" until value {value}")
            lines.append(f"    +{chunk.offset:#012x}  {format_bytes(chunk.size):>26}  {state}")
    filled = [(low, count, nbytes) for low, count, nbytes in snapshot.bins if count]
    if filled:
        lines.append("  bins (smallest size: free chunks, bytes)")
        lines.extend(
            f"    {format_bytes(low):>26}: {count:5d}  {format_bytes(nbytes)}" for low, count, nbytes in filled
        )
    return "\n".join(lines)


def _map(region: RegionView) -> str:
    """One character per slice of the region: the state that fills most of the slice."""
    cells = []
    chunks = iter(region.chunks)
    chunk = next(chunks)
    for column in range(MAP_COLUMNS):
        start, end = column * region.size // MAP_COLUMNS, (column + 1) * region.size // MAP_COLUMNS
        filled = {"#": 0, "s": 0, ".": 0}
        while True:
            overlap = min(end, chunk.offset + chunk.size) - max(start, chunk.offset)
            filled["#" if chunk.in_use else "." if chunk.use is None else "s"] += max(overlap, 0)
            if chunk.offset + chunk.size >= end:
                break
            chunk = next(chunks)
        cells.append(max(filled, key=lambda mark: filled[mark]))
    return "".join(cells)
