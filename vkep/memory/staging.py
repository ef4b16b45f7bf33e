"""The staging arena: host-visible ("pinned") memory between the host's arrays and device memory.

It is the same BFC arena, without streams: who stages waits for the copy before it frees (CUDA plugin EP arena allocator
design, section 3.4: the pinned arena is not stream-aware).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vkep.memory.device_arena import BufferArena, shared_arena

if TYPE_CHECKING:
    from gpu_shared.context import SharedGpuContext, SharedResource
    from gpu_shared.device import Device

STAGING_KINDS = ("upload", "download")


class StagingArena(BufferArena):
    """Mapped memory for one direction: ``"upload"`` (the host writes) or ``"download"`` (the host reads, cached)."""

    def __init__(self, device: Device, memory_kind: str) -> None:
        if memory_kind not in STAGING_KINDS:
            raise ValueError(f"StagingArena: memory_kind is {memory_kind!r}, expected one of {STAGING_KINDS}")
        super().__init__(device, memory_kind, label=f"{memory_kind} staging arena of {device.label}")


def shared_staging_arena(context: SharedGpuContext, memory_kind: str) -> SharedResource[StagingArena]:
    """One user's reference to the staging arena of ``context`` for one direction; see `shared_device_arena`."""
    key = ("staging arena", memory_kind)
    return shared_arena(context, key, lambda: StagingArena(context.device, memory_kind), None)
