"""The memory of a result that begins with the content of an input: a cache with its new rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vkep.errors import InvalidNode
from vkep.ir.tensor import Tensor
from vkep.sizes import matches


@dataclass(frozen=True)
class Place:
    """A range of an input's memory, from some of its elements on. The input's own elements are not changed for
    operations that read them."""

    memory: Tensor  #: as far as it goes
    past: tuple[int, ...]  #: how many elements along each axis are the input's

    def leading(self, shape: Sequence[int]) -> Tensor:
        """The leading elements of the memory. Raises `InvalidNode` where its capacity is less."""
        for place, (size, capacity) in enumerate(zip(shape, self.memory.shape, strict=True)):
            if size > capacity:
                raise InvalidNode(
                    f"dimension {place} of the result {list(shape)} is {size}; it is bound to the memory of input "
                    f"{self.memory.storage.label!r}, which has room for {capacity}"
                )
        return self.memory.view(shape, self.memory.strides)

    def joined(self, parts: Sequence[Tensor], axis: int, shape: Sequence[int]) -> Tensor | None:
        """`leading` for what joins ``parts`` along an axis; None where a part would take the place of elements of the input."""
        out, start = self.leading(shape), 0
        for part in parts:
            count = part.shape[axis]
            if not (is_at(part, out.slice(axis, start, count)) or start >= self.past[axis]):
                return None
            start += count
        return out


def is_at(tensor: Tensor, place: Tensor) -> bool:
    """Whether the elements of a tensor are at a place, or it has none."""
    if not tensor.size:
        return True
    if tensor.storage is not place.storage or (tensor.shape, tensor.offset) != (place.shape, place.offset):
        return False
    steps = zip(tensor.shape, tensor.strides, place.strides, strict=True)
    return all(matches(dim, 1) or matches(step, other) for dim, step, other in steps)
