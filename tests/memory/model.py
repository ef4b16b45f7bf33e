"""A region source in plain host arithmetic, for tests of the arena without a device."""

from __future__ import annotations

from typing import Any

from vkep.memory import ArenaConfig, BfcArena, RegionOutOfMemory, SourceRegion

MIB = 1 << 20


class FakeSource:
    """Gives regions at rising addresses, at most ``capacity`` bytes at a time; reuses no address."""

    def __init__(self, capacity: int | None = None, gap: int = 4096) -> None:
        self.capacity = capacity
        self.gap = gap
        self.live: dict[int, tuple[int, int]] = {}  # id -> (address, size)
        self.asked: list[int] = []
        self.freed: list[int] = []
        self._next_id = 1
        self._next_address = 1 << 20

    @property
    def held(self) -> int:
        return sum(size for _address, size in self.live.values())

    def allocate_region(self, nbytes: int) -> SourceRegion:
        self.asked.append(nbytes)
        if self.capacity is not None and self.held + nbytes > self.capacity:
            raise RegionOutOfMemory(f"the source has {self.capacity - self.held} bytes left")
        region = SourceRegion(self._next_id, self._next_address)
        self._next_id += 1
        self._next_address += (nbytes + self.gap + 65535) & -65536
        self.live[region.id] = (region.address, nbytes)
        return region

    def free_region(self, region_id: int) -> None:
        del self.live[region_id]
        self.freed.append(region_id)


def arena_of(capacity: Any = None, is_passed: Any = None, **settings: Any) -> Any:
    """An arena named 't' over a fresh `FakeSource`, and the source."""
    source = FakeSource(capacity)
    return BfcArena(source, ArenaConfig(**settings), name="t", is_passed=is_passed), source
