"""Memory for the temporary buffers of a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vkep.memory.device_arena import DeviceBlock

if TYPE_CHECKING:
    from vkep.device.delegate import VulkanDelegate


class Slab:
    """Memory for temporary buffers: one block, or several of ``piece`` bytes where a device buffer cannot be larger."""

    __slots__ = ("_piece", "blocks", "size")

    def __init__(self, nbytes: int, piece: int, delegate: VulkanDelegate) -> None:
        self.size, self._piece = nbytes, piece
        self.blocks: list[DeviceBlock] = []
        try:
            for start in range(0, max(nbytes, 1), piece):
                size, arena = max(min(piece, nbytes - start), 1), delegate.arena
                # where memory is given back, a small block in a part of it that was free would keep all of it
                apart = arena.max_memory is not None
                self.blocks.append(arena.reserve(size) if apart else arena.alloc(size, delegate.lease))
        except BaseException:
            self.free()
            raise

    def address(self, offset: int) -> int:
        """The device address of a byte. A range across two pieces has no single address."""
        which = min(offset // self._piece, len(self.blocks) - 1)
        return self.blocks[which].address + offset - which * self._piece

    def free(self) -> None:
        """Free the blocks; the device has finished with them."""
        while self.blocks:
            self.blocks.pop().free(stream=None)
