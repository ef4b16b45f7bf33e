"""Places for a plan's temporary buffers: lifetimes to offsets in one slab."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: Offsets are multiples of this: vector loads and every device's storage-offset alignment fit in it.
ALIGNMENT = 256
#: `place` tries again this often, less often for plans of many buffers (a round takes time by their square).
_ROUNDS, _WORK = 40, 4_000_000


@dataclass(frozen=True, slots=True)
class Lifetime:
    """``nbytes`` needed from step ``first`` through step ``last``."""

    nbytes: int
    first: int
    last: int


def align(nbytes: int, alignment: int = ALIGNMENT) -> int:
    return -(-nbytes // alignment) * alignment


def place(lifetimes: Sequence[Lifetime]) -> tuple[list[int], int]:
    """Offsets that never overlap while alive, and the slab's size.

    Greedy by size: the largest first, each in the tightest gap among the placed buffers that live at the same time
    (Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020, "greedy by size"). Where that
    is above the bound of `live_peak`, the buffers that reach the slab's end go first and all are placed again, some
    rounds long; the smallest slab wins.
    """
    order = sorted(range(len(lifetimes)), key=lambda i: (-lifetimes[i].nbytes, lifetimes[i].first))
    bound = live_peak(lifetimes)
    offsets, total = _fit(lifetimes, order)
    tried, slab = offsets, total
    for _ in range(min(_ROUNDS, _WORK // max(len(order), 1) ** 2)):
        if total <= bound:
            break
        top = {i for i in order if tried[i] + align(lifetimes[i].nbytes) == slab}
        order.sort(key=lambda i: i not in top)  # stable: the others keep their order
        tried, slab = _fit(lifetimes, order)
        if slab < total:
            offsets, total = tried, slab
    return offsets, total


def _fit(lifetimes: Sequence[Lifetime], order: Sequence[int]) -> tuple[list[int], int]:
    """Place the buffers one by one in the order given."""
    offsets = [0] * len(lifetimes)
    placed: list[int] = []
    total = 0
    for i in order:
        mine = lifetimes[i]
        size = align(mine.nbytes)
        if size == 0:
            continue
        busy = sorted(
            (offsets[j], offsets[j] + align(lifetimes[j].nbytes))
            for j in placed
            if lifetimes[j].first <= mine.last and mine.first <= lifetimes[j].last
        )
        best, best_gap, end = None, None, 0
        for start, stop in busy:
            gap = start - end
            if gap >= size and (best_gap is None or gap < best_gap):
                best, best_gap = end, gap
            end = max(end, stop)
        offsets[i] = end if best is None else best
        placed.append(i)
        total = max(total, offsets[i] + size)
    return offsets, total


def live_peak(lifetimes: Sequence[Lifetime]) -> int:
    """The largest sum of sizes alive at one step: no placement can be smaller."""
    events: dict[int, int] = {}
    for life in lifetimes:
        events[life.first] = events.get(life.first, 0) + align(life.nbytes)
        events[life.last + 1] = events.get(life.last + 1, 0) - align(life.nbytes)
    live = peak = 0
    for step in sorted(events):
        live += events[step]
        peak = max(peak, live)
    return peak
