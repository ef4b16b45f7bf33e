"""Host-visible memory for the inputs and outputs of a recorded plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gpu_shared.commands import CommandBuffer
from vkep.dtypes import DTYPES
from vkep.memory import ArenaOutOfMemory
from vkep.memory.device_arena import DeviceBlock
from vkep.memory.host_copy import copy
from vkep.memory.staging_ring import StagingArena
from vkep.plan.memory import align
from vkep.plan.records import Port
from vkep.plan.sized import MovedPorts

if TYPE_CHECKING:
    from vkep.device.delegate import VulkanDelegate

Array = np.ndarray[Any, Any]
#: (first byte, bytes) of a region
Span = tuple[int, int]
Spans = tuple[Span, ...]


#: sides of up to as many bytes are accessed in place: to copy them on the device takes longer than the bus
DIRECT_BYTES = 1 << 16


class Staging(NamedTuple):
    """Where the host sees the ports of one side, on a device whose memory it cannot map."""

    copied: StagingArena  #: memory that the device copies to its own or from it
    direct: StagingArena | None  #: memory that kernels may access instead, where they are few bytes


class Fitting(NamedTuple):
    """Ports of one kind that the memory is viewed as: the caches of all layers are alike."""

    kind: int  #: its place in `MovedPorts.kinds`
    shape: tuple[int, ...]
    views: list[tuple[int, Array]]  #: of each port, by its place
    length: int  #: bytes of each that are copied: rounded up, so that few different copies are recorded


class HostPorts:
    """A dense region of the input (or output) ports that the host binds.

    On unified memory the host maps the device memory itself, otherwise the GPU copies to or from a staging block. A few bytes
    are in the memory of `Staging.direct` instead, where that is not exhausted.
    """

    def __init__(
        self,
        delegate: VulkanDelegate,
        ports: Sequence[Port],
        capacity: Sequence[int | None],
        staging: Staging | None,
    ) -> None:
        """``capacity``: the largest bytes of each port, None where the host does not bind it."""
        self.capacity, self._offsets, size = tuple(capacity), list[int](), 0
        for nbytes in capacity:
            self._offsets.append(size)
            size += 0 if nbytes is None else align(max(nbytes, 1))
        self.size = max(size, 1)
        self.views: list[Array] = [np.empty(0, np.uint8)] * len(ports)
        self._each: list[Span | None] = [None] * len(ports)  # of the ports
        self._shapes: dict[int, tuple[int, ...]] = {}  # of the ports' kinds that were fitted
        self.used: Sequence[int] | None = None  #: the ports that `use` was called for
        self.spans: Spans = ()  #: see `use`
        direct = staging.direct if staging is not None and self.size <= DIRECT_BYTES else None
        found: DeviceBlock | None = None
        if direct is not None:
            with suppress(ArenaOutOfMemory):  # the window to the device's memory is small, and all programs share it
                found = direct.alloc(self.size)
        self.block = found or delegate.arena.alloc(self.size, delegate.lease)
        self.staging: DeviceBlock | None = None
        try:
            if staging is not None and found is None:
                self.staging = staging.copied.alloc(self.size)
            mapped = (self.staging or self.block).mapped
            assert mapped is not None, "unified memory and staging are mapped"
            self._raw = np.frombuffer(mapped, np.uint8)
            buffer = (self.staging or self.block).buffer
            self._incoherent = None if buffer.coherent else buffer
            for k, (port, most) in enumerate(zip(ports, capacity, strict=True)):
                if most is not None:
                    self.views[k] = self._view(k, port.shape, DTYPES[port.dtype].numpy)
                    self._each[k] = self._span(k, _rounded(port.nbytes))
        except BaseException:
            self.close()
            raise
        self.addresses = [self.block.address + offset for offset in self._offsets]
        self._results = delegate.results

    def fitting(self, moved: MovedPorts, places: Mapping[int, Sequence[int]]) -> list[Fitting] | None:
        """What `fit` needs for ports of other shapes, which have the ``places`` by kind; None where one of them is larger than
        its room."""
        found: list[Fitting] = []
        for kind, alike in places.items():
            shape, nbytes = moved.kinds[kind]
            if self._shapes.get(kind) == shape:
                continue
            element, views = DTYPES[moved.dtypes[kind]].numpy, []
            for k in alike:
                capacity = self.capacity[k]
                if capacity is None:
                    continue
                if nbytes > capacity:
                    return None
                views.append((k, self._view(k, shape, element)))
            found.append(Fitting(kind, shape, views, _rounded(nbytes)))
        return found

    def fit(self, fitting: Sequence[Fitting]) -> None:
        """Set ports that the memory is viewed as."""
        for kind, shape, views, length in fitting:
            self._shapes.pop(kind, None)  # until all are set: an interrupt may come between them
            for k, view in views:
                self.views[k] = view
            if views and self._span(views[0][0], length) != self._each[views[0][0]]:
                self.used = None
                for k, _ in reversed(views):
                    self._each[k] = self._span(k, length)
            self._shapes[kind] = shape

    def _view(self, k: int, shape: tuple[int, ...], element: np.dtype[Any]) -> Array:
        return np.ndarray(shape, element, self._raw, self._offsets[k])

    def _span(self, k: int, length: int) -> Span | None:
        """The range of a port that is copied; None where it has no bytes."""
        capacity = self.capacity[k]
        return (self._offsets[k], min(capacity, length)) if length and capacity is not None else None

    def use(self, which: Sequence[int]) -> None:
        """Set the ``spans`` that a run copies between the host and the device: those of the ports ``which`` that it binds to the
        host."""
        if which == self.used:
            return
        self.used = None  # until the spans are set
        spans = [span for k in which if (span := self._each[k]) is not None]
        first, end = (spans[0][0], sum(spans[-1])) if spans else (0, 0)
        dense = 2 * sum(nbytes for _, nbytes in spans) >= end - first
        self.spans = ((first, end - first),) if spans and dense else tuple(spans)
        self.used = list(which)

    def copy(self, commands: CommandBuffer, down: bool) -> None:
        """Record the copy of the ports' ranges from (for results: to) the staging block."""
        assert self.staging is not None
        source, target = (self.block, self.staging) if down else (self.staging, self.block)
        for offset, nbytes in self.spans:
            commands.copy_buffer(source.buffer, target.buffer, nbytes, source.offset + offset, target.offset + offset)

    def arrived(self) -> None:
        """Make what the device wrote visible to the host, after a run has ended."""
        if self._incoherent is not None:
            self._incoherent.invalidate()

    def result(self, k: int) -> Array:
        """A new array with the content of port ``k``."""
        view = self.views[k]
        made = self._results.empty(view.shape, view.dtype)
        copy(made, view)
        return made

    def close(self) -> None:
        """Free its memory; the runs that use it must have ended."""
        self.views, self._raw = [], np.empty(0, np.uint8)
        if self.staging is not None:
            self.staging.free()
        self.block.free(stream=None)


def _rounded(nbytes: int) -> int:
    return 1 << max(nbytes - 1, 4095).bit_length() if nbytes else 0
