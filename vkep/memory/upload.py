"""Host bytes to device blocks and back, in pieces through a bounded ring of staging memory.

A piece is copied into mapped memory while the device copies the one before it, so that any number of bytes passes
through two slots of staging memory, and the host never holds a weight twice: a memory-mapped array is read page by
page. Where the host can map the device memory itself (unified memory) the ring is not used.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, field
from threading import Lock
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from vkep.memory.host_chunks import check_range, pieces_of, size_of
from vkep.memory.host_copy import copy
from vkep.memory.staging_ring import Copy, RingSlot, StagingRing, Target
from vkep.threads import Threads, made_ahead

if TYPE_CHECKING:
    from gpu_shared.lease import DelegateLease
    from vkep.memory.host_chunks import HostData

PIECE_BYTES = 16 << 20
PIECES = 2
#: Number of threads that copy weights from the model's file to staging memory (one does not saturate the bus), and the
#: most bytes that one copies at once.
READERS, READ_BYTES = min(4, os.cpu_count() or 1), 2 << 20

#: ``progress(bytes_done, bytes_total, label)``, called after each piece; an exception in it stops the transfer
Progress = Callable[[int, int, str], None]


@dataclass(slots=True)
class Upload:
    """One of several uploads: ``data``, or a function that returns it, which a thread calls ahead, to byte ``offset`` of
    ``target``. ``fill(out, start)``, in place of the data, writes its bytes from ``start`` on to uint8s of memory that
    the device reads; several threads call it at once, for parts of an item."""

    target: Target
    data: HostData | Callable[[], HostData]
    nbytes: int
    offset: int = 0
    label: str = ""
    fill: Callable[[np.ndarray[Any, Any], int], None] | None = None


@dataclass(slots=True)
class Download:
    """One of several downloads: from byte ``offset`` of ``source`` to ``out``, contiguous and writable."""

    source: Target
    out: np.ndarray[Any, Any]
    offset: int = 0
    label: str = ""


@dataclass(slots=True)
class _Outgoing:
    """Pieces in staging memory that are submitted together: the target, the position and the size of each."""

    arrived: Callable[[int, str], None]  #: called with the bytes and label of each written item
    slot: RingSlot | None = None
    room: int = 0
    used: int = 0
    copies: list[Copy] = field(default_factory=list)
    _readers: Threads | None = None
    #: parts that threads are filling: bytes, label, and the work
    _filling: deque[tuple[int, str, Future[None]]] = field(default_factory=deque)

    def __enter__(self) -> _Outgoing:
        return self

    def __exit__(self, *exc: object) -> None:
        """After this no thread writes to staging memory."""
        if self._readers is not None:
            self._readers.shutdown(cancel_futures=True)

    def take(self, target: Target, at: int, nbytes: int) -> None:
        """Add bytes that are written, unless they are already at their destination."""
        if target.mapped is not None:
            return
        if (
            self.copies and (last := self.copies[-1])[0] is target and last[1] + last[3] == at
        ):  # the next part of an item
            self.copies[-1] = (target, last[1], last[2], last[3] + nbytes)
        else:
            self.copies.append((target, at, self.used, nbytes))
        self.used += nbytes

    def fill(
        self,
        label: str,
        how: Callable[[np.ndarray[Any, Any], int], None],
        place: np.ndarray[Any, Any],
        start: int,
    ) -> None:
        """Have a thread fill a part of an item."""
        if self._readers is None:
            self._readers = Threads(READERS, thread_name_prefix="vkep-read")
        self._filling.append((place.size, label, self._readers.submit(how, place, start)))
        self.finish_filling(2 * READERS)

    def finish_filling(self, left: int = 0) -> None:
        """Wait until at most ``left`` parts are being filled."""
        while len(self._filling) > left:
            nbytes, label, filled = self._filling.popleft()
            filled.result()
            self.arrived(nbytes, label)


@dataclass(slots=True)
class _Incoming:
    """Pieces that one submit brings to the host: their copies, and the destination of each."""

    used: int = 0
    copies: list[Copy] = field(default_factory=list)
    outs: list[tuple[np.ndarray[Any, Any], str]] = field(default_factory=list)


class Uploader:
    """Transfers for one delegate; one at a time (it locks), and not while another thread records with the lease's pool.

    Args:
        lease: whose command pool, queue order and sync mode the copies use.
        piece_bytes: most bytes of one staging piece, 4096 or more.
        pieces: pieces in flight, 1 or more; host memory stays below ``pieces * piece_bytes`` in each direction.

    It holds blocks of the context's shared staging arenas until ``close`` (or ``trim``).

    Raises ``TypeError``, ``ValueError`` for sizes that are not allowed.
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
        self._up, self._down = (StagingRing(lease, direction, pieces) for direction in ("upload", "download"))

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

        ``data`` may be dropped on return. The bytes are visible to later submits of the lease, and to submits that wait
        for the returned value.

        Args:
            wait_value: the timeline value after which nothing accesses the target; None: nothing does now.

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

        Raises: as ``upload``; uploads that were submitted before stay valid.
        """
        done, rest = 0, bytes_total

        def arrived(nbytes: int, label: str) -> None:
            nonlocal done
            done += nbytes
            if progress is not None:
                progress(done, bytes_total, label)

        with self._lock, _Outgoing(arrived) as outgoing:
            self._check_open()
            # packing weights takes longer than copying them
            items = list(items)
            makes = [(item.data if callable(item.data) and item.fill is None else None, item.nbytes) for item in items]
            with closing(made_ahead(makes)) as made:
                for item, data in zip(items, made, strict=True):
                    self._upload_item(item, item.data if data is None else data, wait_value, outgoing, rest)
                    rest -= item.nbytes
            return self._submit(outgoing, wait_value)

    def _upload_item(self, item: Upload, data: Any, wait_value: int | None, outgoing: _Outgoing, rest: int) -> None:
        """Write one item to its target, or to staging memory; ``rest`` bytes follow it."""
        target, at = item.target, item.offset
        check_range("upload", target, at, item.nbytes, item.label)
        if target.mapped is not None and wait_value is not None:
            self._lease.wait(wait_value)
        if item.fill is not None:
            each = min(READ_BYTES, self._piece_bytes)
            for start in range(0, item.nbytes, each):
                nbytes = min(each, item.nbytes - start)
                place = self._place(target, at + start, nbytes, wait_value, outgoing, rest - start)
                outgoing.take(target, at + start, nbytes)
                outgoing.fill(item.label, item.fill, place, start)
            return
        for piece in pieces_of(_checked(item, data), self._piece_bytes):
            copy(self._place(target, at, piece.size, wait_value, outgoing, rest), piece)
            outgoing.take(target, at, piece.size)
            at += piece.size
            rest -= piece.size
            outgoing.arrived(piece.size, item.label)

    def _place(
        self, target: Target, at: int, nbytes: int, wait_value: int | None, outgoing: _Outgoing, rest: int
    ) -> np.ndarray[Any, Any]:
        """Where to write bytes for ``at`` of a target: the target itself, or staging memory, which is submitted first
        where it is full."""
        if target.mapped is not None:
            return np.frombuffer(target.mapped, np.uint8)[at : at + nbytes]
        if outgoing.slot is not None and outgoing.used + nbytes > outgoing.room:
            self._submit(outgoing, wait_value)
        if outgoing.slot is None:
            wanted = max(nbytes, min(rest, self._piece_bytes))
            outgoing.slot, outgoing.room = self._up.take(wanted), wanted
        return outgoing.slot.bytes[outgoing.used : outgoing.used + nbytes]

    def _submit(self, outgoing: _Outgoing, wait_value: int | None) -> int:
        """Submit the copies from staging memory; returns the timeline value at which they end (0: there were none)."""
        outgoing.finish_filling()
        slot, outgoing.slot = outgoing.slot, None
        if slot is None:
            return 0
        copies, outgoing.copies, outgoing.used = outgoing.copies, [], 0
        return self._up.send(slot, copies, wait_value)

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
        """Fill ``out`` (C-contiguous, writable) from byte ``offset`` of ``source``; returns when all bytes have
        arrived.

        Args:
            wait_value: the timeline value at which the source is written; None: the last submit's.

        Raises:
            ValueError, TypeError: ``out`` does not fit.
            ArenaOutOfMemory: no staging memory. GpuError: the device failed.
        """
        self.download_all([Download(source, out, offset, label)], wait_value=wait_value, progress=progress)

    def download_all(
        self, items: Sequence[Download], *, wait_value: int | None = None, progress: Progress | None = None
    ) -> None:
        """Fill each item's ``out``, small ones together; returns when all bytes have arrived. ``progress`` counts over
        all items.

        Raises: as ``download``; then the arrays' content is undefined.
        """
        for item in items:
            _check_out(item)
        total, done = sum(item.out.nbytes for item in items), 0
        flying: deque[tuple[RingSlot, _Incoming]] = deque()
        incoming = _Incoming()

        def arrived(nbytes: int, label: str) -> None:
            nonlocal done
            done += nbytes
            if progress is not None:
                progress(done, total, label)

        def receive() -> None:
            slot, landed = flying.popleft()
            self._lease.wait(slot.value)
            assert slot.block is not None
            slot.block.buffer.invalidate()
            for (_, _, start, nbytes), (out, label) in zip(landed.copies, landed.outs, strict=True):
                copy(out, slot.bytes[start : start + nbytes])
                arrived(nbytes, label)

        def fetch() -> None:
            nonlocal incoming
            if len(flying) == self._pieces:
                receive()
            slot = self._down.take(incoming.used)
            self._down.send(slot, incoming.copies, wait_value)
            flying.append((slot, incoming))
            incoming = _Incoming()

        with self._lock:
            self._check_open()
            if any(item.source.mapped is not None and item.out.size for item in items):
                self._lease.wait(wait_value)
            for item in items:
                mapped, at = item.source.mapped, item.offset
                for piece in pieces_of(item.out, self._piece_bytes):
                    if mapped is not None:
                        copy(piece, np.frombuffer(mapped, np.uint8)[at : at + piece.size])
                        arrived(piece.size, item.label)
                    else:
                        if incoming.used + piece.size > self._piece_bytes:
                            fetch()
                        incoming.copies.append((item.source, at, incoming.used, piece.size))
                        incoming.outs.append((piece, item.label))
                        incoming.used += piece.size
                    at += piece.size
            if incoming.used:
                fetch()
            while flying:
                receive()

    # ---- the ring ----

    def finish(self) -> None:
        """Wait until every upload has arrived. Raises `DeviceLostError`."""
        with self._lock:
            self._finish(self._lease.wait)

    def wait_to_free(self) -> None:
        """Wait for submits in flight whose targets are freed afterwards. Raises as `Timeline.wait_to_free`."""
        with self._lock:
            self._finish(self._lease.wait_to_free)

    def trim(self) -> None:
        """Wait, and return the staging memory to its arenas (a later transfer allocates it again)."""
        with self._lock:
            self._finish(self._lease.wait)
            self._up.free_blocks()
            self._down.free_blocks()

    def close(self) -> None:
        """Wait for submits in flight, and free everything. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._finish(self._lease.wait_to_free)
            self._closed = True
            self._up.close()
            self._down.close()

    def __enter__(self) -> Uploader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError(f"the uploader of lease {self._lease.name!r} is closed")

    def _finish(self, wait: Callable[[int], None]) -> None:
        value = max(self._up.last_value, self._down.last_value)
        if value:
            wait(value)


def _checked(item: Upload, data: HostData) -> HostData:
    found = size_of(data)
    if found != item.nbytes:
        raise ValueError(f"upload of {item.label!r}: {item.nbytes} bytes announced, the data has {found}")
    return data


def _check_out(item: Download) -> None:
    out = item.out
    if not isinstance(out, np.ndarray):
        raise TypeError(f"download of {item.label!r}: out: expected a numpy array, got {type(out).__name__}")
    if not out.flags.c_contiguous or not out.flags.writeable:
        raise ValueError(f"download of {item.label!r}: out: expected a C-contiguous, writable array; copy it before")
    check_range("download", item.source, item.offset, out.nbytes, item.label)
