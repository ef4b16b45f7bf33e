"""One recorded plan: its memory, its argument table and its command buffers. A run is a submit."""

from __future__ import annotations

import contextlib
import itertools
import secrets
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gpu_shared.commands import CommandBuffer, QueryPool
from gpu_shared.pipeline import ComputePipeline
from gpu_shared.timeline import PreparedSubmit
from vkep.device.faults import FAULT_BYTES, FaultWord, RunCheck
from vkep.device.tensor import DeviceTensor, open_checks, refuse_failed
from vkep.dtypes import DTYPES
from vkep.memory.device_arena import DeviceBlock
from vkep.memory.host_copy import copy
from vkep.memory.staging_ring import StagingArena, shared_staging_arena
from vkep.plan.memory import align
from vkep.plan.records import FRESH, Dispatch, Plan, Port, Space

if TYPE_CHECKING:
    from vkep.device.delegate import VulkanDelegate

Array = np.ndarray[Any, Any]
_SLOT_BYTES = 8


class _HostPorts:
    """Where a run's arrays meet the device: a dense region of all input (or output) ports.

    On unified memory the host's view is the device memory itself; else a staging block is copied by the GPU.
    """

    def __init__(self, delegate: VulkanDelegate, ports: Sequence[Port], staging: StagingArena | None) -> None:
        offsets, size = [], 0
        for port in ports:
            offsets.append(size)
            size += align(max(port.nbytes, 1))
        self.size = max(size, 1)
        self.block: DeviceBlock = delegate.arena.alloc(self.size, delegate.lease)
        self.staging: DeviceBlock | None = None
        try:
            if staging is not None:
                self.staging = staging.alloc(self.size)
            mapped = (self.staging or self.block).mapped
            assert mapped is not None, "unified memory and staging are mapped"
            raw = np.frombuffer(mapped, np.uint8)
            self.views: list[Array] = [
                raw[offset : offset + p.nbytes].view(DTYPES[p.dtype].numpy).reshape(p.shape)
                for p, offset in zip(ports, offsets, strict=True)
            ]
        except BaseException:
            self.close()
            raise
        self.addresses = [self.block.address + offset for offset in offsets]
        self._results = delegate.results

    def result(self, k: int) -> Array:
        """A new array with the content of port ``k``."""
        view = self.views[k]
        made = self._results.empty(view.shape, view.dtype)
        copy(made, view)
        return made

    def close(self) -> None:
        self.views = []
        if self.staging is not None:
            self.staging.free()
        self.block.free()


