"""Rooms: the memory for temporary buffers of the runs that may overlap, shared by all plans of a session.

A run has one room while it is recorded, sent off and read. All plans that run there use one slab, as large as the largest of them
needs; what runs on the GPU in turn may use it in turn, for each recording waits for what touched memory before.
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
    """A slab, and the recordings that use it, by their runner. A run holds the lock: in a ``with`` statement it is freed in one
    step of the interpreter, which no exception skips.
    """

    __slots__ = ("lock", "recorded", "slab")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.recorded: dict[int, RecordedPlan] = {}
        self.slab: Slab | None = None

    def slab_of(self, nbytes: int, delegate: VulkanDelegate) -> Slab:
        """A slab of so many bytes. Where it grows, the recordings are closed: they have the address of the old one."""
        if self.slab is None or self.slab.size < nbytes:
            self.close()
            self.slab = Slab(nbytes, delegate.piece, delegate)
        return self.slab

    def drop(self, runner: int) -> None:
        """Close a runner's recording, once the GPU is done with it; the slab goes with the last one."""
        recorded = self.recorded.get(runner)
        if recorded is not None:
            recorded.close()  # it stays where that fails, to be closed again
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
    """As many rooms as runs may overlap."""

    def __init__(self, count: int) -> None:
        self._rooms = [Room() for _ in range(count)]
        self._turns = itertools.count()

    def __iter__(self) -> Iterator[Room]:
        return iter(self._rooms)

    def free(self) -> Room:
        """A room that no run is in; where all are taken, each in turn, whose lock is to be waited for."""
        for room in self._rooms:
            if not room.lock.locked():
                return room
        return self._rooms[next(self._turns) % len(self._rooms)]
