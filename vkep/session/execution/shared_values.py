"""Values that pass between delegates on the device: device tensors allocated once for a program and used by every
run."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from vkep.device.tensor import DeviceTensor
from vkep.dtypes import DTYPES
from vkep.ir.program import IslandStep, Program, VgfStep

if TYPE_CHECKING:
    from vkep.device.datagraph.runner import VgfRunner
    from vkep.device.delegate import VulkanDelegate


class BufferSet:
    """One run's tensors by value name. `VgfRunner` keeps a recording for each set, so that runs replay."""

    def __init__(self, tensors: dict[str, DeviceTensor]) -> None:
        self.tensors = tensors
        self.last = 0  #: timeline value of the latest submit of the previous run

    def close(self) -> None:
        """Free the buffers."""
        for tensor in self.tensors.values():
            tensor.close()


class BufferSets:
    """The buffer sets of one program: as many as runs overlapped. Thread-safe."""

    def __init__(self, delegate: VulkanDelegate, program: Program) -> None:
        self._delegate = delegate
        self._specs = handed_over(program)
        self._idle: list[BufferSet] = []
        self._lock = threading.Lock()
        self._closed = False

    @property
    def names(self) -> Iterable[str]:
        """The values that its tensors hold."""
        return self._specs

    def take(self) -> BufferSet:
        """Take a set that no run is using; waits for the GPU where the previous run with it has not ended."""
        with self._lock:
            buffers = self._idle.pop() if self._idle else None
        if buffers is None:
            tensors: dict[str, DeviceTensor] = {}
            try:
                for name, (dtype, shape) in self._specs.items():
                    tensors[name] = DeviceTensor(self._delegate, DTYPES[dtype], shape)
            except BaseException:
                BufferSet(tensors).close()
                raise
            return BufferSet(tensors)
        self._delegate.lease.wait(buffers.last)
        return buffers

    def give(self, buffers: BufferSet, runners: Iterable[VgfRunner] = ()) -> None:
        """Return a set after a run; after `close`, close it and drop the recordings of ``runners`` that are bound to
        it."""
        buffers.last = self._delegate.context.timeline.submitted
        with self._lock:
            if not self._closed:
                self._idle.append(buffers)
                return
        for runner in runners:
            runner.forget(list(buffers.tensors.values()))
        buffers.close()

    def close(self) -> None:
        """Close the unused sets; the others are closed when they are returned."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for buffers in idle:
            buffers.close()


def handed_over(program: Program) -> Mapping[str, tuple[str, tuple[int, ...]]]:
    """(dtype, shape) of every value that a data graph reads or writes, and that Vulkan islands pass to each other."""
    specs: dict[str, tuple[str, tuple[int, ...]]] = {}
    read = {p.name for step in program.steps if isinstance(step, IslandStep) for p in step.plan.inputs}
    for step in program.steps:
        if isinstance(step, VgfStep):
            for port in (*step.graph.inputs, *step.graph.outputs):
                specs[port.name] = (port.dtype.name, port.shape)
        elif isinstance(step, IslandStep):
            specs.update({p.name: (p.dtype, p.shape) for p in step.plan.outputs if p.name in read})
    return specs
