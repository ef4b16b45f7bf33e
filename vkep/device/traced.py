"""When the dispatches of a plan begin and end on the GPU, on the host's clock.

A GPU counts ticks from an arbitrary moment. `ClockSync` relates the two clocks: it submits a command buffer that only
writes a timestamp, between two readings of the host's clock. Of several such submits the shortest is used: its middle
is the moment of the tick, and half its length is the uncertainty.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpu_shared.commands import QueryPool
from vkep.plan.records import Plan

if TYPE_CHECKING:
    from vkep.device.delegate import VulkanDelegate

_ROUNDS = 8


@dataclass(frozen=True)
class ClockSync:
    """A tick of the GPU and the value of `time.perf_counter_ns` at that moment, plus or minus ``uncertainty_ns``."""

    tick: int
    host_ns: float
    uncertainty_ns: float

    @classmethod
    def of(cls, delegate: VulkanDelegate) -> ClockSync:
        """Measure: some empty submits. Raises ``ValueError`` where the queue has no timestamps, `GpuError`."""
        lease, best = delegate.lease, cls(0, 0.0, float("inf"))
        with QueryPool(delegate.context.device, 1, label="clock") as queries:
            with delegate.lock:
                commands = delegate.allocate_commands("clock")
                commands.begin()
                commands.reset_query_pool(queries)
                commands.write_timestamp(queries, 0)
                commands.end()
            with commands:
                prepared = lease.prepare([commands])
                for _ in range(_ROUNDS):
                    start = time.perf_counter_ns()
                    lease.wait(lease.submit(prepared))
                    end = time.perf_counter_ns()
                    ticks = queries.results()
                    if (end - start) / 2 < best.uncertainty_ns:
                        best = cls(ticks[0], (start + end) / 2, (end - start) / 2)
        return best

    def host(self, queries: QueryPool, tick: int) -> float:
        """The moment on the host's clock, in nanoseconds, of a later tick."""
        return self.host_ns + queries.nanoseconds(self.tick, tick)


@dataclass(frozen=True)
class PlanTrace:
    """One run of a plan; all times in nanoseconds of `time.perf_counter_ns`."""

    spans: Sequence[tuple[str, int, int]]  #: the host's work: (name, start, end)
    dispatches: Sequence[tuple[float, float]]  #: start and end on the GPU, in plan order


def stamps(plan: Plan, serial: bool) -> list[tuple[int, int]]:
    """For each dispatch the numbers of the timestamps at its begin and its end.

    Dispatches without a barrier between them may overlap, so they share one begin. ``serial``: each waits for the
    previous one, and begins where that ended.
    """
    found: list[tuple[int, int]] = []
    begin = following = 0
    for index, dispatch in enumerate(plan.dispatches):
        if serial and index:
            begin = following - 1
        elif dispatch.barrier or not index:
            begin, following = following, following + 1
        found.append((begin, following))
        following += 1
    return found


def on_host_clock(clock: ClockSync, queries: QueryPool, found: Sequence[tuple[int, int]]) -> list[tuple[float, float]]:
    """Begin and end of each dispatch on the host's clock."""
    ticks = queries.results()
    return [(clock.host(queries, ticks[a]), clock.host(queries, ticks[b])) for a, b in found]
