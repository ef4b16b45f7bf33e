"""Host bytes to device blocks and back, in pieces through a bounded ring of staging memory.

A piece is copied into mapped memory while the device copies the one before it, so that any number of bytes passes
through two pieces of staging and a weight is never held twice on the host: a memory-mapped array is read page by page.
Where the host sees the device memory itself (unified memory) the ring is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from threading import Lock
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from vkep.memory.device_arena import DeviceBlock
from vkep.memory.pieces import as_bytes, check_range, pieces_of, size_of
from vkep.memory.staging import StagingArena, shared_staging_arena

if TYPE_CHECKING:
    from gpu_shared.commands import CommandBuffer
    from gpu_shared.lease import DelegateLease
    from gpu_shared.memory import Buffer
    from gpu_shared.timeline import PreparedSubmit
    from vkep.memory.pieces import HostData

PIECE_BYTES = 16 << 20
PIECES = 2


class Target(Protocol):
    """Where bytes lie on the device: a `DeviceBlock` is one."""

    @property
    def buffer(self) -> Buffer: ...
    @property
    def offset(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def mapped(self) -> memoryview | None: ...


#: ``progress(bytes_done, bytes_total, label)``, called after each piece; what it raises stops the transfer
Progress = Callable[[int, int, str], None]


@dataclass(slots=True)
class Upload:
    """One upload of many: ``data``, or a function that opens it in its turn, to byte ``offset`` of ``target``. Items of no
    more than a piece are asked first to ``fill`` as many uint8s, in memory that the device reads; False: they did not.
    """

    target: Target
    data: HostData | Callable[[], HostData]
    nbytes: int
    offset: int = 0
    label: str = ""
    fill: Callable[[np.ndarray[Any, Any]], bool] | None = None


class _Slot:
    """One piece of the ring: staging memory, and the command buffer of the copy in flight."""

    def __init__(self, lease: DelegateLease) -> None:
        self.block: DeviceBlock | None = None
        self.commands: CommandBuffer = lease.allocate(f"{lease.name} transfer")
        self.prepared: PreparedSubmit = lease.prepare([self.commands])
        self.value = 0  #: the timeline value of the copy in flight; 0: none


@dataclass(slots=True)
class _Outgoing:
    """Pieces in staging memory that leave in one submit: where each goes, where it lies, and its size."""

    slot: _Slot | None = None
    room: int = 0
    used: int = 0
    copies: list[tuple[Target, int, int, int]] = field(default_factory=list)

    def take(self, target: Target, at: int, nbytes: int) -> None:
        """Note bytes that were written, unless they are where they belong."""
        if target.mapped is None:
            self.copies.append((target, at, self.used, nbytes))
            self.used += nbytes


class Uploader:
    """Transfers for one delegate; one at a time (it locks), and not while another thread records with the lease's pool.

    Args:
        lease: whose command pool, queue order and sync mode the copies use.
        piece_bytes: most bytes of one staging piece, 4096 or more.
        pieces: pieces in flight, 1 or more; host memory stays below ``pieces * piece_bytes`` in each direction.

    It holds staging memory from the context's shared staging arenas until ``close`` (or ``trim``).
    """

    def __init__(self, lease: DelegateLease, *, piece_bytes: int = PIECE_BYTES, pieces: int = PIECES) -> None:
        for name, value, least in (("piece_bytes", piece_bytes, 4096), ("pieces", pieces, 1)):
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"Uploader: {name}: expected an int, got {type(value).__name__}")
            if value < least:
                raise ValueError(f"Uploader: {name}: expected {least} or more, got {value}")
        self._lease = lease
        self._piece_bytes = piece_bytes
        self._pieces = pieces
        self._lock = Lock()
        self._closed = False
        self._rings: dict[str, list[_Slot]] = {"upload": [], "download": []}
        self._arenas: dict[str, StagingArena] = {}
        self._shared = ExitStack()

    # ---- to the device ----

    def upload(
        self,
        target: Target,
        data: HostData,
        *,
        offset: int = 0,
        label: str = "",
        wait_value: int | None = None,
        progress: Progress | None = None,
    ) -> int:
        """Copy ``data`` (in C order) to byte ``offset`` of ``target``.

        ``data`` may be dropped on return. The lease's later submits see it, and those that wait for the returned value.

        Args:
            wait_value: the timeline value after which nothing touches the target; None: nothing does.

        Returns:
            The timeline value at which the bytes are there (0: they are there now).

        Raises:
            ValueError, TypeError: bytes beyond the target, or data that is no buffer.
            ArenaOutOfMemory: no staging memory. GpuError: the device failed.
        """
        item = Upload(target, data, size_of(data), offset, label)
        return self.upload_all([item], item.nbytes, wait_value=wait_value, progress=progress)

    def upload_all(
        self,
        items: Iterable[Upload],
        bytes_total: int,
        *,
        wait_value: int | None = None,
        progress: Progress | None = None,
    ) -> int:
        """Upload one item after the other, small ones together; ``progress`` counts over all of them up to ``bytes_total``,
        which the items' sizes should sum to.

        Raises: as ``upload``; what was handed to the device before stays there.
        """
        done, outgoing = 0, _Outgoing()
        with self._lock:
            self._check_open()
            for item in items:
                for nbytes in self._upload_item(item, wait_value, outgoing, bytes_total - done):
                    done += nbytes
                    if progress is not None:
                        progress(done, bytes_total, item.label)
            return self._submit(outgoing, wait_value)

    def _upload_item(self, item: Upload, wait_value: int | None, outgoing: _Outgoing, rest: int) -> Iterator[int]:
        """Write one item to its target, or to where it leaves from: the bytes of each piece, of ``rest`` in all. Its data is
        let go before the next item's opens.
        """
        target, at = item.target, item.offset
        check_range("upload", target, at, item.nbytes, item.label)
        if target.mapped is not None and wait_value is not None:
            self._lease.wait(wait_value)
        if item.fill is not None and 0 < item.nbytes <= self._piece_bytes:
            place = self._place(target, at, item.nbytes, wait_value, outgoing, rest)
            if item.fill(place):
                outgoing.take(target, at, item.nbytes)
                yield item.nbytes
                return
        data = item.data() if callable(item.data) else item.data
        found = size_of(data)
        if found != item.nbytes:
            raise ValueError(f"upload of {item.label!r}: {item.nbytes} bytes announced, the data has {found}")
        for piece in pieces_of(data, self._piece_bytes):
            np.copyto(self._place(target, at, piece.size, wait_value, outgoing, rest), piece)
            outgoing.take(target, at, piece.size)
            at += piece.size
            rest -= piece.size
            yield piece.size

    def _place(
        self, target: Target, at: int, nbytes: int, wait_value: int | None, outgoing: _Outgoing, rest: int
    ) -> np.ndarray[Any, Any]:
        """Where to write bytes for ``at`` of a target: there, or staging memory, which is sent first where it is full."""
        if target.mapped is not None:
            return np.frombuffer(target.mapped, np.uint8)[at : at + nbytes]
        if outgoing.slot is not None and outgoing.used + nbytes > outgoing.room:
            self._submit(outgoing, wait_value)
        if outgoing.slot is None:
            wanted = max(nbytes, min(rest, self._piece_bytes))
            outgoing.slot, outgoing.room = self._slot("upload", wanted), wanted
        assert outgoing.slot.block is not None
        staging = outgoing.slot.block.mapped
        assert staging is not None
        return np.frombuffer(staging, np.uint8)[outgoing.used : outgoing.used + nbytes]

    def _submit(self, outgoing: _Outgoing, wait_value: int | None) -> int:
        """Hand what is in staging memory to the device; the timeline value at which it is there (0: nothing was)."""
        slot, outgoing.slot = outgoing.slot, None
        if slot is None:
            return 0
        block, commands = slot.block, slot.commands
        assert block is not None
        commands.begin(one_time=True)
        commands.barrier_before_transfer()
        for target, at, start, nbytes in outgoing.copies:
            commands.copy_buffer(block.buffer, target.buffer, nbytes, block.offset + start, target.offset + at)
        commands.barrier_after_transfer()
        commands.end()
        outgoing.used = 0
        outgoing.copies.clear()
        slot.value = self._lease.submit(slot.prepared, wait_value)
        return slot.value

    # ---- from the device ----

    def download(
        self,
        source: Target,
        out: np.ndarray[Any, Any],
        *,
        offset: int = 0,
        label: str = "",
        wait_value: int | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Fill ``out`` (C-contiguous, writable) from byte ``offset`` of ``source``; returns when all bytes are there.

        Args:
            wait_value: the timeline value at which the source is written; None: the last submit's.

        Raises:
            ValueError, TypeError: ``out`` does not fit.
            ArenaOutOfMemory: no staging memory. GpuError: the device failed.
        """
        if not isinstance(out, np.ndarray):
            raise TypeError(f"download of {label!r}: out: expected a numpy array, got {type(out).__name__}")
        if not out.flags.c_contiguous or not out.flags.writeable:
            raise ValueError(f"download of {label!r}: out: expected a C-contiguous, writable array; copy it before")
        check_range("download", source, offset, out.nbytes, label)
        target = as_bytes(out)
        with self._lock:
            self._check_open()
            if not target.size:
                return
            mapped = source.mapped
            if mapped is not None:
                self._lease.wait(wait_value)
                for start in range(0, target.size, self._piece_bytes):
                    end = min(start + self._piece_bytes, target.size)
                    target[start:end] = np.frombuffer(mapped, np.uint8)[offset + start : offset + end]
                    if progress is not None:
                        progress(end, target.size, label)
                return
            waiting: list[tuple[_Slot, int, int]] = []
            for start in range(0, target.size, self._piece_bytes):
                if len(waiting) == self._pieces:
                    self._receive(*waiting.pop(0), target, label, progress)
                end = min(start + self._piece_bytes, target.size)
                waiting.append((self._fetch(source, offset + start, end - start, wait_value), start, end))
            for slot, start, end in waiting:
                self._receive(slot, start, end, target, label, progress)

    def _fetch(self, source: Target, at: int, nbytes: int, wait_value: int | None) -> _Slot:
        slot = self._slot("download", nbytes)
        block, commands = slot.block, slot.commands
        assert block is not None
        commands.begin(one_time=True)
        commands.barrier_before_transfer()
        commands.copy_buffer(source.buffer, block.buffer, nbytes, source.offset + at, block.offset)
        commands.barrier_to_host()
        commands.end()
        slot.value = self._lease.submit(slot.prepared, wait_value)
        return slot

    def _receive(
        self,
        slot: _Slot,
        start: int,
        end: int,
        target: np.ndarray[Any, Any],
        label: str,
        progress: Progress | None,
    ) -> None:
        self._lease.wait(slot.value)
        block = slot.block
        assert block is not None
        block.buffer.invalidate()
        staging = block.mapped
        assert staging is not None
        target[start:end] = np.frombuffer(staging, np.uint8)[: end - start]
        if progress is not None:
            progress(end, target.size, label)

    # ---- the ring ----

    def finish(self) -> None:
        """Wait until every upload has arrived. Raises `DeviceLostError`."""
        with self._lock:
            self._finish()

    def trim(self) -> None:
        """Wait, and give the staging memory back to its arenas (a later transfer takes it anew)."""
        with self._lock:
            self._finish()
            self._free_blocks()

    def close(self) -> None:
        """Wait for what is in flight, and give everything back. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            try:
                self._finish()
            finally:  # a lost device touches nothing any more
                self._free_blocks()
                for ring in self._rings.values():
                    for slot in ring:
                        slot.commands.close()
                    ring.clear()
                self._arenas.clear()
                self._shared.close()

    def __enter__(self) -> Uploader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError(f"the uploader of lease {self._lease.name!r} is closed")

    def _finish(self) -> None:
        value = max((slot.value for ring in self._rings.values() for slot in ring), default=0)
        if value:
            self._lease.wait(value)

    def _free_blocks(self) -> None:
        for ring in self._rings.values():
            for slot in ring:
                if slot.block is not None:
                    slot.block.free()
                    slot.block = None
        for arena in self._arenas.values():
            arena.shrink()

    def _slot(self, direction: str, nbytes: int) -> _Slot:
        """A slot that is not in flight, with at least ``nbytes`` of staging memory: a new one, or the oldest."""
        ring = self._rings[direction]
        if len(ring) < self._pieces:
            slot = _Slot(self._lease)
        else:
            slot = ring.pop(0)
            if slot.value:
                self._lease.wait(slot.value)
        ring.append(slot)
        if slot.block is None or slot.block.size < nbytes:
            if slot.block is not None:
                slot.block.free()
                slot.block = None
            slot.block = self._arena(direction).alloc(nbytes)
        return slot

    def _arena(self, direction: str) -> StagingArena:
        arena = self._arenas.get(direction)
        if arena is None:
            shared = shared_staging_arena(self._lease.context, direction)
            arena = self._arenas[direction] = self._shared.enter_context(shared)
        return arena
