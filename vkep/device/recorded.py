"""One recorded plan: its memory, its argument table and its command buffers. A run is a submit."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from threading import RLock
from typing import TYPE_CHECKING, Any

import numpy as np

from gpu_shared.commands import CommandBuffer, QueryPool
from gpu_shared.pipeline import ComputePipeline
from gpu_shared.steady import check_wanted, steady
from vkep.device.arguments import ArgumentTable, Places, RunNumbers
from vkep.device.faults import FAULT_BYTES, FaultWord, RunCheck
from vkep.device.run_commands import INPUTS, OUTPUTS, Buffers, RunCommands
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
        self._places, self._delegate = places, delegate
        self._pipelines, self._constants = pipelines, constants
        self._held: list[Any] = []
        self._making = RLock()  # of what a run needs, which may have been interrupted
        self._staged: list[int] = []  # addresses of the latest staged run
        self._numbers: RunNumbers | None = None
        self._last = 0  # timeline value of the latest run
        # whether a staged run may have been submitted: an exception came before its timeline value was stored
        self._unsure = False
        self._traced: tuple[CommandBuffer, QueryPool] | None = None
        self._fault: FaultWord | None = None
        self._reading: list[DeviceTensor] = []  # the inputs of the staged run
        self._operands = Operands()
        self._checks: list[RunCheck] = []  # the check of the latest run's results
        try:
            self._prepare(slab)
        except BaseException:
            self.close()
            raise

    # ---- making

    def _prepare(self, slab: Slab) -> None:
        delegate, plan = self._delegate, self.plan
        staging: tuple[StagingArena | None, StagingArena | None] = (None, None)
        if not delegate.unified:
            upload = shared_staging_arena(delegate.lease, "upload")
            download = shared_staging_arena(delegate.lease, "download")
            self._held += [upload, download]
            staging = (upload.value, download.value)
        if plan.faults:
            block = self._hold((staging[1] or delegate.arena).alloc(FAULT_BYTES))
            self._fault = FaultWord(block, plan.faults, delegate.lease)
        fault = self._fault.address if self._fault is not None else 0
        self._table = ArgumentTable(delegate, self._places, self._constants, slab, fault, self.layout, staging[0])
        self._held.append(self._table)
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

    def prepare(self, numbers: RunNumbers) -> None:
        """Do what `set_sizes` will need for the sizes of the run that probably follows, while the device works on a run."""
        with self._making:
            self._table.prepare(numbers)
            self._commands.prepare(numbers.ports)

    def _hold(self, block: DeviceBlock) -> DeviceBlock:
        self._held.append(block)
        return block

    def _record(self, label: str, queries: QueryPool | None = None, serial: bool = False) -> CommandBuffer:
        """With ``queries``: timestamps by `stamps`. ``serial``: each dispatch waits for the one before."""
        commands = self._delegate.allocate_commands(f"plan {label}")
        self._held.append(commands)
        commands.begin()
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

    def run(
        self,
        inputs: Sequence[Array | DeviceTensor],
        outputs: Sequence[Array | DeviceTensor | None],
        meanwhile: Callable[[], object] | None = None,
    ) -> list[Array | DeviceTensor]:
        """Run once. ``inputs`` in port order, of the ports' dtypes and shapes (checked by the session); an output given
        as a device tensor or an array is written there, the others are returned as new arrays. ``meanwhile`` is called
        while the device works. Raises
        `InvalidInputError` where the data break an operator's specification (after a run that writes only device
        tensors, reading them raises it), `DeviceLostError`, `GpuError`.
        """
        value = self.submit(inputs, outputs)
        if meanwhile is not None:
            meanwhile()
        if not all(isinstance(o, DeviceTensor) for o in outputs):
            self._delegate.lease.wait(value)
        return self.collect(outputs)

    def submit(self, inputs: Sequence[Array | DeviceTensor], outputs: Sequence[Array | DeviceTensor | None]) -> int:
        """Submit a run; returns the timeline value that it signals. Operands are as for `run`."""
        value = self._delegate.lease.submit(self._commands.prepared(self.stage(inputs, outputs)))
        self.submitted(value, outputs)
        return value

    def stage(self, inputs: Sequence[Array | DeviceTensor], outputs: Sequence[Array | DeviceTensor | None]) -> Buffers:
        """Prepare a run with operands as for `run`; returns the key of its command buffers (`buffers`). `submitted`
        must follow. Raises `InvalidInputError` where an input comes from a run that failed, `ArenaOutOfMemory`."""
        refuse_failed(inputs, outputs)
        self._wait()
        with self._making:  # the work of an interrupted run has ended, which may have freed the ports' memory
            pass
        self._reading = [tensor for tensor in inputs if isinstance(tensor, DeviceTensor)]
        addresses = [0] * len(self.plan.ports)
        up: list[int] = []
        down: list[int] = []
        for bound, which, host in zip((inputs, outputs), self._commands.which, (up, down), strict=True):
            for k, tensor in enumerate(bound):
                if isinstance(tensor, DeviceTensor):
                    addresses[which[k]] = tensor.address
                else:
                    host.append(k)
        if up:
            ports, which = self._commands.bind(INPUTS, up), self._commands.which[INPUTS]
            for k in up:
                given = inputs[k]
                assert not isinstance(given, DeviceTensor)
                copy(ports.views[k], given)
                addresses[which[k]] = ports.addresses[k]
        if down:
            ports, which = self._commands.bind(OUTPUTS, down), self._commands.which[OUTPUTS]
            for k in down:
                addresses[which[k]] = ports.addresses[k]
        what, self._staged = self._table.bind(addresses), addresses
        self._operands.begin(
            [tensor.uses for tensor in self._reading], [t.uses for t in outputs if isinstance(t, DeviceTensor)]
        )
        self._unsure = True
        if self._delegate.unified:
            return Buffers(what)
        read = self._fault is not None or any(isinstance(t, DeviceTensor) and t.in_host_memory for t in outputs)
        return Buffers(what, bool(up), bool(down), read and not down)

    def _wait(self) -> None:
        """Wait until the recording and its memory are free: a run with bound outputs returns before it ends."""
        if self._unsure:
            self._last = self._delegate.context.timeline.submitted
            self._operands.end(self._last)
            if self._fault is not None:
                self._fault.unread = True
        self._delegate.lease.wait(self._last)
        if self._fault is not None and self._fault.unread:
            self._fault.settle(ended=True)
        self._unsure = False

    def run_at(self, addresses: list[int]) -> RunCheck | None:
        """Submit a run whose ports are all on the device, at ``addresses`` in port order; the memory must stay valid
        until the run ends. Returns the run's check where it needs one, since there are no tensors to store it with.
        Raises `DeviceLostError`, `GpuError`."""
        self._wait()
        visible = self._fault is not None and not self._delegate.unified
        prepared = self._commands.prepared(Buffers(self._table.bind(addresses), visible=visible))
        self._unsure = True
        self._last = self._delegate.lease.submit(prepared)
        self._table.sent(addresses)
        check = None if self._fault is None else self._fault.submitted(self._last)
        self._unsure = False
        return check

    def submitted(self, value: int, outputs: Sequence[Array | DeviceTensor | None]) -> None:
        """Record that the staged run was submitted, and ends at the timeline value."""
        self._last = value
        self._table.sent(self._staged)
        self._checks, self._reading = (open_checks(self._reading) if self._reading else []), []
        written = [target for target in outputs if isinstance(target, DeviceTensor)]
        if self._fault is not None:
            if written:
                self._checks.append(self._fault.submitted(value))
            else:  # only `collect` uses it
                self._fault.unread = True
        for target in written:
            if value > target.written_at:  # another thread's run may have been submitted later
                target.checks[:] = self._checks
        self._operands.end(value)
        self._unsure = False

    def collect(self, outputs: Sequence[Array | DeviceTensor | None]) -> list[Array | DeviceTensor]:
        """The results of a run that has ended, in the plan's order, with the plan's shapes and dtypes; arrays among
        ``outputs`` are filled. Raises `InvalidInputError` as `run`."""
        if not all(isinstance(target, DeviceTensor) for target in outputs):
            for check in self._checks:
                check.verify(ended=True)
            if self._fault is not None and self._fault.unread:
                self._fault.verify()
        results: list[Array | DeviceTensor] = []
        for k, target in enumerate(outputs):
            if target is None:
                results.append(self._commands.host(OUTPUTS).result(k))
            else:
                if not isinstance(target, DeviceTensor):
                    check_wanted()  # after an interrupt a later run may have filled it
                    copy(target, self._commands.host(OUTPUTS).views[k])
                results.append(target)
        return results

    def buffers(self, run: Buffers) -> list[CommandBuffer]:
        """The command buffers of a run that was staged, in order."""
        return self._commands.buffers(run)

    @property
    def ended(self) -> bool:
        """Whether the device is known to have finished the latest run, without a call of the driver."""
        return not self._unsure and self._delegate.context.timeline.has_passed(self._last)

    @steady
    def profile(self, inputs: Sequence[Array | DeviceTensor]) -> list[float]:
        """Run once with a timestamp after each dispatch, each waiting for the one before. Returns the nanoseconds of
        each dispatch, in the plan's order. Inputs are as for `run`."""
        self.run(inputs, [None] * len(self._commands.which[OUTPUTS]))  # fills inputs and slots
        commands, queries = self._with_stamps(serial=True)
        self._operands.begin([tensor.uses for tensor in inputs if isinstance(tensor, DeviceTensor)], [])
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

    @steady
    def trace(
        self, inputs: Sequence[Array | DeviceTensor], outputs: Sequence[Array | DeviceTensor | None], clock: ClockSync
    ) -> tuple[list[Array | DeviceTensor], PlanTrace]:
        """As `run`, and also return when the parts of the run began and ended, on the clock of the host. The barriers
        are the plan's own. The first call records. Raises as `run`."""
        lease, marks = self._delegate.lease, []
        commands, queries = self._traced = self._traced or self._with_stamps(serial=False)
        marks.append(time.perf_counter_ns())
        buffers = self.buffers(self.stage(inputs, outputs))
        prepared = lease.prepare([commands if one is self._commands.main else one for one in buffers])
        marks.append(time.perf_counter_ns())
        value = lease.submit(prepared)
        self.submitted(value, outputs)
        marks.append(time.perf_counter_ns())
        lease.wait(value)
        marks.append(time.perf_counter_ns())
        results = self.collect(outputs)
        marks.append(time.perf_counter_ns())
        spans = list(zip(("write inputs", "submit", "wait", "read outputs"), marks, marks[1:], strict=False))
        return results, PlanTrace(spans, on_host_clock(clock, queries, stamps(self.plan, serial=False)))

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
            self._fault, self._checks, self._traced = None, [], None
            held, self._held = self._held, []
            for thing in reversed(held):
                thing.free() if isinstance(thing, DeviceBlock) else thing.close()
