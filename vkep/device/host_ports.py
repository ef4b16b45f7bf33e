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
Spans = tuple[tuple[int, int], ...]


class HostPorts:
    """A dense region of the input (or output) ports that the host binds.

    On unified memory the host maps the device memory itself; otherwise the GPU copies to or from a staging block.
    """

    def __init__(
        self,
        delegate: VulkanDelegate,
        ports: Sequence[Port],
        room: Sequence[int | None],
        staging: StagingArena | None,
    ) -> None:
        """``room``: the largest bytes of each port, None where the host does not bind it; `fit` must succeed before use."""
        self.room, self._offsets, size = tuple(room), list[int](), 0
        for nbytes in room:
            self._offsets.append(size)
            size += 0 if nbytes is None else align(max(nbytes, 1))
        self.size = max(size, 1)
        self.views: list[Array] = [np.empty(0, np.uint8)] * len(ports)
        self._fitted: list[Port | None] = [None] * len(ports)  # the ports that the views are for
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
            self.fit(dict(enumerate(ports)))
        except BaseException:
            self.close()
            raise
        self.addresses = [self.block.address + offset for offset in self._offsets]
        self._results = delegate.results

    def fit(self, changed: Mapping[int, Port]) -> bool:
        """Set ports that the memory is viewed as; False where one of them is larger than its room."""
        bound = [(k, port) for k, port in changed.items() if self.room[k] is not None]
        if any(port.nbytes > (self.room[k] or 0) for k, port in bound):
            return False
        for k, port in bound:
            offset = self._offsets[k]
            self.views[k] = self._raw[offset : offset + port.nbytes].view(DTYPES[port.dtype].numpy).reshape(port.shape)
            self._fitted[k] = port
        self._used = None
        return True

    def use(self, which: Sequence[int]) -> None:
        """Set the ``spans`` that a run copies between the host and the device: those of the ports ``which`` that it binds to the
        host. Lengths are rounded up, so that few different copies are recorded.
        """
        if which == self._used:
            return
        spans: list[tuple[int, int]] = []
        for k in which:
            port, room = self._fitted[k], self.room[k]
            if port is not None and room and port.nbytes:
                spans.append((self._offsets[k], min(room, 1 << max(port.nbytes - 1, 4095).bit_length())))
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
