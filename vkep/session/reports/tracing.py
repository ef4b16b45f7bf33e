"""Runs with the times of their parts: the host's steps and the GPU's dispatches, on one clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vkep.device.traced import ClockSync
from vkep.session.execution.control import ControlExecutor
from vkep.session.execution.cpu import CpuRunner
from vkep.session.execution.executor import Executable, IslandExecutor, StepExecutor, Targets, Values
from vkep.session.execution.kompute import KpRunner
from vkep.session.execution.submit_batch import Region, SubmitBatch
from vkep.session.execution.vgf import VgfExecutor
from vkep.session.planning.planned_graph import DeferredExecutor

if TYPE_CHECKING:
    from vkep.device.delegate import VulkanDelegate


@dataclass(frozen=True)
class HostSpan:
    """A span of the host, in nanoseconds of `time.perf_counter_ns`. ``depth``: 0 the run, 1 its steps, 2 and more their
    parts."""

    name: str
    start: float
    end: float
    depth: int


@dataclass(frozen=True)
class GpuSpan:
    """A span of the GPU, on the host's clock: a dispatch of an island's plan, or a whole region of another delegate."""

    name: str
    start: float
    end: float
    island: int = -1  #: position among the islands of the runs, in order
    dispatch: int = -1
    region: int = -1  #: position among the regions of other delegates, in order


@dataclass
class RunTrace:
    """One run. ``uncertainty_ns``: the error of the GPU's times on the host's clock, the same for all."""

    start: float = 0.0
    end: float = 0.0
    host: list[HostSpan] = field(default_factory=list)
    gpu: list[GpuSpan] = field(default_factory=list)
    uncertainty_ns: float = 0.0


class Tracer:
    """Runs the steps of an executable one after the other, as a `vkep.session.execution.executor.Watch`, and records their
    times."""

    def __init__(
        self, delegate: VulkanDelegate, islands: list[IslandExecutor], others: Sequence[VgfExecutor | KpRunner] = ()
    ) -> None:
        self._delegate, self._others = delegate, others
        self.clock = ClockSync.of(delegate)
        self.run = RunTrace(uncertainty_ns=self.clock.uncertainty_ns)
        self.values: Values = {}  #: all values that passed between the steps
        self.islands = islands  #: the islands that ran, in order
        self._depth = 1

    def __call__(self, step: StepExecutor, values: Values, targets: Targets) -> None:
        """Run one step and record its times."""
        title, run = self._way(step)
        self.span(title, lambda: run(step, values, targets))
        self.values.update(values)

    def _way(self, step: Any) -> tuple[str, Callable[[Any, Values, Targets], None]]:
        if isinstance(step, IslandExecutor):
            return step.title, self._island
        if isinstance(step, SubmitBatch):
            return f"{len(step.regions)} regions in one submit", self._batch
        if isinstance(step, DeferredExecutor):
            return "deferred part", self._inner
        if isinstance(step, CpuRunner):
            return f"cpu: {', '.join(n.op_type for n in step.step.nodes)}", _as_is
        if isinstance(step, ControlExecutor):
            return f"{step.node.op_type} {step.node.name!r}", self._inner
        if isinstance(step, VgfExecutor):
            return step.title, self._graph
        if isinstance(step, KpRunner):
            return f"kompute: {', '.join(n.op_type for n in step.step.nodes)}", self._kompute
        return type(step).__name__, _as_is

    def _island(self, step: IslandExecutor, values: Values, targets: Targets) -> None:
        trace = step.trace(values, targets, self.clock)
        self.run.host += [HostSpan(name, start, end, self._depth) for name, start, end in trace.spans]
        self._add_dispatches(step, trace.dispatches)

    def _add_dispatches(self, step: IslandExecutor, spans: Sequence[tuple[float, float]]) -> None:
        number = self._number(step)
        self.run.gpu += [
            GpuSpan(dispatch.label, start, end, number, index)
            for index, (dispatch, (start, end)) in enumerate(zip(step.plan.dispatches, spans, strict=True))
        ]

    def _number(self, step: IslandExecutor) -> int:
        """The island's index; one that was planned during the run is last. Islands of one plan for several sizes are
        one."""
        found = next((k for k, island in enumerate(self.islands) if island.runner is step.runner), None)
        if found is None:
            self.islands.append(step)
        return len(self.islands) - 1 if found is None else found

    def _batch(self, step: SubmitBatch, values: Values, targets: Targets) -> None:
        for region, span in zip(step.regions, step.trace(values, targets, self.clock), strict=True):
            if isinstance(region, IslandExecutor):
                self._add_dispatches(region, span.dispatches)
            else:
                self.run.gpu.append(GpuSpan(region.title, span.start, span.end, region=self._position(region)))

    def _graph(self, step: VgfExecutor, values: Values, targets: Targets) -> None:
        self.alone(step, values, targets, self._position(step))

    def _position(self, region: Region) -> int:
        """Among the regions of other delegates; -1 for one that was planned during the run."""
        return next((k for k, other in enumerate(self._others) if other is region), -1)

    def alone(self, region: Region, values: Values, targets: Targets, number: int) -> None:
        """Run a region of another delegate in a submit of its own; ``number``: its position among them."""
        batch = SubmitBatch(self._delegate, [region])
        try:
            [span] = batch.trace(values, targets, self.clock)
        finally:
            batch.release()
        self.run.gpu.append(GpuSpan(region.title, span.start, span.end, region=number))

    def _kompute(self, step: KpRunner, values: Values, targets: Targets) -> None:
        step.run(values, targets)
        end = float(time.perf_counter_ns())
        for name, ns in zip(("copy back", "kp runs", "copy to kp"), reversed(step.timing), strict=True):
            self.run.host.append(HostSpan(name, end - ns, end, self._depth))
            end -= ns

    def _inner(self, step: DeferredExecutor | ControlExecutor, values: Values, targets: Targets) -> None:
        step.run(values, targets, self)

    def span(self, name: str, run: Callable[[], Any]) -> Any:
        """Call something as a step of the run; returns its result."""
        start = time.perf_counter_ns()
        self._depth += 1
        try:
            return run()
        finally:
            self._depth -= 1
            self.run.host.append(HostSpan(name, start, time.perf_counter_ns(), self._depth))

    def whole(self, run: Callable[[], Any]) -> RunTrace:
        """Call something as the whole run; returns its trace."""
        self.run.start = time.perf_counter_ns()
        run()
        self.run.end = time.perf_counter_ns()
        self.run.host.append(HostSpan("run", self.run.start, self.run.end, 0))
        return self.run


def _as_is(step: StepExecutor, values: Values, targets: Targets) -> None:
    step.run(values, targets)


def trace_run(
    executable: Executable,
    delegate: VulkanDelegate,
    islands: list[IslandExecutor],
    values: Values,
    others: Sequence[VgfExecutor | KpRunner] = (),
) -> tuple[RunTrace, Values]:
    """Run once; returns its trace and every value of its steps. Raises as `Executable.run`, and ``ValueError`` where
    the queue has no timestamps."""
    tracer = Tracer(delegate, islands, others)
    trace = tracer.whole(lambda: executable.run(values, {}, tracer))
    return trace, {**tracer.values, **values}


def region_times(executable: Executable, values: Values) -> list[tuple[str, float]]:
    """The GPU's nanoseconds in each region that is submitted with others, with its title, in one run."""
    times: list[tuple[str, float]] = []

    def watch(step: StepExecutor, values: Values, targets: Targets) -> None:
        if not isinstance(step, SubmitBatch):
            step.run(values, targets)
            return
        spans = step.trace(values, targets)
        times.extend((region.title, s.end - s.start) for region, s in zip(step.regions, spans, strict=True))

    executable.run(values, {}, watch)
    return times
