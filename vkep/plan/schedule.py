"""The order of a plan's dispatches: dispatches that do not depend on each other run concurrently, between two barriers.

At every barrier the device runs empty once, and a small dispatch does not fill it: the fewer groups, the better.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Access:
    """Bytes ``start`` to ``end`` of a memory object that a dispatch reads or writes."""

    memory: Hashable
    start: int
    end: int
    writes: bool


#: live bytes that are always acceptable for the sake of fewer groups, since every device has them
FREE_BYTES = 16 << 20
#: number of dispatches to look ahead for members of a group, tried in this order (None: all of them)
_WINDOWS = (None, 32, 8)


def schedule(accesses: Sequence[Sequence[Access]], peak: Callable[[Sequence[int]], int]) -> list[int]:
    """The group of each dispatch, from the accesses of each in program order. A group waits for the groups before it.

    Dispatches join the earliest group that they can (list scheduling), as long as that makes fewer groups and ``peak``
    (the bytes alive at once, for given groups) stays below `FREE_BYTES` or what sequential dispatches need; else the
    window is reduced, then not used, and at last each dispatch is a group.
    """
    before = _predecessors(accesses)
    if not before:
        return []
    alone = list(range(len(before)))
    bound = max(peak(alone), FREE_BYTES)
    in_order = _in_order(before)
    for window in _WINDOWS:
        groups = _ahead(before, window)
        if max(groups) == in_order[-1]:  # a smaller window finds no fewer groups
            break
        if peak(groups) <= bound:
            return groups
    return in_order if peak(in_order) <= bound else alone


def _predecessors(accesses: Sequence[Sequence[Access]]) -> list[set[int]]:
    """The dispatches that each one must wait for (Vulkan specification, "Synchronization": hazards RAW, WAW and
    WAR)."""
    seen: dict[Hashable, _Seen] = {}
    before: list[set[int]] = []
    for index, touched in enumerate(accesses):
        waits: set[int] = set()
        for new in touched:
            if new.memory in seen:
                waits.update(seen[new.memory].conflicts(new))
        for new in touched:
            seen.setdefault(new.memory, _Seen()).add(index, new)
        before.append(waits)
    return before


class _Seen:
    """The accesses to one memory object so far, by their first byte. Accesses that a later write covers are left out: a
    dispatch that must wait for them waits for that write."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._entries: list[tuple[int, Access]] = []
        self._longest = 0

    def conflicts(self, new: Access) -> list[int]:
        """The dispatches that access the same bytes, where at least one of the two writes."""
        first, last = self._near(new)
        return [i for i, old in self._entries[first:last] if (new.writes or old.writes) and new.start < old.end]

    def add(self, index: int, new: Access) -> None:
        if new.writes:
            first, last = self._near(new)
            near = self._entries[first:last]
            kept = [(i, old) for i, old in near if old.start < new.start or new.end < old.end]
            self._entries[first:last] = kept
            self._starts[first:last] = [old.start for _, old in kept]
        at = bisect_left(self._starts, new.start)
        self._starts.insert(at, new.start)
        self._entries.insert(at, (index, new))
        self._longest = max(self._longest, new.end - new.start)

    def _near(self, new: Access) -> tuple[int, int]:
        """The range of indices of all accesses that may share a byte with ``new``."""
        return bisect_left(self._starts, new.start - self._longest), bisect_left(self._starts, new.end)


def _in_order(before: Sequence[set[int]]) -> list[int]:
    """A new group begins with each dispatch that must wait for a member of the latest group."""
    groups: list[int] = []
    group = first = 0
    for index, waits in enumerate(before):
        if any(other >= first for other in waits):
            group, first = group + 1, index
        groups.append(group)
    return groups


def _ahead(before: Sequence[set[int]], window: int | None) -> list[int]:
    """Every dispatch in the earliest possible group, looking at most ``window`` dispatches ahead."""
    groups = [0] * len(before)
    if window is None:
        for index, waits in enumerate(before):
            groups[index] = max([groups[other] + 1 for other in waits], default=0)
        return groups
    left = list(range(len(before)))
    waiting: set[int] = set(left)
    group = 0
    while left:
        ready = [index for index in left[:window] if waiting.isdisjoint(before[index])]
        for index in ready:
            groups[index] = group
        waiting.difference_update(ready)
        left = [index for index in left if index in waiting]
        group += 1
    return groups
