"""Consecutive regions on the device in one submit.

Every recording begins and ends with a barrier against its surroundings, so that the regions of one submit need no
semaphore between them; the timeline orders the submit after those of other delegates and sessions. The sync mode
``queue_wait_idle`` waits on the host at each boundary: each region is then submitted separately.
"""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from gpu_shared.commands import CommandBuffer, QueryPool
from gpu_shared.timeline import PreparedSubmit
from vkep.device.tensor import DeviceTensor
from vkep.device.traced import ClockSync

if TYPE_CHECKING:
    from gpu_shared.lease import DelegateLease
    from vkep.device.delegate import VulkanDelegate

#: number of submits that are kept, one for each set of recordings
_SUBMITS = 16
#: begin and end of each dispatch, in nanoseconds of a clock of the host
ReadSpans = Callable[[ClockSync], list[tuple[float, float]]]
Targets = Mapping[str, DeviceTensor | np.ndarray[Any, Any] | None]


class Staged:
    """A staged region. ``submitted`` is called with the timeline value; ``collect`` is called once the GPU has
    finished, if results are copied to the host (``on_host``). ``stamped`` gives the same command buffers with
    timestamps around the dispatches, and a function that reads when these began and ended."""

    def __init__(
        self,
        lease: DelegateLease,
        buffers: Sequence[CommandBuffer],
        submitted: Callable[[int], None],
        collect: Callable[[], None] | None = None,
        stamped: Callable[[], tuple[Sequence[CommandBuffer], ReadSpans]] | None = None,
    ) -> None:
        self.lease, self.buffers, self.submitted, self.collect = lease, buffers, submitted, collect
        self.stamped = stamped


@dataclass(frozen=True)
class RegionSpan:
    """When a region of a submit ran on the GPU, in nanoseconds, and each dispatch within it, where they are timed."""

    start: float
    end: float
    dispatches: Sequence[tuple[float, float]]


class Region(Protocol):
    """A step that runs on the shared device."""

    @property
    def title(self) -> str:
        """For profiles: the delegate, and its nodes."""

    def stage(self, values: dict[str, Any], targets: Targets, locks: ExitStack, held: ExitStack) -> Staged:
        """Prepare a run. ``locks`` receives the locks to hold until the submit, ``held`` those to hold until the run's
        end. Results on the device are in ``values`` on return, the rest after ``collect``."""

    def close(self) -> None:
        """Free the region's resources."""


class SubmitBatch:
    """Consecutive regions of a program. Thread-safe, as the regions are."""

    def __init__(self, delegate: VulkanDelegate, regions: Sequence[Region]) -> None:
        self.regions = tuple(regions)
        self._delegate = delegate
        self._submits: OrderedDict[tuple[int, ...], PreparedSubmit] = OrderedDict()
        self._lock = threading.Lock()
        self._stamps: _Stamps | None = None

    def run(self, values: dict[str, Any], targets: Targets) -> None:
        """Submit all regions at once; waits only where results are copied to the host."""
        with ExitStack() as held, ExitStack() as locks:
            staged = [region.stage(values, targets, locks, held) for region in self.regions]
            buffers = [buffer for one in staged for buffer in one.buffers]
            self._finish(staged, self._prepared(buffers), locks)

    def trace(self, values: dict[str, Any], targets: Targets, clock: ClockSync | None = None) -> list[RegionSpan]:
        """`run`, with a timestamp between the regions, and around the dispatches in them where there is a ``clock``. Begin
        and end of each are in nanoseconds of ``clock`` (None: since the first began). One thread at a time. Raises
        ``ValueError`` where the queue has no timestamps.
        """
        stamps = self._stamps = self._stamps or _Stamps(self._delegate, len(self.regions) + 1)
        read: list[ReadSpans | None] = []
        with ExitStack() as held, ExitStack() as locks:
            staged = [region.stage(values, targets, locks, held) for region in self.regions]
            buffers = [stamps.buffers[0]]
            for one, stamp in zip(staged, stamps.buffers[1:], strict=True):
                own, spans = one.stamped() if clock is not None and one.stamped is not None else (one.buffers, None)
                read.append(spans)
                buffers += [*own, stamp]
            self._delegate.lease.wait(self._finish(staged, self._prepared(buffers), locks))
        times = stamps.times(clock)
        return [
            RegionSpan(start, end, spans(clock) if spans is not None and clock is not None else [])
            for (start, end), spans in zip(times, read, strict=True)
        ]

    def _finish(self, staged: Sequence[Staged], prepared: PreparedSubmit, locks: ExitStack) -> int:
        lease = self._delegate.lease
        value = lease.submit(prepared)
        for one in staged:
            one.submitted(value)
            if one.lease is not lease:
                one.lease.joined(value)
        locks.close()
        collects = [one.collect for one in staged if one.collect is not None]
        if collects:
            lease.wait(value)
            for collect in collects:
                collect()
        return value

    def _prepared(self, buffers: Sequence[CommandBuffer]) -> PreparedSubmit:
        key = tuple(map(id, buffers))  # an entry keeps its command buffers alive, and so their ids unique
        with self._lock:
            prepared = self._submits.get(key)
            if prepared is None:
                while len(self._submits) >= _SUBMITS:
                    self._submits.popitem(last=False)
                prepared = self._submits[key] = PreparedSubmit(self._delegate.context.timeline, buffers)
            self._submits.move_to_end(key)
        return prepared

    def release(self) -> None:
        """Free what the batch itself holds; its regions stay open. Runs must have ended."""
        self._submits.clear()
        stamps, self._stamps = self._stamps, None
        if stamps is not None:
            stamps.close()

    def close(self) -> None:
        """Close the regions and the timestamps. Runs must have ended."""
        self.release()
        for region in self.regions:
            region.close()


class _Stamps:
    """Command buffers that each write a timestamp; the first one resets them."""

    def __init__(self, delegate: VulkanDelegate, count: int) -> None:
        self._queries = QueryPool(delegate.context.device, count)
        self.buffers: list[CommandBuffer] = []
        with delegate.lock:
            for index in range(count):
                commands = delegate.allocate_commands("region timestamp")
                commands.begin()
                if index == 0:
                    commands.reset_query_pool(self._queries)
                commands.write_timestamp(self._queries, index)
                self.buffers.append(commands.end())

    def times(self, clock: ClockSync | None) -> list[tuple[float, float]]:
        """See `SubmitBatch.trace`; the run must have ended."""
        ticks = self._queries.results()
        clock = clock or ClockSync(ticks[0], 0.0, 0.0)
        return list(itertools.pairwise([clock.host(self._queries, tick) for tick in ticks]))

    def close(self) -> None:
        for commands in self.buffers:
            commands.close()
        self._queries.close()
