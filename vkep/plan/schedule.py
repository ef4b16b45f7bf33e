"""The order of a plan's dispatches: what does not wait for each other runs side by side, between two barriers.

Every barrier lets the device run empty once, and a small dispatch does not fill it: the fewer groups, the better.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Access:
    """Bytes ``start`` to ``end`` of a piece of memory that a dispatch reads or writes."""

    memory: Hashable
    start: int
    end: int
    writes: bool


#: bytes that no device is short of: so much may be alive at once for the sake of fewer groups
FREE_BYTES = 16 << 20
#: how many dispatches ahead are looked at for what may join a group, tried in this order (None: all of them)
_WINDOWS = (None, 32, 8)


def schedule(accesses: Sequence[Sequence[Access]], peak: Callable[[Sequence[int]], int]) -> list[int]:
    """The group of each dispatch, from what each touches in the order of the program. A group waits for those before it.

    Dispatches join the earliest group that they can (list scheduling), as long as that makes fewer groups and ``peak``
    (the bytes alive at once, for given groups) does not grow beyond `FREE_BYTES`; else fewer are looked at ahead, and at
    last none.
    """
    before = _predecessors(accesses)
    in_order = _in_order(before)
    if not in_order or max(_ahead(before, None)) == in_order[-1]:
        return in_order
    bound = max(peak(in_order), FREE_BYTES)
    for window in _WINDOWS:
        groups = _ahead(before, window)
        if max(groups) < in_order[-1] and peak(groups) <= bound:
            return groups
    return in_order


def _predecessors(accesses: Sequence[Sequence[Access]]) -> list[set[int]]:
    """Whom each dispatch must wait for (Vulkan specification, "Synchronization": hazards RAW, WAW and WAR)."""
    seen: dict[Hashable, list[tuple[int, Access]]] = {}
    before: list[set[int]] = []
    for index, touched in enumerate(accesses):
        waits = set()
        for new in touched:
            for other, old in seen.get(new.memory, ()):
                if (new.writes or old.writes) and new.start < old.end and old.start < new.end:
                    waits.add(other)
        for new in touched:
            seen.setdefault(new.memory, []).append((index, new))
        before.append(waits)
    return before


def _in_order(before: Sequence[set[int]]) -> list[int]:
    """A new group begins with each dispatch that must wait for one of the last group."""
    groups: list[int] = []
    group = first = 0
    for index, waits in enumerate(before):
        if any(other >= first for other in waits):
            group, first = group + 1, index
        groups.append(group)
    return groups


def _ahead(before: Sequence[set[int]], window: int | None) -> list[int]:
    """Every dispatch in the earliest group, of those that look ``window`` dispatches ahead."""
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