class RecordedPlan:
    """A plan ready to run, for one run at a time (`PlanRunner` hands them out)."""

    def __init__(
        self, delegate: VulkanDelegate, plan: Plan, pipelines: Sequence[ComputePipeline], constants: Sequence[int]
    ) -> None:
        self.plan = plan
        self._delegate = delegate
        self._pipelines, self._constants = pipelines, constants
        self._inputs = [i for i, p in enumerate(plan.ports) if p.is_input]
        self._outputs = [i for i, p in enumerate(plan.ports) if not p.is_input]
        self._held: list[Any] = []
        self._submits: dict[tuple[bool, bool, bool], PreparedSubmit] = {}
        self._main: CommandBuffer | None = None
        self._sides: dict[str, CommandBuffer] = {}
        self._host: tuple[_HostPorts, _HostPorts] | None = None
        self._bound: list[int] = []  # addresses that the argument table on the device has
        self._staged: list[int] = []  # addresses of the run that was staged last
        self._fresh = [i for i, slot in enumerate(plan.slots) if slot.port == FRESH]
        self._last = 0  # timeline value of the latest run
        self._fault: FaultWord | None = None
        self._reading: list[DeviceTensor] = []  # what the run that `stage` made ready reads
        self._checks: list[RunCheck] = []  # what decides on the latest run's results
        try:
            self._prepare()
        except BaseException:
            self.close()
            raise

    # ---- making

    def _prepare(self) -> None:
        delegate, plan = self._delegate, self.plan
        self._slab = self._hold(delegate.arena.alloc(max(plan.activation_bytes, 1), delegate.lease))
        blocks = [d for d in plan.dispatches if plan.pipelines[d.pipeline].arguments_in_memory]
        offsets, size = {}, align(_SLOT_BYTES * max(len(plan.slots), 1))
        for dispatch in blocks:
            offsets[id(dispatch)] = size
            size += align(len(dispatch.arguments), 16)
        self._table = self._hold(delegate.arena.alloc(size, delegate.lease))
        self._slots_staging: DeviceBlock | None = None
        if not delegate.unified:
            upload = shared_staging_arena(delegate.context, "upload")
            download = shared_staging_arena(delegate.context, "download")
            self._held += [upload, download]
            self._staging: tuple[StagingArena | None, StagingArena | None] = (upload.value, download.value)
            self._slots_staging = self._hold(upload.value.alloc(_SLOT_BYTES * max(len(plan.slots), 1)))
        else:
            self._staging = (None, None)
        if plan.faults:
            block = self._hold((self._staging[1] or delegate.arena).alloc(FAULT_BYTES))
            self._fault = FaultWord(block, plan.faults, delegate.lease)
        mapped = (self._slots_staging or self._table).mapped
        assert mapped is not None
        self._slots = np.frombuffer(mapped, np.uint64, len(plan.slots))
        if blocks:
            image = bytearray(size)
            for dispatch in blocks:
                data = self._patched(dispatch)
                image[offsets[id(dispatch)] : offsets[id(dispatch)] + len(data)] = data
            first = align(_SLOT_BYTES * max(len(plan.slots), 1))
            delegate.uploader.upload(self._table, bytes(image[first:]), offset=first)
            delegate.uploader.finish()
        self._argument_offsets = offsets
        self._main = self._record("main", None)

    def _hold(self, block: DeviceBlock) -> DeviceBlock:
        self._held.append(block)
        return block

    def _patched(self, dispatch: Dispatch) -> bytes:
        """The dispatch's argument block with its addresses filled in."""
        data = bytearray(dispatch.arguments)
        for r in dispatch.relocations:
            if r.space is Space.CONSTANT:
                base = self._constants[r.index]
            elif r.space is Space.ACTIVATION:
                base = self._slab.address
            elif r.space is Space.FAULT:
                assert self._fault is not None
                base = self._fault.address
            else:
                base = self._table.address + _SLOT_BYTES * r.index
            struct.pack_into("<Q", data, r.offset, base + r.addend)
        return bytes(data)

    def _record(self, label: str, queries: QueryPool | None) -> CommandBuffer:
        commands = self._delegate.allocate_commands(f"plan {label}")
        self._held.append(commands)
        commands.begin()
        # A plan reuses its slab from run to run: wait for whatever touched memory before.
        commands.memory_barrier()
        if queries is not None:
            commands.reset_query_pool(queries)
            commands.write_timestamp(queries, 0)
        for index, dispatch in enumerate(self.plan.dispatches):
            if dispatch.barrier or (queries is not None and index):
                commands.memory_barrier()
            pipeline = self._pipelines[dispatch.pipeline]
            commands.bind_pipeline(pipeline)
            if self.plan.pipelines[dispatch.pipeline].arguments_in_memory:
                address = self._table.address + self._argument_offsets[id(dispatch)]
                data = struct.pack("<Q", address)
            else:
                data = self._patched(dispatch)
            commands.push_constants(pipeline.layout, data)
            commands.dispatch(*dispatch.grid)
            if queries is not None:
                commands.write_timestamp(queries, index + 1)
        if self._delegate.unified:
            commands.barrier_to_host()
        commands.end()
        return commands

    def _side(self, name: str) -> CommandBuffer:
        """The command buffers around the plan's own: new slot addresses, inputs up, outputs down."""
        if name not in self._sides:
            commands = self._delegate.allocate_commands(f"plan {name}")
            self._held.append(commands)
            commands.begin()
            if name == "fault":  # where no download follows, whose barrier is for all that was written
                commands.barrier_to_host()
            elif name == "download":
                ports = self._host_ports[1]
                commands.barrier_before_transfer()
                _copy(commands, ports.block, ports.staging, ports.size)
                commands.barrier_to_host()
            else:
                commands.barrier_before_transfer()
                if name == "slots":
                    _copy(commands, self._slots_staging, self._table, _SLOT_BYTES * len(self.plan.slots))
                else:
                    ports = self._host_ports[0]
                    _copy(commands, ports.staging, ports.block, ports.size)
                commands.barrier_after_transfer()
            commands.end()
            self._sides[name] = commands
        return self._sides[name]

    @property
    def _host_ports(self) -> tuple[_HostPorts, _HostPorts]:
        if self._host is None:
            delegate, ports = self._delegate, self.plan.ports
            first = _HostPorts(delegate, [ports[i] for i in self._inputs], self._staging[0])
            self._held.append(first)
            second = _HostPorts(delegate, [ports[i] for i in self._outputs], self._staging[1])
            self._held.append(second)
            self._host = (first, second)
        return self._host

    # ---- running

    def run(
        self, inputs: Sequence[Array | DeviceTensor], outputs: Sequence[Array | DeviceTensor | None]
    ) -> list[Array | DeviceTensor]:
        """One run. ``inputs`` in port order, of the ports' dtypes and shapes (checked by the session); an output given as a
        device tensor or an array is written there, the others come back as new arrays. Raises `InvalidInputError` where
        the data break an operator's specification (a run that writes device tensors alone leaves that to those who read
        them), `DeviceLostError`, `GpuError`.
        """
        value = self.submit(inputs, outputs)
        if not all(isinstance(o, DeviceTensor) for o in outputs):
            self._delegate.lease.wait(value)
        return self.collect(outputs)

    def submit(self, inputs: Sequence[Array | DeviceTensor], outputs: Sequence[Array | DeviceTensor | None]) -> int:
        """Send a run off; returns its timeline value."""
        value = self._delegate.lease.submit(self._submit_for(self.stage(inputs, outputs)))
        self.submitted(value, outputs)
        return value

    def stage(
        self, inputs: Sequence[Array | DeviceTensor], outputs: Sequence[Array | DeviceTensor | None]
    ) -> tuple[bool, bool, bool]:
        """Make a run ready; returns the key of its command buffers (`buffers`). `submitted` follows. Raises
        `InvalidInputError` where an input comes from a run that failed.
        """
        refuse_failed(inputs, outputs)
        self._wait()
        self._reading = [tensor for tensor in inputs if isinstance(tensor, DeviceTensor)]
        addresses = [0] * len(self.plan.ports)
        up = down = False
        for k, tensor in enumerate(inputs):
            if isinstance(tensor, DeviceTensor):
                addresses[self._inputs[k]] = tensor.address
            else:
                ports = self._host_ports[0]
                copy(ports.views[k], tensor)
                addresses[self._inputs[k]] = ports.addresses[k]
                up = True
        for k, target in enumerate(outputs):
            if isinstance(target, DeviceTensor):
                addresses[self._outputs[k]] = target.address
            else:
                addresses[self._outputs[k]] = self._host_ports[1].addresses[k]
                down = True
        slots, self._staged = self._bind(addresses), addresses
        staged = not self._delegate.unified
        return (slots, up and staged, down and staged)

    def _bind(self, addresses: list[int]) -> bool:
        """Have the plan's slots point to ``addresses``, in port order; whether the device is to be sent new slots."""
        if addresses == self._bound and not self._fresh:
            return False
        self._bound = []  # until they are sent off, which may fail
        for i, slot in enumerate(self.plan.slots):
            self._slots[i] = addresses[slot.port] + slot.addend if slot.port != FRESH else secrets.randbits(64)
        return bool(self.plan.slots) and not self._delegate.unified

    def _wait(self) -> None:
        """Until the recording and its memory are free: a run with bound outputs does not wait for its end."""
        self._delegate.lease.wait(self._last)
        if self._fault is not None and self._fault.unread:
            self._fault.settle(ended=True)

    def run_at(self, addresses: list[int]) -> RunCheck | None:
        """Send a run off whose ports all lie on the device, at ``addresses`` in port order; what lies there stays until it
        is done. Returns its check, where it needs one: it has no tensors to leave it with. Raises `DeviceLostError`, `GpuError`.
        """
        self._wait()
        self._last = self._delegate.lease.submit(self._submit_for((self._bind(addresses), False, False)))
        self._bound = addresses
        return None if self._fault is None else self._fault.submitted(self._last)

    def submitted(self, value: int, outputs: Sequence[Array | DeviceTensor | None]) -> None:
        """What `stage` made ready was sent off, and is done at the timeline value."""
        self._last, self._bound = value, self._staged
        self._checks, self._reading = (open_checks(self._reading) if self._reading else []), []
        written = [target for target in outputs if isinstance(target, DeviceTensor)]
        if self._fault is not None:
            if written:
                self._checks.append(self._fault.submitted(value))
            else:  # `collect` alone asks
                self._fault.unread = True
        for target in written:
            target.written_at = value
            target.checks[:] = self._checks

    def collect(self, outputs: Sequence[Array | DeviceTensor | None]) -> list[Array | DeviceTensor]:
        """The results of a run that has ended, where any is for the host; arrays given are filled. Raises
        `InvalidInputError` as `run`.
        """
        if not all(isinstance(target, DeviceTensor) for target in outputs):
            for check in self._checks:
                check.verify(ended=True)
            if self._fault is not None and self._fault.unread:
                self._fault.verify()
        results: list[Array | DeviceTensor] = []
        for k, target in enumerate(outputs):
            if target is None:
                results.append(self._host_ports[1].result(k))
            else:
                if not isinstance(target, DeviceTensor):
                    copy(target, self._host_ports[1].views[k])
                results.append(target)
        return results

    def buffers(self, key: tuple[bool, bool, bool]) -> list[CommandBuffer]:
        """The command buffers of a run that was staged, in order."""
        slots, up, down = key
        assert self._main is not None
        told = self._fault is not None and not (down or self._delegate.unified)
        before, after = (("slots", slots), ("upload", up)), (("download", down), ("fault", told))
        with self._delegate.lock if slots or up or down or told else contextlib.nullcontext():
            first, last = ([self._side(name) for name, wanted in sides if wanted] for sides in (before, after))
        return [*first, self._main, *last]

    def _submit_for(self, key: tuple[bool, bool, bool]) -> PreparedSubmit:
        if key not in self._submits:
            self._submits[key] = self._delegate.lease.prepare(self.buffers(key))
        return self._submits[key]

    def profile(self, inputs: Sequence[Array | DeviceTensor]) -> list[float]:
        """Run once with a timestamp after each dispatch, each waiting for the last; nanoseconds of each dispatch."""
        self.run(inputs, [None] * len(self._outputs))  # fills inputs and slots
        with self._delegate.lock:
            queries = QueryPool(self._delegate.context.device, len(self.plan.dispatches) + 1)
            commands = self._record("profile", queries)
            prepared = self._delegate.lease.prepare([commands])
        self._delegate.lease.wait(self._delegate.lease.submit(prepared))
        ticks = queries.results()
        assert ticks is not None
        times = [queries.nanoseconds(a, b) for a, b in itertools.pairwise(ticks)]
        commands.close()
        self._held.remove(commands)
        queries.close()
        return times

    def close(self) -> None:
        """Give memory and command buffers back, once the GPU is done with the last run."""
        self._wait()
        self._fault, self._checks = None, []
        self._submits.clear()
        self._sides.clear()
        self._host, self._main = None, None
        self._slots = np.empty(0, np.uint64)
        held, self._held = self._held, []
        for thing in reversed(held):
            thing.free() if isinstance(thing, DeviceBlock) else thing.close()


def _copy(commands: CommandBuffer, source: DeviceBlock | None, target: DeviceBlock | None, size: int) -> None:
    assert source is not None and target is not None
    commands.copy_buffer(source.buffer, target.buffer, size, source.offset, target.offset)
