"""Products of 8-bit codes on matrices of float16, on a device that has them: codes less their zero points are whole numbers of at
most 255, which float16 holds, and their sums are float32."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from vkep.dtypes import FLOAT16, FLOAT32, DType
from vkep.graph.weights import ArrayWeight, PackedWeight, Weight
from vkep.ir import algebra as fn
from vkep.ir.builder import Builder
from vkep.ir.tensor import Tensor
from vkep.kernels.launch import is_cpu
from vkep.kernels.matmul.cooperative_tiles import float16_shape


class InHalves(NamedTuple):
    """A product's operands in float16, and the factor of its sums: one number, or one for each of the results' columns (of a
    convolution, channels)."""

    x: Tensor
    w: Tensor
    factor: np.ndarray


def takes_halves(b: Builder) -> bool:
    """Whether products of float16 are the faster ones for whole numbers."""
    return float16_shape(b.caps) is not None and not is_cpu(b.caps)


def is_code(dtype: DType) -> bool:
    """Whether an element type is one of 8-bit integers."""
    return dtype.kind in ("int", "uint") and dtype.bits == 8


def dequantized_by_halves(b: Builder, codes: Tensor, scale: float, zero: int) -> Tensor:
    """``(codes - zero) * scale`` in float32, by float16 of which products may be computed (`in_halves`)."""
    key = codes.storage, codes.offset, codes.shape, codes.strides, zero
    halves = b.halves.get(key)
    if halves is None:
        value = fn.cast(b.expr("cast", codes, ctype="int") - zero, "float")
        halves = b.halves[key] = b.store(value, FLOAT16, shape=codes.shape)
    result = b.pointwise("mul", halves, scale, dtype=FLOAT32)
    b.in_halves[result.storage] = halves, scale
    return result


def in_halves(b: Builder, x: Tensor, w: Tensor, axis: int) -> InHalves | None:
    """A product's operands where ``x`` was dequantized and ``w`` is a weight that was, by one scale or those of ``axis``."""
    found, weight = _view_in_halves(b, x), w.storage.weight
    made = weight.codes if isinstance(weight, ArrayWeight) else None
    if found is None or made is None or weight is None or not w.is_whole or w.shape != weight.shape:
        return None
    values, axis = made.codes.array(), axis % w.rank
    if values.dtype not in (np.int8, np.uint8) or made.scale.dtype != np.float32:
        return None
    if made.scale.size != 1 and (made.axis % w.rank != axis or made.scale.size != w.shape[axis]):
        return None
    halves, scale = found
    factor = np.float32(scale) * made.scale.reshape(-1)
    return InHalves(halves, half_weight(b, made.codes, made.zero, made.axis), factor)


def computed_in_halves(b: Builder, x: Tensor, y: Tensor) -> InHalves | None:
    """A product's operands where both were dequantized, and neither is a weight."""
    left, right = (_view_in_halves(b, t) for t in (x, y))
    if left is None or right is None:
        return None
    return InHalves(left[0], right[0], np.array([np.float32(left[1]) * np.float32(right[1])]))


def _view_in_halves(b: Builder, x: Tensor) -> tuple[Tensor, float] | None:
    """What a view of a dequantized tensor is in float16, and its scale. Both tensors are dense, in the same order."""
    found = b.in_halves.get(x.storage)
    return None if found is None else (found[0].view(x.shape, x.strides, x.offset), found[1])


def half_weight(b: Builder, codes: Weight, zero: np.ndarray | None, axis: int) -> Tensor:
    """A weight's codes less their zero points (one, or those of ``axis``) in float16."""
    shape = codes.shape
    less = np.zeros(1, np.float32) if zero is None else zero.astype(np.float32).reshape(-1)
    spread = less.reshape([-1 if d == axis % len(shape) else 1 for d in range(len(shape))]) if less.size > 1 else less

    def transform(values: np.ndarray) -> np.ndarray:
        return (values.reshape(shape).astype(np.float32) - spread).astype(np.float16)

    return b.weight(PackedWeight(codes, 0, transform, f"{codes.key}/halves-{axis}-{less.tobytes().hex()}"))


def per_column(b: Builder, product: Tensor, factor: np.ndarray, axis: int) -> Tensor:
    """``product`` times one factor, or those of an axis."""
    shape = [1] * product.rank
    shape[axis % product.rank] = factor.size
    return b.pointwise("mul", product, b.constant(factor.astype(np.float32).reshape(shape)))
