"""VGF files on a device: pipelines made once a context, recordings bound to memory, a run is a submit.

Tensors that cross the file's border are `DeviceTensor`s: the VkTensorARM that a graph binds lies on the same bytes as
the buffer that Vulkan kernels address. Nothing is copied between the two.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gpu_shared.commands import CommandBuffer
from gpu_shared.data_graph import (
    DataGraphPipeline,
    DataGraphSession,
    GraphConstant,
    GraphResource,
    check_data_graphs,
)
from gpu_shared.descriptors import BufferRange, DescriptorSetLayout, DescriptorSets
from gpu_shared.pipeline import ComputePipeline, PipelineLayout, ShaderModule
from gpu_shared.tensors import Tensor
from gpu_shared.timeline import PreparedSubmit
from vkep.device.tensor import DeviceTensor
from vkep.dtypes import DTYPES
from vkep.memory.device_arena import DeviceBlock
from vkep.plan.memory import Lifetime, align, place
from vkep.vgf.records import STORAGE_BUFFER, TENSOR, UNIFORM_BUFFER, InvalidVgfError, Module, Resource, Segment, Vgf

if TYPE_CHECKING:
    from gpu_shared.compile_spec import SyncMode
    from gpu_shared.context import SharedGpuContext, SharedResource
    from gpu_shared.device import Device
    from vkep.device.delegate import VulkanDelegate

Array = np.ndarray[Any, Any]
#: recordings of one file that are kept, each bound to the memory of its inputs and outputs
RECORDINGS = 8
_BOUND = (TENSOR, STORAGE_BUFFER, UNIFORM_BUFFER)


class VgfDelegate:
    """The VGF delegate's stay on a context: a lease and command pool of its own, beside the Vulkan delegate whose
    arena, constants and transfers it shares. Close it after the runners made on it.
    """

    def __init__(self, memory: VulkanDelegate, *, sync_mode: SyncMode | str | None = None, name: str = "vgf") -> None:
        """``memory`` is the Vulkan delegate of the same session. Raises `ContextIncompatibleError` where the context
        cannot run data graphs.
        """
        check_data_graphs(memory.context.device)
        self.memory = memory
        self.lock = threading.Lock()
        self.lease = memory.context.lease(name, sync_mode)

    @property
    def context(self) -> SharedGpuContext:
        return self.lease.context

    def close(self) -> None:
        self.lease.close()


class _Step:
    """A segment's pipeline."""

    def __init__(self, device: Device, vgf: Vgf, segment: Segment, code: Mapping[str, bytes]) -> None:
        self.segment = segment
        module = vgf.modules[segment.module]
        where = f"segment {segment.name!r}"
        numbers = range(max(segment.sets, default=-1) + 1)
        for slots in segment.sets.values():
            for slot in slots:
                _check_bound(f"{where} binding {slot.binding}", vgf.resources[slot.resource])
        if segment.push_constants:
            raise InvalidVgfError(
                f"{where} has push constants; a VGF file gives them no values, and vkep has none to give"
            )
        self.set_layouts = [
            DescriptorSetLayout(
                device,
                {s.binding: vgf.resources[s.resource].descriptor_type or TENSOR for s in segment.sets.get(i, ())},
                label=f"{where} set {i}",
            )
            for i in numbers
        ]
        self.layout = PipelineLayout(device, 0, self.set_layouts, label=where)
        self.module = ShaderModule(device, _code_of(module, code, where), label=module.name)
        self.graph: DataGraphPipeline | None = None
        self.compute: ComputePipeline | None = None
        if segment.kind == "compute":
            self.compute = ComputePipeline(
                device, self.layout, self.module, entry_point=module.entry_point, label=segment.name
            )
            return
        resources = [
            GraphResource(i, s.binding, vgf.resources[s.resource].format, _dense(vgf.resources[s.resource]))
            for i, slots in segment.sets.items()
            for s in slots
        ]
        constants = []
        for number, index in segment.constants:
            constant = vgf.constants[index]
            if constant.sparse_dimension >= 0:
                raise InvalidVgfError(f"{where}: constant {index} is sparse, which vkep does not run")
            resource = vgf.resources[constant.resource]
            constants.append(GraphConstant(number, resource.format, _dense(resource), constant.data))
        self.graph = DataGraphPipeline(
            device, self.layout, self.module, module.entry_point, resources, constants, label=segment.name
        )

    def close(self) -> None:
        for part in (self.graph, self.compute, self.module, self.layout, *self.set_layouts):
            if part is not None:
                part.close()


