"""A VGF file bound to memory and recorded, once for many runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpu_shared.commands import CommandBuffer
from gpu_shared.data_graph import DataGraphSession
from gpu_shared.descriptors import BufferRange, DescriptorSets
from gpu_shared.tensors import ArmTensor
from gpu_shared.timeline import PreparedSubmit
from vkep.device.datagraph.pipelines import VgfPipelines, binding_type, passed_through
from vkep.device.tensor import DeviceTensor, open_checks, refuse_failed
from vkep.device.uses import Operands
from vkep.memory.device_arena import DeviceBlock
from vkep.plan.memory import Lifetime, align, pack
from vkep.vgf.layout import dense, memory_bytes, strides_of
from vkep.vgf.records import STORAGE_BUFFER, UNIFORM_BUFFER, Vgf

if TYPE_CHECKING:
    from gpu_shared.memory import Buffer
    from vkep.device.datagraph.delegate import GraphTensor, VgfDelegate


class RecordedVgf:
    """A file bound to memory and recorded, for one run at a time."""

    def __init__(
        self,
        delegate: VgfDelegate,
        vgf: Vgf,
        pipelines: VgfPipelines,
        tensors: Sequence[tuple[int, GraphTensor]],
        push_constants: Mapping[str, bytes] | None = None,
    ) -> None:
        """``tensors`` are (resource, memory) of the inputs and outputs. A resource that is several outputs (folding may
        make results equal) is written once and copied to the others."""
        self._delegate, self._vgf, self._push = delegate, vgf, push_constants or {}
        self._held: list[Any] = []
        self.last = 0
        self._operands = Operands()
        self._staged: tuple[Sequence[DeviceTensor], Sequence[DeviceTensor]] = ((), ())  # the operands of the staged run
        self._bound = {t.block.buffer for _, t in tensors}
        try:
            bound = dict(reversed(tensors))
            self._copies = [(bound[i].block, t.block, t.nbytes) for i, t in tensors if bound[i] is not t]
            places = self._places(bound)
            self._tensors: dict[int, ArmTensor] = {}
            self.commands = self._record(pipelines, places)
            self.prepared: PreparedSubmit = delegate.lease.prepare([self.commands])
        except BaseException:
            self.close()
            raise

    def _places(self, tensors: Mapping[int, GraphTensor]) -> dict[int, tuple[Any, int]]:
        """Buffer and offset of every resource: the caller's tensors, constants, intermediates in one slab."""
        vgf, delegate = self._vgf, self._delegate
        places = {index: (t.block.buffer, t.block.offset) for index, t in tensors.items()}
        owners = {vgf.resources[i].alias_group: i for i in tensors if vgf.resources[i].alias_group is not None}
        uses: dict[int, list[int]] = {}  # steps by the resource that owns the memory
        aliases: dict[int, int] = {}
        for step, segment in enumerate(vgf.segments):
            for slots in segment.sets.values():
                for slot in slots:
                    group = vgf.resources[slot.resource].alias_group
                    # an input and an output of one alias group have separate memory: see `passed_through`
                    alone = group is None or slot.resource in tensors
                    owner = slot.resource if alone else owners.setdefault(group, slot.resource)
                    aliases[slot.resource] = owner
                    if owner not in places:
                        uses.setdefault(owner, []).append(step)
        constants = {c.resource: c for c in vgf.constants}
        inner = [i for i in uses if i not in constants]
        sizes = {i: max(memory_bytes(vgf.resources[k]) for k, owner in aliases.items() if owner == i) for i in inner}
        offsets, size = pack([Lifetime(align(sizes[i]), min(uses[i]), max(uses[i])) for i in inner])
        if size:
            slab = self._hold(delegate.memory.arena.alloc(size, delegate.lease))
            places.update({i: (slab.buffer, slab.offset + o) for i, o in zip(inner, offsets, strict=True)})
        for index in (i for i in uses if i in constants):
            data = constants[index].data
            block = self._hold(delegate.memory.arena.alloc(align(max(len(data), 1)), delegate.lease))
            with delegate.memory.lock:
                delegate.memory.uploader.upload(block, data)
                delegate.memory.uploader.finish()
            places[index] = (block.buffer, block.offset)
        return places | {index: places[owner] for index, owner in aliases.items()}

    def _hold(self, thing: Any) -> Any:
        self._held.append(thing)
        return thing

    def _session_memory(self, size: int, alignment: int, memory_types: int) -> tuple[Buffer, int] | None:
        """Memory of the arena for a data graph session; None where the driver requires another memory type."""
        block = self._delegate.memory.arena.alloc(size + alignment - 1, self._delegate.lease)
        if not memory_types >> block.buffer.memory_type & 1:
            block.free()
            return None
        self._hold(block)  # allocated before the session, and so freed after it
        return block.buffer, align(block.offset, alignment)

    def _tensor(self, index: int, places: Mapping[int, tuple[Any, int]]) -> ArmTensor:
        if index not in self._tensors:
            resource, (buffer, offset) = self._vgf.resources[index], places[index]
            self._tensors[index] = self._hold(
                ArmTensor(
                    self._delegate.context.device,
                    resource.format,
                    dense(resource),
                    buffer,
                    offset,
                    strides=strides_of(resource),
                    label=f"resource {index}",
                )
            )
        return self._tensors[index]

    def _record(self, pipelines: VgfPipelines, places: Mapping[int, tuple[Any, int]]) -> CommandBuffer:
        device = self._delegate.context.device
        bound = []
        for step in pipelines.steps:
            sets = session = None
            if step.set_layouts:
                sets = self._hold(DescriptorSets(device, step.set_layouts, label=step.segment.name))
                for number, slots in step.segment.sets.items():
                    resources: dict[int, ArmTensor | BufferRange] = {}
                    for slot in slots:
                        resource = self._vgf.resources[slot.resource]
                        if binding_type(step.segment, resource) in (STORAGE_BUFFER, UNIFORM_BUFFER):
                            buffer, offset = places[slot.resource]
                            resources[slot.binding] = BufferRange(buffer, offset, memory_bytes(resource))
                        else:
                            resources[slot.binding] = self._tensor(slot.resource, places)
                    sets.write(number, resources)
            if step.graph is not None:
                session = self._hold(
                    DataGraphSession(device, step.graph, allocate=self._session_memory, label=step.segment.name)
                )
            bound.append((step, sets, session))
        commands: CommandBuffer = self._hold(self._delegate.lease.allocate("vgf"))
        commands.begin()
        for step, sets, session in bound:
            commands.full_barrier()  # its inputs, and the memory that the previous run still uses
            if step.graph is not None:
                commands.bind_data_graph(step.graph)
            else:
                assert step.compute is not None
                commands.bind_pipeline(step.compute)
            if sets is not None:
                assert step.layout is not None
                commands.bind_descriptor_sets(step.layout, sets, data_graph=step.graph is not None)
            if step.segment.push_constants:
                assert step.layout is not None
                commands.push_constants(step.layout, self._push[step.segment.name])
            if session is not None:
                commands.dispatch_data_graph(session)
            else:
                commands.dispatch(*step.segment.dispatch)
        commands.full_barrier()
        for source, target in passed_through(self._vgf):
            (a, at), (b, to) = places[source], places[target]
            commands.copy_buffer(a, b, memory_bytes(self._vgf.resources[target]), at, to)
            commands.full_barrier()
        for first, other, size in self._copies:
            commands.copy_buffer(first.buffer, other.buffer, size, first.offset, other.offset)
            commands.full_barrier()
        commands.barrier_to_host()
        return commands.end()

    def stage(self, inputs: Sequence[GraphTensor], outputs: Sequence[DeviceTensor]) -> None:
        """Prepare a run on these tensors, at the memory that it was recorded for; `submitted` must follow. Raises
        `InvalidInputError` where an input comes from a run that failed."""
        reads = [t for t in inputs if isinstance(t, DeviceTensor)]
        refuse_failed(reads, outputs)
        self._operands.end(self._delegate.context.timeline.submitted)  # of a run that failed or was interrupted
        self._operands.begin(reads, outputs)
        self._staged = reads, outputs

    def submitted(self, value: int) -> None:
        """Record that the run was submitted, and ends at the timeline value. The outputs get the checks of the inputs:
        a result computed from a failed run is invalid too."""
        self.last = value
        (reads, outputs), self._staged = self._staged, ((), ())
        checks = open_checks(reads)
        for tensor in outputs:
            if value > tensor.written_at:  # another thread's run may have been submitted later
                tensor.checks[:] = checks
        self._operands.end(value)

    @property
    def stale(self) -> bool:
        """Whether a buffer that it is bound to has been freed."""
        return any(buffer.closed for buffer in self._bound)

    def close(self) -> None:
        """Free everything, once the GPU has finished the last run."""
        if self.last:
            self._delegate.lease.wait_to_free(self.last)
        held, self._held = self._held, []
        for thing in reversed(held):
            thing.free() if isinstance(thing, DeviceBlock) else thing.close()
        self._tensors = {}
