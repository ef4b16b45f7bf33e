"""Chunks, regions, bins and growth arithmetic of the BFC arena: pure data structures, no locking."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from enum import Enum

from vkep.arena.config import ArenaConfig, ExtendStrategy
from vkep.arena.records import StreamUse

MIN_ALIGNMENT = 256  #: bytes; also the size of the smallest bin (ONNX Runtime's kMinAllocationSize)
NUM_BINS = 21  #: bin b holds chunks of 256 << b bytes or more; the last has no upper bound
BACKOFF_TENTHS = 9  #: the factor, in tenths, by which the size shrinks after a source has failed
MIN_BACKOFF_BYTES = 8 * 1024  #: backing off stops below this


class RegionKind(Enum):
    """The use of a region."""

    CHUNKS = "chunks"  #: split and coalesced
    RESERVED = "reserved"  #: one block of ``reserve``
    SEPARATE = "separate"  #: one block of mode 'separate'


class Region:
    """A piece of the source's memory."""

    __slots__ = ("id", "address", "size", "kind", "first")

    def __init__(self, region_id: int, address: int, size: int, kind: RegionKind) -> None:
        self.id = region_id
        self.address = address
        self.size = size
        self.kind = kind
        self.first = Chunk(self, 0, size)

    def chunks(self) -> Iterator[Chunk]:
        """The region's chunks in address order."""
        chunk: Chunk | None = self.first
        while chunk is not None:
            yield chunk
            chunk = chunk.next

    @property
    def end(self) -> int:
        """Address behind the last byte."""
        return self.address + self.size

    @property
    def idle(self) -> bool:
        """No chunk is in use or assigned to a stream. Compatible neighbours are merged, so checking one chunk is
        enough."""
        first = self.first
        return first.next is None and not first.in_use and first.use is None


class Chunk:
    """A piece of a region, in use or free, linked to its neighbours."""

    __slots__ = ("region", "offset", "size", "requested", "prev", "next", "in_use", "use", "allocation_id")

    def __init__(self, region: Region, offset: int, size: int) -> None:
        self.region = region
        self.offset = offset
        self.size = size
        self.requested = 0
        self.prev: Chunk | None = None
        self.next: Chunk | None = None
        self.in_use = False
        self.use: StreamUse | None = None  #: in use: the stream it was allocated for; free: its last use
        self.allocation_id = -1

    @property
    def address(self) -> int:
        """The first byte's address on the device."""
        return self.region.address + self.offset

    @property
    def stream(self) -> Hashable | None:
        """The stream that used it last, None where every stream may use it."""
        return None if self.use is None else self.use.stream

    def split(self, size: int) -> Chunk:
        """Cut this free chunk to ``size``; the rest, with the same last use, becomes the next chunk."""
        rest = Chunk(self.region, self.offset + size, self.size - size)
        rest.prev, rest.next = self, self.next
        if self.next is not None:
            self.next.prev = rest
        self.next, self.size = rest, size
        return rest

    def absorb_next(self) -> None:
        """Take the next chunk's bytes; of two sync values the merged chunk waits for the later one."""
        other = self.next
        assert other is not None
        self.size += other.size
        self.next = other.next
        if other.next is not None:
            other.next.prev = self


def merged_use(a: StreamUse | None, b: StreamUse | None) -> StreamUse | None:
    """The last use of two merged chunks of the same stream: the later one, unknown if either is unknown."""
    if a is None or b is None:
        return None
    if a.sync_value is None or b.sync_value is None:
        return StreamUse(a.stream, None)
    return StreamUse(a.stream, max(a.sync_value, b.sync_value))


def may_merge(a: Chunk, b: Chunk) -> bool:
    """Both are free and belong to the same stream, or to none."""
    return not a.in_use and not b.in_use and (a.use is None) == (b.use is None) and a.stream == b.stream


def bin_index(size: int) -> int:
    """The bin of a chunk of ``size`` bytes: floor(log2(size / 256)), within the table."""
    return min(max(size >> 8, 1).bit_length() - 1, NUM_BINS - 1)


