"""Host-visible memory for the inputs and outputs of a recorded plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gpu_shared.commands import CommandBuffer
from vkep.dtypes import DTYPES
from vkep.memory.device_arena import DeviceBlock
from vkep.memory.host_copy import copy
from vkep.memory.staging_ring import StagingArena
from vkep.plan.memory import align
from vkep.plan.records import Port

if TYPE_CHECKING:
    from vkep.device.delegate import VulkanDelegate

Array = np.ndarray[Any, Any]
#: (first byte, bytes) of a region
Span = tuple[int, int]
Spans = tuple[Span, ...]
#: ports that the memory is viewed as: the place of each, its view, and the range that is copied (None: it has no bytes)
Fitting = list[tuple[int, Array, Span | None]]


class HostPorts:
    """A dense region of the input (or output) ports that the host binds.

    On unified memory the host maps the device memory itself; otherwise the GPU copies to or from a staging block.
    """

    def __init__(
        self,
        delegate: VulkanDelegate,
        ports: Sequence[Port],
        capacity: Sequence[int | None],
        staging: StagingArena | None,
    ) -> None:
        """``capacity``: the largest bytes of each port, None where the host does not bind it."""
        self.capacity, self._offsets, size = tuple(capacity), list[int](), 0
        for nbytes in capacity:
            self._offsets.append(size)
            size += 0 if nbytes is None else align(max(nbytes, 1))
        self.size = max(size, 1)
        self.views: list[Array] = [np.empty(0, np.uint8)] * len(ports)
        self._each: list[Span | None] = [None] * len(ports)  # of the ports
        self._used: Sequence[int] | None = None
        self.spans: Spans = ()  #: see `use`
        self.block: DeviceBlock = delegate.arena.alloc(self.size, delegate.lease)
        self.staging: DeviceBlock | None = None
        try:
            if staging is not None:
                self.staging = staging.alloc(self.size)
            mapped = (self.staging or self.block).mapped
            assert mapped is not None, "unified memory and staging are mapped"
            self._raw = np.frombuffer(mapped, np.uint8)
            fitting = self.fitting(dict(enumerate(ports)))
            assert fitting is not None
            self.fit(fitting)
        except BaseException:
            self.close()
            raise
        self.addresses = [self.block.address + offset for offset in self._offsets]
        self._results = delegate.results

    def fitting(self, changed: Mapping[int, Port]) -> Fitting | None:
        """What `fit` needs for ports of other shapes; None where one of them is larger than its room."""
        found: Fitting = []
        shape: tuple[int, ...] | None = None
        dtype, element, length = "", np.dtype(np.uint8), 0
        for k, port in changed.items():
            capacity = self.capacity[k]
            if capacity is None:
                continue
            nbytes, offset = port.nbytes, self._offsets[k]
            if nbytes > capacity:
                return None
            if port.shape is not shape or port.dtype != dtype:  # the caches of all layers are alike
                shape, dtype = port.shape, port.dtype
                element = DTYPES[dtype].numpy
                # lengths are rounded up, so that few different copies are recorded
                length = 1 << max(nbytes - 1, 4095).bit_length()
            view = np.ndarray(shape, element, self._raw, offset)
            found.append((k, view, (offset, min(capacity, length)) if nbytes else None))
        return found

    def fit(self, fitting: Fitting) -> None:
        """Set ports that the memory is viewed as."""
        for k, view, span in fitting:
            self.views[k] = view
            if span != self._each[k]:
                self._used = None  # first: an interrupt may come between both
                self._each[k] = span

    def use(self, which: Sequence[int]) -> None:
        """Set the ``spans`` that a run copies between the host and the device: those of the ports ``which`` that it binds to the
        host."""
        if which == self._used:
            return
        self._used = None  # until the spans are set
        spans = [span for k in which if (span := self._each[k]) is not None]
        first, end = (spans[0][0], sum(spans[-1])) if spans else (0, 0)
        dense = 2 * sum(nbytes for _, nbytes in spans) >= end - first
        self.spans = ((first, end - first),) if spans and dense else tuple(spans)
        self._used = list(which)

    def copy(self, commands: CommandBuffer, down: bool) -> None:
        """Record the copy of the ports' ranges from (for results: to) the staging block."""
        assert self.staging is not None
        source, target = (self.block, self.staging) if down else (self.staging, self.block)
        for offset, nbytes in self.spans:
            commands.copy_buffer(source.buffer, target.buffer, nbytes, source.offset + offset, target.offset + offset)

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
        self.block.free()