class VgfPipelines:
    """Every segment's pipeline of one file on one device."""

    def __init__(self, device: Device, vgf: Vgf, code: Mapping[str, bytes]) -> None:
        self.steps: list[_Step] = []
        try:
            for segment in vgf.segments:
                self.steps.append(_Step(device, vgf, segment, code))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for step in self.steps:
            step.close()
        self.steps = []


class RecordedVgf:
    """A file bound to memory and recorded, for one run at a time."""

    def __init__(
        self, delegate: VgfDelegate, vgf: Vgf, pipelines: VgfPipelines, tensors: Mapping[int, DeviceTensor]
    ) -> None:
        self._delegate, self._vgf = delegate, vgf
        self._held: list[Any] = []
        self.last = 0
        try:
            places = self._places(tensors)
            self._tensors: dict[int, Tensor] = {}
            self.commands = self._record(pipelines, places)
            self.prepared: PreparedSubmit = delegate.lease.prepare([self.commands])
        except BaseException:
            self.close()
            raise

    def _places(self, tensors: Mapping[int, DeviceTensor]) -> dict[int, tuple[Any, int]]:
        """Buffer and offset of every resource: the caller's tensors, constants, intermediates in one slab."""
        vgf, delegate = self._vgf, self._delegate
        places = {index: (t.block.buffer, t.block.offset) for index, t in tensors.items()}
        uses: dict[int, list[int]] = {}
        for step, segment in enumerate(vgf.segments):
            for slots in segment.sets.values():
                for slot in slots:
                    if slot.resource not in places:
                        uses.setdefault(slot.resource, []).append(step)
        constants = {c.resource: c for c in vgf.constants}
        inner = [i for i in uses if i not in constants]
        offsets, size = place([Lifetime(align(vgf.resources[i].nbytes), min(uses[i]), max(uses[i])) for i in inner])
        self.slab_bytes = size
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
        return places

    def _hold(self, thing: Any) -> Any:
        self._held.append(thing)
        return thing

    def _tensor(self, index: int, places: Mapping[int, tuple[Any, int]]) -> Tensor:
        if index not in self._tensors:
            resource, (buffer, offset) = self._vgf.resources[index], places[index]
            self._tensors[index] = self._hold(
                Tensor(
                    self._delegate.context.device,
                    resource.format,
                    _dense(resource),
                    buffer,
                    offset,
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
                    resources: dict[int, Tensor | BufferRange] = {}
                    for slot in slots:
                        resource = self._vgf.resources[slot.resource]
                        if resource.descriptor_type in (STORAGE_BUFFER, UNIFORM_BUFFER):
                            buffer, offset = places[slot.resource]
                            resources[slot.binding] = BufferRange(buffer, offset, resource.nbytes)
                        else:
                            resources[slot.binding] = self._tensor(slot.resource, places)
                    sets.write(number, resources)
            if step.graph is not None:
                session = self._hold(DataGraphSession(device, step.graph, label=step.segment.name))
            bound.append((step, sets, session))
        commands: CommandBuffer = self._hold(self._delegate.lease.allocate("vgf"))
        commands.begin()
        for step, sets, session in bound:
            commands.full_barrier()  # its inputs, and the memory that the run before still uses
            if step.graph is not None:
                commands.bind_data_graph(step.graph)
            else:
                assert step.compute is not None
                commands.bind_pipeline(step.compute)
            if sets is not None:
                commands.bind_descriptor_sets(step.layout, sets, data_graph=step.graph is not None)
            if session is not None:
                commands.dispatch_data_graph(session)
            else:
                commands.dispatch(*step.segment.dispatch)
        commands.full_barrier()
        commands.barrier_to_host()
        return commands.end()

    @property
    def stale(self) -> bool:
        """Whether a buffer that it is bound to has been given back."""
        return any(tensor.closed for tensor in self._tensors.values())

    def close(self) -> None:
        """Give everything back once the GPU is done with the last run."""
        if self.last:
            self._delegate.lease.wait(self.last)
        held, self._held = self._held, []
        for thing in reversed(held):
            thing.free() if isinstance(thing, DeviceBlock) else thing.close()
        self._tensors = {}


class VgfRunner:
    """Runs one file. Thread-safe for runs on different memory; runs on the same memory wait for one another.

    ``code`` gives SPIR-V by module name for modules that the file leaves out. Raises `InvalidVgfError` for what vkep
    does not run (images, sparse constants, push constants), `ContextIncompatibleError`, `GpuError`.
    """

    def __init__(self, delegate: VgfDelegate, vgf: Vgf, *, code: Mapping[str, bytes] | None = None) -> None:
        self.vgf = vgf
        self._delegate = delegate
        self._lock = threading.RLock()
        self._recordings: OrderedDict[tuple[int, ...], RecordedVgf] = OrderedDict()
        self._closed = False
        code = dict(code or {})
        for slot in (*vgf.inputs, *vgf.outputs):
            _check_bound(f"{slot.name!r}", vgf.resources[slot.resource])
        device = delegate.context.device
        key = ("vkep.vgf", _digest(vgf, code))
        self._pipelines: SharedResource[VgfPipelines] = delegate.context.shared_resource(
            key, lambda: VgfPipelines(device, vgf, code)
        )

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        """One run from and to the host, for a file by itself; arrays in the file's order.

        Raises ``ValueError`` for a wrong number of arrays, shape or dtype.
        """
        wanted = [self.vgf.resources[s.resource] for s in self.vgf.inputs]
        if len(arrays) != len(wanted):
            raise ValueError(f"{len(arrays)} inputs; the file has {len(wanted)}: {[s.name for s in self.vgf.inputs]}")
        for slot, resource, array in zip(self.vgf.inputs, wanted, arrays, strict=True):
            if array.dtype.name != resource.dtype or array.shape not in (resource.shape, resource.shape or (1,)):
                raise ValueError(
                    f"{slot.name!r}: got {array.dtype.name} {array.shape}, the file has {resource.dtype} {resource.shape}"
                )
        memory, made = self._delegate.memory, []
        try:
            for array in arrays:
                made.append(DeviceTensor.from_numpy(memory, np.ascontiguousarray(array)))
            for slot in self.vgf.outputs:
                resource = self.vgf.resources[slot.resource]
                made.append(DeviceTensor(memory, DTYPES[resource.dtype], _dense(resource)))
            count = len(arrays)
            self.submit(made[:count], made[count:])
            return [t.numpy() for t in made[count:]]
        finally:
            self.forget(made)
            for tensor in made:
                tensor.close()

    def submit(self, inputs: Sequence[DeviceTensor], outputs: Sequence[DeviceTensor]) -> int:
        """Send a run off; returns the timeline value at which ``outputs`` are written.

        Tensors in the file's order. Raises ``ValueError`` for a tensor of another size than its resource, or for
        memory that is read and written.
        """
        slots = (*self.vgf.inputs, *self.vgf.outputs)
        tensors = (*inputs, *outputs)
        if len(slots) != len(tensors):
            raise ValueError(
                f"{len(inputs)} inputs and {len(outputs)} outputs; the file has "
                f"{len(self.vgf.inputs)} and {len(self.vgf.outputs)}"
            )
        for slot, tensor in zip(slots, tensors, strict=True):
            want = self.vgf.resources[slot.resource]
            if tensor.nbytes != want.nbytes:
                raise ValueError(
                    f"{slot.name!r}: got {tensor.dtype} {tensor.shape}, {tensor.nbytes} bytes; the file has "
                    f"{want.dtype} {want.shape}, {want.nbytes} bytes"
                )
        if {t.address for t in inputs} & {t.address for t in outputs}:
            raise ValueError("an input's memory is also an output's: a graph reads what it has not yet written")
        key = tuple(t.address for t in tensors)
        with self._lock:
            recorded = self._recordings.get(key)
            if recorded is not None and recorded.stale:  # its memory went, and other memory has its address now
                self._recordings.pop(key).close()
                recorded = None
            if recorded is None:
                recorded = self._record(key, {s.resource: t for s, t in zip(slots, tensors, strict=True)})
            self._recordings.move_to_end(key)
            self._delegate.lease.wait(recorded.last)  # its session memory may still be in use
            value = recorded.last = self._delegate.lease.submit(recorded.prepared)
        for tensor in outputs:
            tensor.written_at = value
        return value

    def _record(self, key: tuple[int, ...], tensors: Mapping[int, DeviceTensor]) -> RecordedVgf:
        while len(self._recordings) >= RECORDINGS:
            self._recordings.popitem(last=False)[1].close()
        with self._delegate.lock:
            made = RecordedVgf(self._delegate, self.vgf, self._pipelines.value, tensors)
        self._recordings[key] = made
        return made

    def forget(self, tensors: Sequence[DeviceTensor]) -> None:
        """Drop the recordings bound to memory that is about to be given back."""
        addresses = {t.address for t in tensors}
        with self._lock:
            for key in [k for k in self._recordings if addresses.intersection(k)]:
                self._recordings.pop(key).close()

    def close(self) -> None:
        """Give everything back once the GPU is done; idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for recorded in self._recordings.values():
                recorded.close()
            self._recordings.clear()
            self._pipelines.release()


def _check_bound(where: str, resource: Resource) -> None:
    if resource.descriptor_type not in (None, *_BOUND):
        raise InvalidVgfError(
            f"{where} is bound as VkDescriptorType {resource.descriptor_type}; vkep runs tensors and buffers"
        )
    if resource.stride and resource.stride != _dense_strides(resource):
        raise InvalidVgfError(
            f"{where} has strides {resource.stride} for shape {resource.shape}; vkep runs dense tensors"
        )


def _dense_strides(resource: Resource) -> tuple[int, ...]:
    strides, step = [], resource.nbytes
    for size in resource.shape:
        step //= max(size, 1)
        strides.append(step)
    return tuple(strides)


def _dense(resource: Resource) -> tuple[int, ...]:
    return resource.shape or (1,)


def _code_of(module: Module, code: Mapping[str, bytes], where: str) -> bytes:
    found = module.spirv if module.spirv is not None else code.get(module.name)
    if found is None:
        what = "is a placeholder" if module.language == "SPIR-V" else f"is {module.language} source"
        raise InvalidVgfError(f"{where}: module {module.name!r} {what}: give its SPIR-V by name")
    return found


def _digest(vgf: Vgf, code: Mapping[str, bytes]) -> str:
    digest = hashlib.blake2b(repr((vgf.resources, vgf.segments)).encode(), digest_size=16)
    for part in (*(m.spirv or b"" for m in vgf.modules), *(c.data for c in vgf.constants)):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    digest.update(repr([(m.name, m.entry_point) for m in vgf.modules]).encode())
    for name in sorted(code):
        digest.update(name.encode() + code[name])
    return digest.hexdigest()
