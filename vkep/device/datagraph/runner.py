"""VGF files on a device: pipelines are made once for a context, recordings are bound to memory, and a run is a submit.

Tensors at the file's border are `DeviceTensor`s: the VkTensorARM that a graph binds aliases the buffer that Vulkan
kernels address. Nothing is copied between the two.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from vkep.device.datagraph.delegate import GraphTensor, VgfDelegate
from vkep.device.datagraph.parts import module_code, push_values
from vkep.device.datagraph.pipelines import VgfPipelines, passed_through, takes_gaps
from vkep.device.datagraph.recorded import RecordedVgf
from vkep.device.tensor import DeviceTensor
from vkep.dtypes import DTYPES
from vkep.vgf.layout import check_resource, from_memory, memory_bytes, memory_shape, to_memory
from vkep.vgf.records import Vgf

if TYPE_CHECKING:
    from gpu_shared.lease import DelegateLease
    from gpu_shared.resources import SharedResource

Array = np.ndarray[Any, Any]
#: addresses and sizes of the memory that a recording is bound to
_Key = tuple[tuple[int, ...], tuple[int, ...]]
#: number of recordings of one file that are kept, each bound to the memory of its inputs and outputs
RECORDINGS = 8


class VgfRunner:
    """Runs one file. Thread-safe for runs on different memory; runs on the same memory wait for one another.

    ``code`` gives SPIR-V by module name for modules without code in the file (GLSL is compiled), ``push_constants`` the
    bytes by segment name for segments with push constants. Where a tensor of the file has gaps between its rows,
    `submit` expects memory with the gaps; `run` takes and returns dense arrays. Raises `InvalidVgfError` for what vkep
    does not run (images, HLSL), `ContextIncompatibleError`, `GpuError`.
    """

    def __init__(
        self,
        delegate: VgfDelegate,
        vgf: Vgf,
        *,
        code: Mapping[str, bytes] | None = None,
        push_constants: Mapping[str, bytes] | None = None,
    ) -> None:
        self.vgf = vgf
        self._delegate = delegate
        self._lock = threading.RLock()
        self._recordings: OrderedDict[_Key, RecordedVgf] = OrderedDict()
        self._closed = False
        code = module_code(vgf, code or {}, delegate.memory.pipelines.library)
        self._push = push_values(vgf, push_constants or {})
        for slot in (*vgf.inputs, *vgf.outputs):
            check_resource(f"{slot.name!r}", vgf.resources[slot.resource], takes_gaps(delegate.context.device))
        passed_through(vgf)
        device, store = delegate.context.device, delegate.memory.pipelines
        key = ("vkep.vgf", _digest(vgf, code))
        self._pipelines: SharedResource[VgfPipelines] = delegate.lease.shared_resource(
            key, lambda: VgfPipelines(device, vgf, code, store.driver_cache)
        )
        store.save()

    @property
    def lease(self) -> DelegateLease:
        """The delegate's lease, which `submit` uses."""
        return self._delegate.lease

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        """Run once with host arrays in the file's order; returns the outputs as arrays.

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
            for resource, array in zip(wanted, arrays, strict=True):
                made.append(DeviceTensor.from_numpy(memory, to_memory(resource, array)))
            for slot in self.vgf.outputs:
                resource = self.vgf.resources[slot.resource]
                made.append(DeviceTensor(memory, DTYPES[resource.dtype], memory_shape(resource)))
            count = len(arrays)
            self.submit(made[:count], made[count:])
            outputs = [self.vgf.resources[slot.resource] for slot in self.vgf.outputs]
            return [from_memory(r, t.numpy()) for r, t in zip(outputs, made[count:], strict=True)]
        finally:
            self.forget(made)
            for tensor in made:
                tensor.close()

    def submit(self, inputs: Sequence[GraphTensor], outputs: Sequence[DeviceTensor]) -> int:
        """Submit a run; returns the timeline value at which ``outputs`` are written.

        Inputs and outputs have the file's order, and the shapes and element types of their resources; a constant of the
        model may take an input's place. Raises ``ValueError`` for a tensor whose size differs from its resource's, or
        for memory that is both read and written.
        """
        with self.staged(inputs, outputs) as recorded:
            value = self._delegate.lease.submit(recorded.prepared)
            recorded.submitted(value)
        return value

    @contextlib.contextmanager
    def staged(self, inputs: Sequence[GraphTensor], outputs: Sequence[DeviceTensor]) -> Iterator[RecordedVgf]:
        """Prepare a run, for a submit of ``commands``; `RecordedVgf.submitted` is called inside the context. Operands
        are as for `submit`, and so are the errors. Also raises ``ValueError`` for a tensor whose elements are not
        contiguous."""
        tensors = (*inputs, *outputs)
        for tensor in tensors:
            if isinstance(tensor, DeviceTensor) and tensor.capacity:
                raise ValueError(f"{tensor!r}: its elements do not lie densely, as a data graph needs them")
        key = (tuple([t.address for t in tensors]), tuple([t.nbytes for t in tensors]))
        with self._lock:
            recorded = self._recordings.get(key)
            if recorded is not None and recorded.stale:  # its memory was freed, and other memory has the address now
                self._recordings.pop(key).close()
                recorded = None
            if recorded is None:
                self._check(inputs, outputs)
                recorded = self._record(key, tensors)
            self._recordings.move_to_end(key)
            self._delegate.lease.wait(recorded.last)  # its session memory may still be in use
            recorded.stage(inputs, outputs)
            try:
                yield recorded
            except BaseException:  # it may have been submitted
                recorded.last = self._delegate.context.timeline.submitted
                raise

    def _check(self, inputs: Sequence[GraphTensor], outputs: Sequence[DeviceTensor]) -> None:
        """Raise ``ValueError`` for memory that a recording cannot be bound to."""
        slots = (*self.vgf.inputs, *self.vgf.outputs)
        tensors = (*inputs, *outputs)
        if (len(inputs), len(outputs)) != (len(self.vgf.inputs), len(self.vgf.outputs)):
            raise ValueError(
                f"{len(inputs)} inputs and {len(outputs)} outputs; the file has "
                f"{len(self.vgf.inputs)} and {len(self.vgf.outputs)}"
            )
        for slot, tensor in zip(slots, tensors, strict=True):
            want = self.vgf.resources[slot.resource]
            if tensor.nbytes != memory_bytes(want):
                raise ValueError(
                    f"{slot.name!r}: got {tensor.dtype} {tensor.shape}, {tensor.nbytes} bytes; the file has "
                    f"{want.dtype} {want.shape}, {memory_bytes(want)} bytes"
                )
        if {t.address for t in inputs} & {t.address for t in outputs}:
            raise ValueError("an input's memory is also an output's: a graph reads what it has not yet written")

    def _record(self, key: _Key, tensors: Sequence[GraphTensor]) -> RecordedVgf:
        while len(self._recordings) >= RECORDINGS:
            self._recordings.popitem(last=False)[1].close()
        slots = (*self.vgf.inputs, *self.vgf.outputs)
        bound = [(slot.resource, tensor) for slot, tensor in zip(slots, tensors, strict=True)]
        with self._delegate.lock:
            made = RecordedVgf(self._delegate, self.vgf, self._pipelines.value, bound, self._push)
        self._recordings[key] = made
        return made

    def forget(self, tensors: Sequence[DeviceTensor]) -> None:
        """Drop the recordings bound to memory that is about to be freed."""
        addresses = {t.address for t in tensors}
        with self._lock:
            for key in [k for k in self._recordings if addresses.intersection(k[0])]:
                self._recordings.pop(key).close()

    def close(self) -> None:
        """Free everything, once the GPU has finished; idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for recorded in self._recordings.values():
                recorded.close()
            self._recordings.clear()
            self._pipelines.release()


def _digest(vgf: Vgf, code: Mapping[str, bytes]) -> str:
    digest = hashlib.blake2b(repr((vgf.resources, vgf.segments)).encode(), digest_size=16)
    for part in (*(m.spirv or b"" for m in vgf.modules), *(c.data for c in vgf.constants)):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    digest.update(repr([(m.name, m.entry_point) for m in vgf.modules]).encode())
    for name in sorted(code):
        digest.update(name.encode() + code[name])
    return digest.hexdigest()
