"""Plain records of the arena: blocks, the source of regions, statistics, errors. Nothing here imports Vulkan."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

from gpu_shared.errors import PicklableError
from vkep.errors import also_onnxruntimes


class StreamUse(NamedTuple):
    """The last device work that touched a chunk: a stream, and the timeline value at which that work is done."""

    stream: Hashable
    sync_value: int | None  #: None: not known; then only ``release_stream`` ends the assignment


#: Answers whether the device has finished the work of a use. It is called with the arena's lock held, so it must not
#: call the arena; and it must not answer True for a ``sync_value`` of None unless the whole stream is idle.
IsPassed = Callable[[StreamUse], bool]


class StreamTag(Enum):
    """Marker type for ``free``'s default."""

    ALLOCATED = "the stream that the block was allocated for"


@dataclass(frozen=True, slots=True)
class Block:
    """A live piece of a region."""

    address: int  #: device (or host) address of the first byte, aligned
    size: int  #: usable bytes: the request rounded up, and any rest too small to be split off
    requested: int  #: requested bytes
    region: int  #: id of the region, as the source named it
    offset: int  #: byte offset in the region
    allocation_id: int  #: never reused by one arena: it distinguishes a stale block from a new one at the same address


class SourceRegion(NamedTuple):
    """A region from a source: its id (the argument of ``free_region``) and the address of its first byte."""

    id: int
    address: int


class RegionSource(Protocol):
    """Where an arena gets its memory from."""

    def allocate_region(self, nbytes: int) -> SourceRegion:
        """Allocate a region of ``nbytes``. Its address is a multiple of the arena's alignment, and it overlaps no other
        region.

        Raises:
            RegionOutOfMemory: the memory is not available; the arena then tries a smaller size, or reports the failure.
        """
        ...

    def free_region(self, region_id: int) -> None:
        """Take a region back. No chunk of it is in use."""
        ...


class RegionOutOfMemory(MemoryError):
    """A source cannot provide a region of the requested size; the text says why."""


@also_onnxruntimes("RuntimeException")
class ArenaOutOfMemory(MemoryError, PicklableError):
    """A request that no region has room for. Existing blocks stay valid and the arena stays usable.

    Attributes hold bytes: ``asked``, ``in_use``, ``allocated`` (all regions), ``limit`` (0: none) and ``largest_free``
    (the largest free chunk that the requesting stream may use).
    """

    def __init__(
        self, arena: str, *, asked: int, in_use: int, allocated: int, limit: int, largest_free: int, reason: str
    ) -> None:
        self.asked = asked
        self.in_use = in_use
        self.allocated = allocated
        self.limit = limit
        self.largest_free = largest_free
        self.reason = reason
        limit_text = format_bytes(limit) if limit else "none (arena.max_mem is not set)"
        if limit and asked > limit - in_use:
            advice = (
                "raise arena.max_mem, or max_memory where a session has that, or free blocks (close sessions, use smaller "
                "batches)"
            )
        elif limit and asked > limit - allocated:
            advice = (
                "the held regions are fragmented: end runs (release_stream) and shrink(), raise arena.max_mem, or max_memory "
                "where a session has that, or use arena.extend_strategy=1 (kSameAsRequested); dump() shows the chunks"
            )
        else:
            advice = (
                "close sessions or other programs that use this device, use smaller batches or a smaller model, or "
                "call shrink() on arenas that lie idle; dump() shows the chunks"
            )
        super().__init__(
            f"arena {arena!r} is out of memory: asked {format_bytes(asked)}, in use {format_bytes(in_use)} of "
            f"{format_bytes(allocated)} held, limit {limit_text}, largest free chunk "
            f"{format_bytes(largest_free)}; reason: {reason}. What to do: {advice}"
        )


@dataclass(frozen=True, slots=True)
class ArenaStats:
    """Counters of one arena; sizes in bytes. The names are those of ONNX Runtime's ``AllocatorStats``."""

    num_allocs: int = 0  #: blocks given out, reserved ones included
    num_reserves: int = 0  #: blocks given out by ``reserve``
    num_arena_extensions: int = 0  #: regions allocated for chunks (not for reserved or separate blocks)
    num_arena_shrinkages: int = 0  #: regions returned to the source before the end
    bytes_in_use: int = 0  #: size of all live blocks, rounded as given out
    max_bytes_in_use: int = 0  #: the highest ``bytes_in_use``
    total_allocated_bytes: int = 0  #: size of all regions held
    max_alloc_size: int = 0  #: the largest single block
    bytes_limit: int = 0  #: ``arena.max_mem``; 0: none

    def to_key_values(self) -> dict[str, str]:
        """The counters under the keys of ONNX Runtime's ``GetStats``."""
        return {
            "Limit": str(self.bytes_limit),
            "InUse": str(self.bytes_in_use),
            "TotalAllocated": str(self.total_allocated_bytes),
            "MaxInUse": str(self.max_bytes_in_use),
            "NumAllocs": str(self.num_allocs),
            "NumReserves": str(self.num_reserves),
            "NumArenaExtensions": str(self.num_arena_extensions),
            "NumArenaShrinkages": str(self.num_arena_shrinkages),
            "MaxAllocSize": str(self.max_alloc_size),
        }


def format_bytes(nbytes: int, *, exact: bool = True) -> str:
    """Return ``nbytes`` as readable text: ``640 B``, ``1.5 MiB (1572864 B)``, or without ``exact`` ``1.5 MiB``."""
    value, unit = float(nbytes), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024 or unit == "TiB":
            break
        value /= 1024
    if unit == "B":
        return f"{nbytes} B"
    return f"{value:.1f} {unit} ({nbytes} B)" if exact else f"{value:.1f} {unit}"
