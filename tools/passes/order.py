"""Checks the order and the memory of a plan's dispatches: each must read what it reads where they run one after the other and
each buffer has memory of its own."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from vkep.ir.tensor import Storage
from vkep.kernels.kernel import KernelCall
from vkep.plan.schedule import Access
from vkep.sizes import hint

#: bytes of temporary buffers from which a plan is not checked: each byte has the number of its last writer
LARGEST = 1 << 26
_NOBODY = -1


class _Writers:
    """The number of the last dispatch that wrote each byte of a memory."""

    def __init__(self) -> None:
        self._last: dict[Hashable, np.ndarray] = {}

    def of(self, memory: Hashable, start: int, end: int) -> np.ndarray:
        """A view of the numbers of a range."""
        known = self._last.get(memory, np.empty(0, np.int32))
        if known.size < end:
            grown = np.full(max(end, 2 * known.size), _NOBODY, np.int32)
            grown[: known.size] = known
            self._last[memory] = known = grown
        return known[start:end]


def misordered(
    labels: Sequence[str], accesses: Sequence[Sequence[Access]], groups: Sequence[int], offsets: Mapping[Storage, int]
) -> str:
    """What a dispatch reads that another one than in program order has written, or what two dispatches of a group access in no
    order; "" where the plan is in order. ``accesses`` and ``groups`` of each dispatch in program order; ``offsets`` of temporary
    buffers."""
    alone, together = _Writers(), _Writers()
    wanted: list[list[np.ndarray]] = []
    for number, touched in enumerate(accesses):
        wanted.append([alone.of(a.memory, a.start, a.end).copy() for a in touched if not a.writes])
        for a in touched:
            if a.writes:
                alone.of(a.memory, a.start, a.end)[:] = number
    order = sorted(range(len(accesses)), key=groups.__getitem__)
    placed = [[_placed(a, offsets) for a in touched] for touched in accesses]
    for number in order:
        reads = [a for a in placed[number] if not a.writes]
        for read, writers in zip(reads, wanted[number], strict=True):
            found = together.of(read.memory, read.start, read.end)
            wrong = np.flatnonzero((found != writers) & (writers != _NOBODY))
            if wrong.size:
                was, now = writers[wrong[0]], found[wrong[0]]
                other = "nothing" if now == _NOBODY else labels[now]
                return f"{labels[number]} reads what {other} wrote, instead of {labels[was]}"
        for a in placed[number]:
            if a.writes:
                together.of(a.memory, a.start, a.end)[:] = number
    for number, (touched, at) in enumerate(zip(accesses, placed, strict=True)):
        for (a, x), (b, y) in itertools.combinations(zip(touched, at, strict=True), 2):
            if a.memory != b.memory and _conflict(x, y):
                return f"{labels[number]} has two buffers at bytes {x.start} to {x.end}"
    return _concurrent(labels, placed, groups)


def _placed(access: Access, offsets: Mapping[Storage, int]) -> Access:
    memory = access.memory
    if not isinstance(memory, Storage):
        return access
    base = offsets[memory]
    return Access("slab", base + access.start, base + access.end, access.writes)


def _concurrent(labels: Sequence[str], placed: Sequence[Sequence[Access]], groups: Sequence[int]) -> str:
    by_group: dict[int, list[int]] = {}
    for number, group in enumerate(groups):
        for other in by_group.setdefault(group, []):
            for a in placed[number]:
                for b in placed[other]:
                    if _conflict(a, b):
                        return f"{labels[other]} and {labels[number]} access bytes {a.start} to {a.end} in no order"
        by_group[group].append(number)
    return ""


def _conflict(a: Access, b: Access) -> bool:
    return (a.writes or b.writes) and a.memory == b.memory and max(a.start, b.start) < min(a.end, b.end)


def checked_size(calls: Sequence[tuple[KernelCall, str]]) -> bool:
    """Whether the temporary buffers of calls are small enough to check their order."""
    buffers = {t.storage for call, _ in calls for _, t in call.operands if t is not None and t.storage.weight is None}
    return sum(int(hint(s.nbytes)) for s in buffers) < LARGEST
