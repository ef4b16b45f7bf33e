"""Caches of keys and values whose elements are codes, and attention over them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vkep.dtypes import DTYPES, DType
from vkep.ir import algebra as fn
from vkep.ir import expr as ex
from vkep.ir.builder import Builder
from vkep.ir.tensor import Tensor
from vkep.kernels.kv_codes import CODES


@dataclass(frozen=True)
class Coding:
    """The encoding of a cache whose elements have another type than the new keys and values (`vkep.kernels.kv_codes`):
    as rows of ``size`` and ``value_size``.

    Scales are float32 [1], or [kv heads * size] for each feature; None for bfloat16.
    """

    dtype: DType
    size: int
    value_size: int
    k_scale: Tensor | None = None
    v_scale: Tensor | None = None

    @property
    def packs(self) -> int:
        """Numbers of an element."""
        return CODES[self.dtype.name][0]

    @property
    def scales(self) -> list[Tensor]:
        """Both, where there are any."""
        return [t for t in (self.k_scale, self.v_scale) if t is not None]

    @staticmethod
    def by_channel(scale: Tensor | None) -> bool:
        """Whether a scale is one for each feature."""
        return scale is not None and scale.size != 1

    def numbers(self, b: Builder, k: Tensor, v: Tensor, dtype: DType) -> tuple[Tensor, Tensor]:
        """Keys and values [batch, kv heads, length, size and value size] as floats."""
        return (
            self._decoded(b, k, self.k_scale, self.size, dtype),
            self._decoded(b, v, self.v_scale, self.value_size, dtype),
        )

    def _decoded(self, b: Builder, cache: Tensor, scale: Tensor | None, size: int, dtype: DType) -> Tensor:
        batch, heads, length, width = cache.shape
        packs = self.packs
        if self.dtype.name == "bfloat16":
            return b.cast(cache, dtype)
        wide = cache.view((*cache.shape, packs), (*cache.strides, 0))
        if packs == 2:
            shift = b.constant(np.array([0, 4], np.int32))
            value = fn.cast(b.expr("shift_right", wide, shift) & 15, "float") - 8
        else:
            value = b.cast_expr(ex.leaf(wide), cache.dtype, DTYPES["float32"])
        assert scale is not None
        if scale.size > 1:
            if size != width * packs:  # a half of the last element is empty
                filled = b.full((heads, width * packs), 1, scale.dtype)
                filled = b.copy(filled)
                b.copy(b.reshape(scale, (heads, size)), out=filled.slice(1, 0, size))
                scale = filled
            scale = b.reshape(scale, (1, heads, 1, width, packs))
        else:
            scale = b.reshape(scale, (1, 1, 1, 1, 1))
        made = b.store(b.expr("mul", value, scale, ctype="float"), dtype, shape=wide.shape)
        return b.reshape(made, (batch, heads, length, width * packs)).slice(3, 0, size)
