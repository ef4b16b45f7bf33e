"""Weights on a device: each content once, however many sessions use it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from vkep.graph.weights import ArrayWeight, Weight
from vkep.memory.device_arena import DeviceArena, DeviceBlock
from vkep.memory.upload import Upload, Uploader
from vkep.plan.memory import align
from vkep.plan.records import ConstantRef

if TYPE_CHECKING:
    from gpu_shared.lease import DelegateLease
    from gpu_shared.memory import Buffer
    from gpu_shared.resources import SharedResource

#: ``progress(bytes_done, bytes_total, label)``
Progress = Callable[[int, int, str], None]
#: Most bytes of weights put into one allocation.
BLOCK_BYTES = 256 << 20


@dataclass
class _Batch:
    """Constants that were uploaded together share an allocation, which is freed with the last of them."""

    block: DeviceBlock
    keys: set[str] = field(default_factory=set)


@dataclass
class _Entry:
    address: int
    offset: int
    nbytes: int
    batch: _Batch
    users: int = 0


class ConstantStore:
    """The constants of one context, by content key. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # an upload that lacks memory may have other plans release their constants
        self._entries: dict[str, _Entry] = {}

    def acquire(
        self,
        refs: Sequence[ConstantRef],
        weights: Mapping[str, Weight],
        arena: DeviceArena,
        uploader: Uploader,
        progress: Progress | None = None,
    ) -> ConstantSet:
        """Return the addresses of the constants, after uploading those that are not resident.

        Raises `ArenaOutOfMemory`, `GpuError`; then no reference is held.
        """
        with self._lock:
            missing = [r for r in refs if r.key not in self._entries]
            present = [r.key for r in refs if r.key in self._entries]
            self._hold(present)  # first: what makes room for the others does not release them
            try:
                if missing:
                    self._upload(missing, weights, arena, uploader, progress)
            except BaseException:
                self._release(present)
                raise
            self._hold([r.key for r in missing])
            entries = [self._entries[r.key] for r in refs]
        return ConstantSet(self, [r.key for r in refs], [e.address for e in entries], [_place(e) for e in entries])

    def _upload(
        self,
        refs: Sequence[ConstantRef],
        weights: Mapping[str, Weight],
        arena: DeviceArena,
        uploader: Uploader,
        progress: Progress | None,
    ) -> None:
        made: dict[str, _Entry] = {}
        batches: list[_Batch] = []
        uploads: list[Upload] = []
        try:
            for group in _groups(refs):
                batch = _Batch(arena.reserve(sum(align(max(r.nbytes, 1)) for r in group)))
                batches.append(batch)
                offset = 0
                for ref in group:
                    made[ref.key] = _Entry(batch.block.address + offset, offset, ref.nbytes, batch)
                    batch.keys.add(ref.key)
                    if ref.nbytes:
                        uploads.append(_upload(weights[ref.key], ref, batch.block, offset))
                    offset += align(max(ref.nbytes, 1))
            uploader.upload_all(uploads, sum(u.nbytes for u in uploads), progress=progress)
            uploader.finish()
            uploader.trim()
        except BaseException:
            uploader.wait_to_free()  # a copy in flight must not write to memory that has a new owner
            for batch in batches:
                batch.block.free()
            raise
        self._entries.update(made)

    def _hold(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._entries[key].users += 1

    def _release(self, keys: Sequence[str]) -> None:
        with self._lock:
            for key in keys:
                entry = self._entries[key]
                entry.users -= 1
                if entry.users == 0:
                    del self._entries[key]
                    entry.batch.keys.discard(key)
                    if not entry.batch.keys:
                        entry.batch.block.free()

    @property
    def users(self) -> dict[str, int]:
        """Number of plans that use each constant on the device, by key."""
        with self._lock:
            return {key: entry.users for key, entry in self._entries.items()}

    @property
    def resident(self) -> dict[str, int]:
        """Bytes of each constant that is on the device, by key."""
        with self._lock:
            return {key: entry.nbytes for key, entry in self._entries.items()}


@dataclass(frozen=True)
class BufferPlace:
    """Where a constant is stored: a buffer and an offset in it."""

    buffer: Buffer
    offset: int


def _place(entry: _Entry) -> BufferPlace:
    return BufferPlace(entry.batch.block.buffer, entry.batch.block.offset + entry.offset)


class ConstantSet:
    """One user's references to its constants; ``addresses`` and ``places`` have the order of the request."""

    def __init__(
        self, store: ConstantStore, keys: Sequence[str], addresses: Sequence[int], places: Sequence[BufferPlace]
    ) -> None:
        self._store: ConstantStore | None = store
        self._keys = keys
        self.addresses, self.places = addresses, places

    def close(self) -> None:
        """Release the references. A constant without users is freed."""
        store, self._store = self._store, None
        if store is not None:
            store._release(self._keys)

    def close_at_once(self) -> bool:
        """As `close`, where another thread does not use the store; else return False."""
        store = self._store
        if store is None or not store._lock.acquire(blocking=False):
            return False
        try:
            self.close()
        finally:
            store._lock.release()
        return True


def shared_constants(user: DelegateLease) -> SharedResource[ConstantStore]:
    """Take one user's reference to the constants of a context."""
    return user.shared_resource("vkep.constants", ConstantStore)


def _groups(refs: Sequence[ConstantRef]) -> list[list[ConstantRef]]:
    groups: list[list[ConstantRef]] = []
    room = 0
    for ref in refs:
        size = align(max(ref.nbytes, 1))
        if not groups or size > room:
            groups.append([])
            room = max(BLOCK_BYTES, size)
        groups[-1].append(ref)
        room -= size
    return groups


def _upload(weight: Weight, ref: ConstantRef, block: DeviceBlock, offset: int) -> Upload:
    def data() -> np.ndarray:
        return np.ascontiguousarray(weight.array()).reshape(-1).view(np.uint8)

    def copied(out: np.ndarray, start: int) -> None:
        out[:] = data()[start : start + out.size]

    stored = weight.stored
    # of an array in another order each part would copy the whole
    in_parts = isinstance(weight, ArrayWeight) and weight.array().flags.c_contiguous
    fill = copied if in_parts else None if stored is None else stored.read_into
    return Upload(block, data, ref.nbytes, offset, ref.label, fill=fill)
