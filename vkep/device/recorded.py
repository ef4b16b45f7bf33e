"""One recorded plan: its memory, its argument table and its command buffers. A run is a submit."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from threading import RLock
from typing import TYPE_CHECKING, Any

import numpy as np

from gpu_shared.commands import CommandBuffer, QueryPool
from gpu_shared.memory import has_direct
from gpu_shared.pipeline import ComputePipeline
from gpu_shared.steady import check_wanted
from vkep.device.arguments import ArgumentTable, Places, RunNumbers, Sent
from vkep.device.bound import Bound
from vkep.device.faults import FAULT_BYTES, FaultWord
from vkep.device.host_ports import Staging
from vkep.device.run_commands import ALONE, INPUTS, OUTPUTS, Buffers, RunCommands
from vkep.device.slab import Slab
from vkep.device.tensor import DeviceTensor, open_checks, refuse_failed
from vkep.device.traced import ClockSync, PlanTrace, on_host_clock, stamps
from vkep.device.uses import Operands
from vkep.memory.device_arena import DeviceBlock
from vkep.memory.host_copy import copy
from vkep.memory.staging_ring import StagingArena, shared_staging_arena
from vkep.plan.layout import Layout

if TYPE_CHECKING:
    from vkep.device.delegate import VulkanDelegate

Array = np.ndarray[Any, Any]

#: submits that the device may have before it when a run repeats the one before
_AHEAD = 64


class RecordedPlan:
    """A plan ready to run, for one run at a time (`PlanRunner` hands them out)."""

    def __init__(
        self,
        delegate: VulkanDelegate,
        places: Places,
        pipelines: Sequence[ComputePipeline],
        constants: Sequence[int],
        slab: Slab,
        layout: Layout | None = None,
    ) -> None:
        """``constants`` are addresses; ``layout`` has the offsets of the buffers of a plan with sizes."""
        self.plan, self.layout = places.plan, layout
        self._places, self._delegate, self._lease = places, delegate, delegate.lease
        self._timeline, self._unified = delegate.context.timeline, delegate.unified
        self._pipelines, self._constants = pipelines, constants
        self._held: list[Any] = []
        self._making = RLock()  # of what a run needs, which may have been interrupted
        self._numbers: RunNumbers | None = None
        self._last = 0  # timeline value of the latest run
        # whether a staged run may have been submitted: an exception came before its timeline value was stored
        self._unsure = False
        self._traced: tuple[CommandBuffer, QueryPool] | None = None
        self._fault: FaultWord | None = None
        self._operands = Operands()
        try:
            self._prepare(slab)
        except BaseException:
            self.close()
            raise

    # ---- making

    def _prepare(self, slab: Slab) -> None:
        delegate, plan = self._delegate, self.plan
        up = down = direct = None
        if not delegate.unified:
            up, down = self._staging("upload"), self._staging("download")
            direct = self._staging("direct") if has_direct(delegate.lease.device) else None
        if plan.faults:
            block = self._hold((down or delegate.arena).alloc(FAULT_BYTES))
            self._fault = FaultWord(block, plan.faults, delegate.lease)
        fault = self._fault.address if self._fault is not None else 0
        self._table = ArgumentTable(delegate, self._places, self._constants, slab, fault, self.layout, up)
        self._held.append(self._table)
        staging = (
            None if up is None else Staging(up, direct),
            None if down is None else Staging(down, None if self._places.reads_outputs else down),
        )
        self._commands = RunCommands(delegate, self._places, self._table, staging, self._record("main"), self._making)
        self._held.append(self._commands)

    def set_sizes(self, numbers: RunNumbers) -> None:
        """Set the sizes of the next run. Raises `DeviceLostError`, `ArenaOutOfMemory`."""
        if numbers is self._numbers:
            return
        self._numbers = None  # until they are set
        with self._making:
            self._wait()
            if self._fault is not None:
                if self._fault.unread:
                    self._fault.settle(ended=True)  # its message contains the sizes of that run
                self._fault.reasons = numbers.faults
            self._table.set(numbers)
        self._commands.set_ports(numbers.ports)
        self._numbers = numbers

    def prepare(self, numbers: RunNumbers | None) -> None:
        """Do what `set_sizes` will need for the sizes of the run that probably follows, while the device works on a run."""
        if numbers is None:
            return
        with self._making:
            self._table.prepare(numbers)
            self._commands.prepare(numbers.ports)

    def _staging(self, kind: str) -> StagingArena:
        shared = shared_staging_arena(self._delegate.lease, kind)
        self._held.append(shared)
        return shared.value

    def _hold(self, block: DeviceBlock) -> DeviceBlock:
        self._held.append(block)
        return block

    def _record(self, label: str, queries: QueryPool | None = None, serial: bool = False) -> CommandBuffer:
        """With ``queries``: timestamps by `stamps`. ``serial``: each dispatch waits for the one before."""
        commands = self._delegate.allocate_commands(f"plan {label}")
        self._held.append(commands)
        commands.begin(simultaneous=True)
        # Runs share one slab: wait for all earlier accesses to memory.
        commands.memory_barrier()
        if queries is not None:
            commands.reset_query_pool(queries)
        written = 0
        for index, (dispatch, (begin, end)) in enumerate(
            zip(self.plan.dispatches, stamps(self.plan, serial), strict=True)
        ):
            if dispatch.barrier or (serial and index):
                commands.memory_barrier()
            if queries is not None and begin == written:
                commands.write_timestamp(queries, begin)
            pipeline = self._pipelines[dispatch.pipeline]
            commands.bind_pipeline(pipeline)
            commands.push_constants(pipeline.layout, self._table.push_data(index))
            self._table.dispatch(commands, index)
            if queries is not None:
                commands.write_timestamp(queries, end)
                written = end + 1
        if self._delegate.unified:
            commands.barrier_to_host()
        commands.end()
        return commands

    # ---- running

    def run(self, bound: Bound, meanwhile: Callable[[], object] | None = None) -> Sequence[Array | DeviceTensor]:
        """Run once; returns the results as `collect`. ``meanwhile`` is called while the device works. Raises
        `InvalidInputError` where the data break an operator's specification (after a run that writes only device
        memory, reading it raises that, or ``bound.checks``), `DeviceLostError`, `GpuError`.
        """
        value = self._lease.submit(self._commands.prepared(self.stage(bound)))
        self.submitted(value, bound)
        if meanwhile is not None:
            meanwhile()
        if bound.down:
            self._lease.wait(value)
        return self.collect(bound)

    def stage(self, bound: Bound) -> Buffers:
        """Prepare a run; returns the key of its command buffers (`buffers`). `submitted` must follow. Raises
        `InvalidInputError` where an input comes from a run that failed, `ArenaOutOfMemory`."""
        if bound.reads or bound.writes:
            refuse_failed(bound.reads, bound.writes)
        addresses, up, down = bound.addresses, bound.up, bound.down
        what: Sent | None = None
        if not (self._unsure or up or down or self._fault is not None) and self._table.has(addresses):
            # the host writes nothing: the run before may be in progress
            if self._last > _AHEAD and not self._timeline.has_passed(self._last - _AHEAD):
                self._lease.wait(self._last - _AHEAD)
        else:
            self._wait()
            with self._making:  # the work of an interrupted run has ended, which may have freed the ports' memory
                pass
            self._fill(bound)
            what = self._table.bind(addresses)
        self._unsure = True  # first: an interrupt may come before all tensors are marked
        self._operands.begin(bound.reads, bound.writes)
        if self._unified:
            return ALONE
        sent = bool(up) and self._commands.host(INPUTS).staging is not None
        fetched = bool(down) and self._commands.host(OUTPUTS).staging is not None
        visible = (bool(down) or self._fault is not None or bound.to_host) and not fetched
        return Buffers(what, sent, fetched, visible) if what or sent or fetched or visible else ALONE

    def _fill(self, bound: Bound) -> None:
        """Copy the arrays among a run's inputs to the host's ports, and enter the addresses of these and of the outputs'."""
        addresses, up, down = bound.addresses, bound.up, bound.down
        if up:
            ports = self._commands.bind(INPUTS, up)
            for k in up:
                given = bound.inputs[k]
                assert not isinstance(given, DeviceTensor)
                copy(ports.views[k], given)
                addresses[k] = ports.addresses[k]
        if down:
            ports, first = self._commands.bind(OUTPUTS, down), self._commands.first_output
            for k in down:
                addresses[first + k] = ports.addresses[k]

    def _wait(self) -> None:
        """Wait until the recording and its memory are free: a run with bound outputs returns before it ends."""
        if self._unsure:
            self._last = self._delegate.context.timeline.submitted
            self._operands.end(self._last)
            if self._fault is not None:
                self._fault.unread = True
        if not self._timeline.has_passed(self._last):
            self._lease.wait(self._last)
        if self._fault is not None and self._fault.unread:
            self._fault.settle(ended=True)
        self._unsure = False

    def submitted(self, value: int, bound: Bound) -> None:
        """Record that the staged run was submitted, and ends at the timeline value."""
        self._last = value
        self._table.sent(bound.addresses)
        checks = open_checks(bound.reads) if bound.reads else []
        if self._fault is not None:
            if len(bound.down) < len(self.plan.ports) - self._commands.first_output:
                checks.append(self._fault.submitted(value))
            else:  # only `collect` uses it
                self._fault.unread = True
        for target in bound.writes:
            # another thread's run may have been submitted later
            if (checks or target.checks) and value > target.uses.written:
                target.checks[:] = checks
        bound.checks = checks
        self._operands.end(value)
        self._unsure = False

    def collect(self, bound: Bound) -> Sequence[Array | DeviceTensor]:
        """The results of a run that has ended: ``bound.outputs``, whose arrays are filled, with new arrays of the plan's shapes
        and dtypes in place of None. Raises `InvalidInputError` as `run`."""
        if not bound.down:
            return bound.writes
        for check in bound.checks:
            check.verify(ended=True)
        if self._fault is not None and self._fault.unread:
            self._fault.verify()
        results: list[Array | DeviceTensor] = []
        host = self._commands.host(OUTPUTS)
        host.arrived()
        for k, target in enumerate(bound.outputs):
            if target is None:
                results.append(host.result(k))
            else:
                if not isinstance(target, DeviceTensor):
                    check_wanted()  # after an interrupt a later run may have filled it
                    copy(target, host.views[k])
                results.append(target)
        return results

    def buffers(self, run: Buffers) -> list[CommandBuffer]:
        """The command buffers of a run that was staged, in order."""
        return self._commands.buffers(run)

    @property
    def last(self) -> int:
        """The timeline value of the latest run."""
        return self._last

    @property
    def ended(self) -> bool:
        """Whether the device is known to have finished the latest run, without a call of the driver."""
        return not self._unsure and self._delegate.context.timeline.has_passed(self._last)

    def profile(self, bound: Bound) -> list[float]:
        """Run, and once more with a timestamp after each dispatch, each waiting for the one before. Returns the nanoseconds of
        each dispatch, in the plan's order."""
        self.run(bound)  # fills inputs and slots
        commands, queries = self._with_stamps(serial=True)
        self._operands.begin(bound.reads, [])
        self._unsure = True
        self._last = self._delegate.lease.submit(self._delegate.lease.prepare([commands]))
        self._operands.end(self._last)
        self._unsure = False
        self._delegate.lease.wait(self._last)
        ticks = queries.results()
        times = [queries.nanoseconds(ticks[a], ticks[b]) for a, b in stamps(self.plan, serial=True)]
        for made in (commands, queries):
            made.close()
            self._held.remove(made)
        return times

    def trace(self, bound: Bound, clock: ClockSync) -> tuple[Sequence[Array | DeviceTensor], PlanTrace]:
        """As `run`, and also return when the parts of the run began and ended, on the clock of the host. The barriers
        are the plan's own. The first call records. Raises as `run`."""
        lease, marks = self._delegate.lease, []
        self._traced = self._traced or self._with_stamps(serial=False)
        marks.append(time.perf_counter_ns())
        buffers, spans_of = self.stamped(self.buffers(self.stage(bound)))
        prepared = lease.prepare(buffers)
        marks.append(time.perf_counter_ns())
        value = lease.submit(prepared)
        self.submitted(value, bound)
        marks.append(time.perf_counter_ns())
        lease.wait(value)
        marks.append(time.perf_counter_ns())
        results = self.collect(bound)
        marks.append(time.perf_counter_ns())
        spans = list(zip(("write inputs", "submit", "wait", "read outputs"), marks, marks[1:], strict=False))
        return results, PlanTrace(spans, spans_of(clock))

    def stamped(
        self, buffers: Sequence[CommandBuffer]
    ) -> tuple[Sequence[CommandBuffer], Callable[[ClockSync], list[tuple[float, float]]]]:
        """A staged run's command buffers with timestamps, and what reads them on a clock once the run has ended: begin
        and end of each dispatch."""
        commands, queries = self._traced = self._traced or self._with_stamps(serial=False)
        found = [commands if one is self._commands.main else one for one in buffers]
        return found, lambda clock: on_host_clock(clock, queries, stamps(self.plan, serial=False))

    def _with_stamps(self, serial: bool) -> tuple[CommandBuffer, QueryPool]:
        """The plan recorded with timestamps (see `stamps`), until it is closed."""
        count = stamps(self.plan, serial)[-1][1] + 1 if self.plan.dispatches else 1
        with self._delegate.lock:
            queries = QueryPool(self._delegate.context.device, count)
            self._held.append(queries)
            return self._record("timed", queries, serial), queries

    def close(self) -> None:
        """Free memory and command buffers, once the GPU has finished the last run."""
        with self._making:
            self._delegate.lease.wait_to_free(self._delegate.context.timeline.submitted if self._unsure else self._last)
            if self._fault is not None:
                self._fault.settle(ended=True)
            self._fault, self._traced = None, None
            held, self._held = self._held, []
            for thing in reversed(held):
                thing.free(stream=None) if isinstance(thing, DeviceBlock) else thing.close()
