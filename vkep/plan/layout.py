"""Where the temporary buffers of a plan with sizes lie, for the largest sizes that runs had so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vkep.plan.memory import Lifetime, live_peak, place
from vkep.plan.sized import PlanSizes

#: by how much buffers that grow may grow further before they are placed anew, tried in this order
_ROOM = (2.0, 1.5, 1.25, 1.1, 1.05)
#: the live bytes of a layout may be this many times what its sizes need
_MOST_SLACK = 1.1


@dataclass(frozen=True)
class Layout:
    """Offsets of the buffers in one slab, and the bytes that each has room for."""

    room: tuple[int, ...]
    offsets: tuple[int, ...]
    nbytes: int

    def fits(self, needed: Sequence[int]) -> bool:
        """Whether buffers of these sizes lie within their room."""
        return all(need <= room for need, room in zip(needed, self.room, strict=True))


def laid_out(sizes: PlanSizes, values: Sequence[int], before: Layout | None = None, piece: int | None = None) -> Layout:
    """A layout for these values of `PlanSizes.values`, and for what ``before`` had room for.

    Buffers that outgrew their room get more than they need, as sizes that grow once grow again; the most that is alive at once
    stays within 1.1 of what is needed. ``piece``: as for `place`.
    """
    lifetimes = sizes.lifetimes(values)
    if before is not None:
        lifetimes = [
            Lifetime(max(b.nbytes, room), b.first, b.last) for b, room in zip(lifetimes, before.room, strict=True)
        ]
        needed = live_peak(lifetimes)
        for factor in _ROOM:
            wider = [
                Lifetime(int(b.nbytes * factor) if b.nbytes > room else b.nbytes, b.first, b.last)
                for b, room in zip(lifetimes, before.room, strict=True)
            ]
            if live_peak(wider) <= _MOST_SLACK * needed:
                lifetimes = wider
                break
    offsets, total = place(lifetimes, piece)
    return Layout(tuple([b.nbytes for b in lifetimes]), tuple(offsets), total)
