"""Where barriers go: before a dispatch that touches what a dispatch since the last barrier wrote or read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from vkep.plan.records import Range, Space

_CONSTANT = Space.CONSTANT  # an enumeration's attribute is slow to get


class HazardTracker:
    """Remembers the ranges touched since the last barrier (Vulkan spec, "Synchronization", hazards RAW, WAW, WAR)."""

    def __init__(self) -> None:
        self._reads: dict[tuple[Space, int], list[Range]] = {}
        self._writes: dict[tuple[Space, int], list[Range]] = {}

    def needs_barrier(self, reads: Sequence[Range], writes: Sequence[Range]) -> bool:
        """Whether a dispatch must wait; records its ranges (starting afresh when it must)."""
        hazard = _touches(self._writes, reads) or _touches(self._writes, writes) or _touches(self._reads, writes)
        if hazard:
            self._reads.clear()
            self._writes.clear()
        for ranges, seen in ((reads, self._reads), (writes, self._writes)):
            for r in ranges:
                if r.space is not _CONSTANT:
                    seen.setdefault((r.space, r.index), []).append(r)
        return hazard


def _touches(seen: dict[tuple[Space, int], list[Range]], ranges: Iterable[Range]) -> bool:
    for r in ranges:
        if r.space is not _CONSTANT:  # constants are never written
            for other in seen.get((r.space, r.index), ()):
                if r.overlaps(other):
                    return True
    return False
