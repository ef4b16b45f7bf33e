"""Offsets of the temporary buffers of a plan with sizes, for the largest sizes of runs so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vkep.plan.memory import Lifetime, live_peak, pack
from vkep.plan.sized import PlanSizes

#: factors of spare capacity for buffers that grow, tried in this order
_ROOM = (2.0, 1.5, 1.25, 1.1, 1.05)
#: maximum ratio of a layout's live bytes to the bytes that its sizes need, and how many more it may be in any case: for a larger
#: layout the plan is recorded again
_MOST_SLACK, _LEAST_SLACK = 1.1, 4 << 20


@dataclass(frozen=True)
class Layout:
    """Offsets of the buffers in one slab, and the capacity of each."""

    capacity: tuple[int, ...]
    offsets: tuple[int, ...]
    nbytes: int
    #: for each of `PlanSizes.values` that is the size of buffers: the smallest capacity of these
    limits: tuple[tuple[int, int], ...]

    def fits(self, values: Sequence[int]) -> bool:
        """Whether the buffers fit their capacity, for these values of `PlanSizes.values`."""
        return all(values[k] <= most for k, most in self.limits)


def laid_out(sizes: PlanSizes, values: Sequence[int], before: Layout | None = None, piece: int | None = None) -> Layout:
    """A layout for these values of `PlanSizes.values`, and for the capacity of ``before``.

    Buffers that outgrew their capacity get more than they need, since sizes that grow once tend to grow again; the
    maximum of live bytes stays within 1.1 of the need, or 4 MiB. ``piece``: as for `pack`.
    """
    lifetimes = sizes.lifetimes(values)
    if before is not None:
        lifetimes = [
            Lifetime(max(b.nbytes, capacity), b.first, b.last)
            for b, capacity in zip(lifetimes, before.capacity, strict=True)
        ]
        needed = live_peak(lifetimes)
        for factor in _ROOM:
            wider = [
                Lifetime(int(b.nbytes * factor) if b.nbytes > capacity else b.nbytes, b.first, b.last)
                for b, capacity in zip(lifetimes, before.capacity, strict=True)
            ]
            if live_peak(wider) <= max(_MOST_SLACK * needed, needed + _LEAST_SLACK):
                lifetimes = wider
                break
    offsets, total = pack(lifetimes, piece)
    limits: dict[int, int] = {}
    for buffer, life in zip(sizes.buffers, lifetimes, strict=True):
        limits[buffer.nbytes] = min(life.nbytes, limits.get(buffer.nbytes, life.nbytes))
    return Layout(tuple([b.nbytes for b in lifetimes]), tuple(offsets), total, tuple(limits.items()))
