"""Weights that data graphs and Vulkan kernels both read: one copy on the device for both delegates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vkep.dtypes import DType
from vkep.plan.records import ConstantRef

if TYPE_CHECKING:
    from vkep.device.constants import BufferPlace, ConstantSet
    from vkep.device.delegate import VulkanDelegate
    from vkep.tosa.shared import TosaWeight


class ConstantTensor:
    """A constant of the context's store, as a read-only input of `VgfRunner`."""

    def __init__(self, dtype: DType, shape: tuple[int, ...], nbytes: int, address: int, block: BufferPlace) -> None:
        self.dtype, self.shape, self.nbytes = dtype, shape, nbytes
        self.address, self.block = address, block


class SharedWeights:
    """The weights of one graph, held until `close`; ``tensors`` in order."""

    def __init__(self, memory: VulkanDelegate, weights: Sequence[TosaWeight]) -> None:
        """Uploads weights that are not resident (a session prepares its graphs and islands in order). Raises
        `ArenaOutOfMemory`, `GpuError`."""
        self.tensors: list[ConstantTensor] = []
        self._set: ConstantSet | None = None
        if not weights:
            return
        refs = [ConstantRef(w.weight.key, w.weight.nbytes, w.weight.name) for w in weights]
        with memory.lock:
            held = memory.constants.acquire(
                refs, {w.weight.key: w.weight for w in weights}, memory.arena, memory.uploader
            )
        self._set = held
        for weight, ref, address, place in zip(weights, refs, held.addresses, held.places, strict=True):
            self.tensors.append(ConstantTensor(weight.dtype, weight.shape, ref.nbytes, address, place))

    @property
    def nbytes(self) -> int:
        """Bytes of the weights on the device."""
        return sum(tensor.nbytes for tensor in self.tensors)

    def close(self) -> None:
        """Release the weights; the recordings that read them must be closed."""
        held, self._set = self._set, None
        self.tensors = []
        if held is not None:
            held.close()
