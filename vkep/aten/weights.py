"""Constants of a Vulkan delegate as weights: views of the program's bytes, and weights rearranged from them on use."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from vkep import dtypes
from vkep.errors import InvalidPteError
from vkep.graph.weights import Weight, array_key


class BufferWeight(Weight):
    """A weight stored in bytes that another object owns (a mapped .pte file): nothing is copied."""

    mapped = True

    def __init__(self, name: str, shape: tuple[int, ...], elem_type: int, buffer: memoryview) -> None:
        super().__init__(name, shape, elem_type)
        self._buffer = buffer

    def array(self) -> np.ndarray:
        dtype = dtypes.from_onnx(self.elem_type)
        assert dtype is not None  # the importer creates no other type
        count = int(np.prod(self.shape, dtype=np.int64))
        return np.frombuffer(self._buffer, dtype.numpy, count).reshape(self.shape)


class DerivedWeight(Weight):
    """A weight in another layout. It is computed from ``base`` each time its values are requested, and never stored.
    `array` raises `InvalidPteError` where ``base`` is too small for it."""

    mapped = True

    def __init__(
        self,
        base: Weight,
        how: str,
        transform: Callable[[np.ndarray], np.ndarray],
        shape: tuple[int, ...],
        elem_type: int,
    ) -> None:
        super().__init__(f"{base.name}/{how}", shape, elem_type)
        self._base, self._transform = base, transform

    def array(self) -> np.ndarray:
        base = self._base.array()
        try:
            return np.ascontiguousarray(self._transform(base)).reshape(self.shape)
        except ValueError as error:  # the operator's other arguments promise a larger weight
            raise InvalidPteError(
                f"{self.name}: a weight of shape {base.shape} has no layout {self.shape}: {error}"
            ) from None

    def _digest(self) -> str:
        return array_key(self.array())
