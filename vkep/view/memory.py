"""The buffers of a plan's slab and their lifetimes."""

from __future__ import annotations

from dataclasses import dataclass

from vkep.plan.records import Plan, Range, Space


@dataclass
class SlabBuffer:
    """Bytes of a slab that hold one result, from the dispatch that writes it to the last one that reads it."""

    offset: int
    nbytes: int
    first: int
    last: int
    label: str  #: the nodes of the dispatch that writes it

    @property
    def end(self) -> int:
        """The first byte after it."""
        return self.offset + self.nbytes


def slab_buffers(plan: Plan) -> list[SlabBuffer]:
    """The buffers of a plan's slab, from the ranges that its dispatches read and write, in the order of their first
    write.

    A range that a dispatch writes without reading it is a new buffer, and ends those that it overlaps.
    """
    found: list[SlabBuffer] = []
    alive: list[SlabBuffer] = []
    for index, dispatch in enumerate(plan.dispatches):
        reads = [r for r in dispatch.reads if r.space is Space.ACTIVATION]
        for buffer in alive:
            if any(_overlap(buffer, r) for r in reads):
                buffer.last = index
        for written in dispatch.writes:
            if written.space is not Space.ACTIVATION or written.start >= written.end:
                continue
            same = [b for b in alive if b.offset == written.start and b.end == written.end]
            if same and same[0].last == index:  # in place, or one of several writers
                continue
            alive = [b for b in alive if not _overlap(b, written)]
            made = SlabBuffer(written.start, written.end - written.start, index, index, dispatch.label)
            alive.append(made)
            found.append(made)
    return found


def _overlap(buffer: SlabBuffer, r: Range) -> bool:
    return max(buffer.offset, r.start) < min(buffer.end, r.end)