class BinTable:
    """Free chunks by size: 21 lists, each in (size, address) order, so that the first fit is the best fit."""

    def __init__(self) -> None:
        self._bins: list[list[tuple[int, int, Chunk]]] = [[] for _ in range(NUM_BINS)]

    def add(self, chunk: Chunk) -> None:
        """Put a free chunk into the bin of its size."""
        # Addresses differ, so tuples never compare by the chunk itself.
        insort(self._bins[bin_index(chunk.size)], (chunk.size, chunk.address, chunk))

    def remove(self, chunk: Chunk) -> None:
        """Take a chunk out of its bin. Raises `AssertionError` where it is not in it."""
        entries = self._bins[bin_index(chunk.size)]
        at = bisect_left(entries, (chunk.size, chunk.address))
        if at == len(entries) or entries[at][2] is not chunk:
            raise AssertionError(f"free chunk at {chunk.address:#x} ({chunk.size} bytes) is missing from its bin")
        del entries[at]

    def find(self, size: int, stream: Hashable | None) -> Chunk | None:
        """The smallest free chunk of at least ``size`` bytes that ``stream`` may use, not removed; or None."""
        first = bin_index(size)
        for index in range(first, NUM_BINS):
            entries = self._bins[index]
            start = bisect_left(entries, (size, 0)) if index == first else 0
            for position in range(start, len(entries)):
                chunk = entries[position][2]
                if chunk.use is None or chunk.use.stream == stream:
                    return chunk
        return None

    def largest(self, stream: Hashable | None) -> int:
        """Size of the largest free chunk that ``stream`` may use; 0 if there is none."""
        for entries in reversed(self._bins):
            for size, _address, chunk in reversed(entries):
                if chunk.use is None or chunk.use.stream == stream:
                    return size
        return 0

    def counts(self) -> list[tuple[int, int, int]]:
        """(smallest size, free chunks, free bytes) of each bin."""
        return [(256 << b, len(entries), sum(e[0] for e in entries)) for b, entries in enumerate(self._bins)]


@dataclass(frozen=True, slots=True)
class Growth:
    """One extension, in bytes: the size to request, and the growth size after it."""

    extend_bytes: int
    next_growth_bytes: int


def plan_growth(config: ArenaConfig, growth_bytes: int, rounded: int, available: int | None, alignment: int) -> Growth:
    """The next region's size for a request of ``rounded`` bytes (ONNX Runtime's ``ArenaImpl::Extend``).

    With powers of two the growth size doubles until the request fits; where it fitted at once, the growth size doubles
    for the next time, up to ``max_power_of_two_extend_bytes``: a larger request gets a region of its size.
    ``available`` (bytes below the limit, None: unlimited) bounds the region.
    """
    if config.extend_strategy is ExtendStrategy.SAME_AS_REQUESTED:
        return Growth(rounded, growth_bytes)
    cap = round_up(config.max_power_of_two_extend_bytes, alignment)
    size = growth_bytes
    while size < rounded:
        size *= 2
    following = size
    if size == growth_bytes:
        following = size * 2 if size < cap // 2 else cap
    size = min(size, max(rounded, cap))
    return Growth(size if available is None else min(size, available), following)


def backoff_sizes(extend_bytes: int, rounded: int, alignment: int) -> Iterator[int]:
    """Sizes to request from a source, in order: each nine tenths of the one before, and at last the request itself.

    The last step differs from ONNX Runtime, which gives up once nine tenths are less than the request.
    """
    size = extend_bytes
    while size > rounded:
        yield size
        size = size * BACKOFF_TENTHS // 10 // alignment * alignment
        if size < MIN_BACKOFF_BYTES:
            break
    yield rounded


def round_up(nbytes: int, alignment: int) -> int:
    """``nbytes`` up to a multiple of ``alignment`` (a power of two)."""
    return (nbytes + alignment - 1) & -alignment
