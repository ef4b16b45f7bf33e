"""Staging memory for transfers in one direction: a ring of slots, each with the copies in flight from or to it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from gpu_shared.errors import GpuError
from vkep.memory.device_arena import BufferArena, DeviceBlock, shared_arena

if TYPE_CHECKING:
    from gpu_shared.commands import CommandBuffer
    from gpu_shared.context import SharedGpuContext
    from gpu_shared.device import Device
    from gpu_shared.lease import DelegateLease
    from gpu_shared.memory import Buffer
    from gpu_shared.resources import SharedResource
    from gpu_shared.timeline import PreparedSubmit


class Target(Protocol):
    """A range of bytes on the device: a `DeviceBlock` is one."""

    @property
    def buffer(self) -> Buffer:
        """The buffer that holds it."""

    @property
    def offset(self) -> int:
        """Bytes from the buffer's start."""

    @property
    def size(self) -> int:
        """Bytes."""

    @property
    def mapped(self) -> memoryview | None:
        """Its bytes where the host can map them, else None."""


#: device memory, a byte offset in it, one in the slot, and a number of bytes
Copy = tuple[Target, int, int, int]


class RingSlot:
    """One slot of a ring: staging memory, and the copies that were last submitted with it."""

    def __init__(self, lease: DelegateLease) -> None:
        self.block: DeviceBlock | None = None
        self.commands: CommandBuffer = lease.allocate(f"{lease.name} transfer")
        self.prepared: PreparedSubmit = lease.prepare([self.commands])
        self.value = 0  #: the timeline value of the copies in flight; 0: none
        #: of the last recording: whether no barrier precedes the copies, and these
        self.recorded: tuple[bool, list[tuple[Buffer, int, int, int]]] = False, []

    @property
    def bytes(self) -> np.ndarray[Any, Any]:
        """The staging memory, a uint8 array [size]."""
        assert self.block is not None
        mapped = self.block.mapped
        assert mapped is not None
        return np.frombuffer(mapped, np.uint8)

    def free(self) -> None:
        """Free the staging memory; the slot's copies must have ended."""
        if self.block is not None:
            self.block.free()
        self.block, self.recorded = None, (False, [])


class StagingRing:
    """``pieces`` slots for ``direction`` ("upload", "download"). Not thread-safe: its owner locks."""

    def __init__(self, lease: DelegateLease, direction: str, pieces: int) -> None:
        self._lease, self._direction, self._pieces = lease, direction, pieces
        self._slots: list[RingSlot] = []
        self._arena: StagingArena | None = None
        self._shared = ExitStack()

    def take(self, nbytes: int) -> RingSlot:
        """A slot that is not in flight, with at least ``nbytes`` of staging memory: a new one, or the oldest.

        Raises `ArenaOutOfMemory`, `DeviceLostError`.
        """
        if len(self._slots) < self._pieces:
            slot = RingSlot(self._lease)
        else:
            self._lease.wait(self._slots[0].value)
            slot = self._slots.pop(0)
        self._slots.append(slot)
        if slot.block is None or slot.block.size < nbytes:
            slot.free()
            if self._arena is None:
                shared = shared_staging_arena(self._lease, self._direction)
                self._arena = self._shared.enter_context(shared)
            slot.block = self._arena.alloc(nbytes)
        return slot

    def send(self, slot: RingSlot, copies: Sequence[Copy], wait_value: int | None) -> int:
        """Submit copies between a slot and the device; returns their timeline value. The recording is reused where the
        slot's last copies were the same, as in repeated runs."""
        block = slot.block
        assert block is not None
        wanted = [(t.buffer, t.offset + at, block.offset + start, nbytes) for t, at, start, nbytes in copies]
        # an upload that waits for a value of the timeline goes beside the runs after that value
        beside = self._direction == "upload" and wait_value is not None
        if (beside, wanted) != slot.recorded:
            slot.recorded = False, []  # in case that recording fails
            self._record(slot.commands, block.buffer, wanted, beside)
            slot.recorded = beside, wanted
        try:
            slot.value = self._lease.submit(slot.prepared, wait_value)
        except GpuError:  # possibly an error of a wait that follows
            slot.value = self._lease.context.timeline.submitted
            raise
        return slot.value

    def _record(
        self, commands: CommandBuffer, staging: Buffer, copies: Sequence[tuple[Buffer, int, int, int]], beside: bool
    ) -> None:
        commands.begin()
        if not beside:
            commands.barrier_before_transfer()
        for buffer, at, start, nbytes in copies:
            if self._direction == "upload":
                commands.copy_buffer(staging, buffer, nbytes, start, at)
            else:
                commands.copy_buffer(buffer, staging, nbytes, at, start)
        if self._direction == "upload":
            commands.barrier_after_transfer()
        else:
            commands.barrier_to_host()
        commands.end()

    @property
    def last_value(self) -> int:
        """The timeline value after which nothing is in flight."""
        return max((slot.value for slot in self._slots), default=0)

    def free_blocks(self) -> None:
        """Free the staging memory; nothing may be in flight."""
        for slot in self._slots:
            slot.free()
        if self._arena is not None:
            self._arena.shrink()

    def close(self) -> None:
        """Free everything; nothing may be in flight."""
        self.free_blocks()
        for slot in self._slots:
            slot.commands.close()
        self._slots.clear()
        self._arena = None
        self._shared.close()


STAGING_KINDS = ("upload", "download", "direct")


class StagingArena(BufferArena):
    """Mapped ("pinned") memory for one direction: ``"upload"`` (the host writes) or ``"download"`` (the host reads, cached); or
    ``"direct"``, the device's own, which the host writes.

    It is the same BFC arena, without streams: a user waits for the copy before it frees the block (CUDA plugin EP arena
    allocator design, section 3.4: the pinned arena is not stream-aware).

    Raises ``ValueError`` for another kind.
    """

    def __init__(self, device: Device, memory_kind: str) -> None:
        if memory_kind not in STAGING_KINDS:
            raise ValueError(f"StagingArena: memory_kind is {memory_kind!r}, expected one of {STAGING_KINDS}")
        super().__init__(device, memory_kind, label=f"{memory_kind} staging arena of {device.label}")


def shared_staging_arena(user: SharedGpuContext | DelegateLease, memory_kind: str) -> SharedResource[StagingArena]:
    """A reference to the staging arena of a context for one direction; see `shared_device_arena`."""
    key = ("staging arena", memory_kind)
    return shared_arena(user, key, lambda: StagingArena(user.device, memory_kind), None)
