"""Copies between host memory and device memory that recur in runs: prepared once for certain blocks, then a copy and a
submit.

ONNX Runtime passes the inputs of a run together, and its outputs, and their memory is the same from run to run (the
domain returns its lowest free block of a size first). So the staging memory and the recorded copies are kept for the
next run.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from vkep.arena.records import ArenaOutOfMemory
from vkep.memory.host_copy import LEAST, copy
from vkep.memory.staging_ring import StagingArena, shared_staging_arena
from vkep.memory.upload import PIECE_BYTES, Download, Upload, Uploader
from vkep.ort.boundary import ffi, lib

if TYPE_CHECKING:
    from gpu_shared.commands import CommandBuffer
    from gpu_shared.timeline import PreparedSubmit
    from vkep.device.tensor import ExternalBlock
    from vkep.memory.device_arena import DeviceBlock
    from vkep.ort.memory.domain import MemoryDomain

#: a device pointer, host memory (a cffi pointer), and bytes, more than 0
Item = tuple[int, Any, int]
#: larger copies are split: the host copies one piece while another is transferred
MOST_STAGED = PIECE_BYTES
_MOST_ROUTES = 16
_MOST_KEPT = 64 << 20  #: bytes of staging memory, in each direction
_ALIGNMENT = 16


def in_c(items: Sequence[Item]) -> tuple[Any, Any, int]:
    """Items as `Transfers.run` takes them: device pointers alternating with bytes, host pointers, and their number."""
    key = ffi.new("uint64_t[]", [number for pointer, _, nbytes in items for number in (pointer, nbytes)])
    return key, ffi.new("char *[]", [ffi.cast("char *", host) for _, host, _ in items]), len(items)


@dataclass(slots=True)
class Route:
    """The copies for certain blocks. ``places``: the host addresses of each item (a ``char *[]``)."""

    blocks: list[DeviceBlock | ExternalBlock]
    places: Any = None
    mapped: list[Any] = field(default_factory=list)  #: keeps the memory of ``places`` alive
    direct: bool = False  #: whether a place is in device memory itself
    long: bool = False  #: whether an item is long enough for several threads
    staging: DeviceBlock | None = None
    staged: int = 0  #: its total bytes
    commands: CommandBuffer | None = None
    prepared: PreparedSubmit | None = None  #: None: nothing uses staging memory
    value: int = 0  #: the timeline value of the latest copies

    def close(self) -> None:
        """Nothing may be in flight."""
        self.places, self.mapped, self.prepared = None, [], None
        if self.commands is not None:
            self.commands.close()
        if self.staging is not None:
            self.staging.free()


class Transfers:
    """The copies of one ``direction`` ("upload", "download") of a memory domain. Thread-safe."""

    def __init__(self, domain: MemoryDomain, direction: str, uploader: Uploader) -> None:
        self._domain, self.direction, self._uploader = domain, direction, uploader
        self._up = direction == "upload"
        self._routes: OrderedDict[bytes, Route] = OrderedDict()  #: routes that no thread is using
        self._kept = 0  #: the bytes of their staging memory
        self._shared = ExitStack()
        self._arena: StagingArena | None = None

    def run(self, key: Any, hosts: Any, count: int) -> None:
        """Copy ``count`` items, with one submit: ``key`` (``uint64_t[]``) has the device pointer and the bytes, more
        than 0, of each, ``hosts`` (``char *[]``) its host address. Uploaded bytes are visible to work that is submitted
        later, and their host memory may be freed; downloaded ones have arrived on return.

        Raises `ValueError` for a pointer into no block, `ArenaOutOfMemory`, `GpuError`.
        """
        domain = self._domain
        name = ffi.buffer(key, 16 * count)[:]
        with domain.lock:
            route = self._take(name)
            if route is not None and not all(map(domain.holds, route.blocks)):
                self._close(route)  # of blocks that were freed since
                route = None
            if route is None:
                found = [domain.find(key[2 * i]) for i in range(count)]
                sizes = [key[2 * i + 1] for i in range(count)]
                if sum(n for n, f in zip(sizes, found, strict=True) if f[0].mapped is None) > MOST_STAGED:
                    self._in_pieces(hosts, sizes, found)
                    return
                route = self._make(sizes, found)
        try:
            travel = self._send if self._up else self._fetch
            travel(route, key, hosts, count)
        finally:
            self._keep(name, route)

    def _send(self, route: Route, key: Any, hosts: Any, count: int) -> None:
        lease = self._domain.lease
        # earlier submits may still read the memory that the host writes now
        lease.wait(None if route.direct else route.value)
        _move(route, route.places, hosts, key, count)
        if route.prepared is not None:
            route.value = lease.submit(route.prepared)

    def _fetch(self, route: Route, key: Any, hosts: Any, count: int) -> None:
        lease = self._domain.lease
        if route.prepared is not None:
            route.value = lease.submit(route.prepared)
        lease.wait(None if route.direct else route.value)
        if route.staging is not None:
            route.staging.buffer.invalidate()
        _move(route, hosts, route.places, key, count)

    # ---- routes

    def _make(self, sizes: Sequence[int], found: Sequence[tuple[DeviceBlock | ExternalBlock, int]]) -> Route:
        route = Route([block for block, _ in found], ffi.new("char *[]", len(found)), long=max(sizes) >= LEAST)
        try:
            staged: list[tuple[int, int, int]] = []  # item, byte in the staging memory, bytes
            used = 0
            for number, (block, offset) in enumerate(found):
                mapped, nbytes = block.mapped, sizes[number]
                if mapped is None:
                    staged.append((number, used, nbytes))
                    used += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
                else:
                    route.mapped.append(ffi.from_buffer(mapped))
                    route.places[number] = route.mapped[-1] + offset
                    route.direct = True
            if staged:
                self._stage(route, found, staged, used)
        except BaseException:
            route.close()
            raise
        return route

    def _stage(
        self,
        route: Route,
        found: Sequence[tuple[DeviceBlock | ExternalBlock, int]],
        staged: Sequence[tuple[int, int, int]],
        nbytes: int,
    ) -> None:
        lease = self._domain.lease
        if self._arena is None:
            self._arena = self._shared.enter_context(shared_staging_arena(lease, self.direction))
        try:
            staging = route.staging = self._arena.alloc(nbytes)
        except ArenaOutOfMemory:
            if not self._routes:
                raise
            self._drop_routes()
            staging = route.staging = self._arena.alloc(nbytes)
        route.staged = nbytes
        memory = ffi.from_buffer(staging.mapped)
        route.mapped.append(memory)
        commands = route.commands = lease.allocate(f"onnxruntime {self.direction}")
        commands.begin()
        commands.barrier_before_transfer()
        for number, start, size in staged:
            block, offset = found[number]
            route.places[number] = memory + start
            host, device = (staging.buffer, staging.offset + start), (block.buffer, block.offset + offset)
            (source, source_at), (target, target_at) = (host, device) if self._up else (device, host)
            commands.copy_buffer(source, target, size, source_at, target_at)
        if self._up:
            commands.barrier_after_transfer()
        else:
            commands.barrier_to_host()
        commands.end()
        route.prepared = lease.prepare([commands])

    def _keep(self, key: bytes, route: Route) -> None:
        with self._domain.lock:
            if route.direct:  # it would keep a block in use, and saves nothing
                self._close(route)
                return
            self._drop(key)  # from a second thread, which copied the same items
            self._routes[key] = route
            self._kept += route.staged
            while len(self._routes) > _MOST_ROUTES or self._kept > _MOST_KEPT:
                self._drop(next(iter(self._routes)))

    def _close(self, route: Route) -> None:
        if route.value:
            self._domain.lease.wait_to_free(route.value)
        route.close()

    def _in_pieces(
        self, hosts: Any, sizes: Sequence[int], found: Sequence[tuple[DeviceBlock | ExternalBlock, int]]
    ) -> None:
        arrays = [np.frombuffer(ffi.buffer(hosts[i], n), np.uint8) for i, n in enumerate(sizes)]
        if self._up:
            uploads = [Upload(b, data, data.nbytes, at) for (b, at), data in zip(found, arrays, strict=True)]
            self._uploader.upload_all(uploads, sum(sizes), wait_value=self._domain.lease.context.timeline.submitted)
        else:
            downloads = [Download(b, out, at) for (b, at), out in zip(found, arrays, strict=True)]
            self._uploader.download_all(downloads)

    # ---- life

    def trim(self) -> None:
        """Free staging memory and recorded copies; later copies create them again."""
        with self._domain.lock:
            self._drop_routes()
            if self._arena is not None:
                self._arena.shrink()

    def _take(self, key: bytes) -> Route | None:
        route = self._routes.pop(key, None)
        if route is not None:
            self._kept -= route.staged
        return route

    def _drop(self, key: bytes) -> None:
        route = self._take(key)
        if route is not None:
            self._close(route)

    def _drop_routes(self) -> None:
        for key in list(self._routes):
            self._drop(key)

    def close(self) -> None:
        """Free all staging memory; no copy may follow."""
        self.trim()
        self._arena = None
        self._shared.close()


def _move(route: Route, targets: Any, sources: Any, key: Any, count: int) -> None:
    """Copy each item on the host: in C, or with helping threads for long ones."""
    if not route.long:
        lib.vkep_copy_all(targets, sources, key, count)
        return
    for i in range(count):
        nbytes = key[2 * i + 1]
        target, source = (np.frombuffer(ffi.buffer(at[i], nbytes), np.uint8) for at in (targets, sources))
        copy(target, source)
