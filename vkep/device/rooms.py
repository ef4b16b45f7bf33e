"""Rooms: the memory for temporary buffers of overlapping runs, shared by all plans of a session.

A run occupies one room while it is recorded, submitted and read. All plans that run in a room use one slab, as large as
the largest of them needs. Submits that follow one another on the GPU may reuse it, since each recording waits for all
earlier accesses to memory.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from vkep.device.slab import Slab

if TYPE_CHECKING:
    from vkep.device.delegate import VulkanDelegate
    from vkep.device.recorded import RecordedPlan


class Room:
    """A slab, and the recordings that use it, by their runner. A run holds the lock through a ``with`` statement, so
    that no exception leaves it locked."""

    __slots__ = ("lock", "recorded", "slab")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.recorded: dict[int, RecordedPlan] = {}
        self.slab: Slab | None = None

    @property
    def busy(self) -> bool:
        """Whether the device may still execute a run that was submitted in this room."""
        return any(not recorded.ended for recorded in list(self.recorded.values()))

    def slab_of(self, nbytes: int, delegate: VulkanDelegate) -> Slab:
        """Return a slab of at least this many bytes. Where it grows, the recordings are closed: they contain the
        address of the old one."""
        if self.slab is None or self.slab.size < nbytes:
            self.close()
            self.slab = Slab(nbytes, delegate.piece, delegate)
        return self.slab

    def drop(self, runner: int) -> None:
        """Close a runner's recording, once the GPU has finished with it; the slab is freed with the last one."""
        recorded = self.recorded.get(runner)
        if recorded is not None:
            recorded.close()  # it stays in the table if this raises, and is closed again later
            del self.recorded[runner]
        if not self.recorded:
            self.close()

    def close(self) -> None:
        """Close all recordings and free the slab."""
        for runner, recorded in list(self.recorded.items()):
            recorded.close()
            del self.recorded[runner]
        slab, self.slab = self.slab, None
        if slab is not None:
            slab.free()


class Rooms:
    """As many rooms as runs may overlap. ``most_bytes``: of device memory that a plan and one run of it may take (None: all that
    the device has). ``run_ahead``: a run takes a room whose last run the device has finished, where there is one.
    """

    def __init__(self, count: int, most_bytes: int | None = None, *, run_ahead: bool = False) -> None:
        self.most_bytes = most_bytes
        self._run_ahead = run_ahead
        self._rooms = [Room() for _ in range(count)]
        self._turns = itertools.count()

    def __iter__(self) -> Iterator[Room]:
        return iter(self._rooms)

    def free(self) -> Room:
        """Return a room without a run; where all are occupied, the next one in turn, whose lock the caller waits
        for."""
        first = None
        for room in self._rooms:
            if not room.lock.locked():
                if not self._run_ahead or not room.busy:
                    return room
                first = first or room
        return first or self._rooms[next(self._turns) % len(self._rooms)]
