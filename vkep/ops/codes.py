"""Products of 8-bit codes on a device's matrices of float16 or int8.

Codes less their zero points are whole numbers of at most 255, which float16 holds, and their sums are float32. Where int8 is
faster, codes lie as int8: uint8 ones less 128. Kernels take them where the weights' zero point is 0, and subtract what their own
zero point makes the sums too large by: ``sum((x - z) * w) = sum(x * w) - z * sum(w)``. Other products read float16, made from
the int8.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import NamedTuple

import numpy as np

from vkep.dtypes import FLOAT16, FLOAT32, INT8, UINT8, DType
from vkep.graph.weights import ArrayWeight, PackedWeight, Weight
from vkep.ir import algebra as fn
from vkep.ir import expr as ex
from vkep.ir.builder import Builder
from vkep.ir.tensor import Tensor, memory_order
from vkep.kernels.launch import is_cpu
from vkep.kernels.matmul.cooperative_tiles import codes_are_faster, float16_shape


class Coded(NamedTuple):
    """What a tensor was dequantized from: ``(codes - zero) * scale``, with the codes in int8 or float16."""

    codes: Tensor
    zero: int
    scale: float


class Operands(NamedTuple):
    """A product's operands in int8 or float16, the zero point of ``x``, and the factor of the sums: one number, or one for each
    of the results' columns (of a convolution, channels)."""

    x: Tensor
    w: Tensor
    zero: int
    factor: np.ndarray


def takes_halves(b: Builder) -> bool:
    """Whether products of float16 are the faster ones for whole numbers."""
    return float16_shape(b.caps) is not None and not is_cpu(b.caps)


def takes_codes(b: Builder) -> bool:
    """Whether products of int8 are the faster ones for codes."""
    return codes_are_faster(b.caps) and not is_cpu(b.caps)


def is_code(dtype: DType) -> bool:
    """Whether an element type is one of 8-bit integers."""
    return dtype.kind in ("int", "uint") and dtype.bits == 8


def dequantized_by_halves(b: Builder, codes: Tensor, scale: float, zero: int) -> Tensor:
    """``(codes - zero) * scale`` in float32, by codes of which products may be computed (`operands`)."""
    return _dequantized(
        b, Coded(*signed(b, codes, zero), scale) if takes_codes(b) else Coded(in_halves(b, codes, zero), 0, scale)
    )


def _dequantized(b: Builder, coded: Coded) -> Tensor:
    codes, zero, scale = coded
    value = b.expr("cast", codes, ctype="int") - zero if codes.dtype is INT8 else ex.leaf(codes)
    result = b.store(b.expr("mul", fn.cast(value, "float"), scale), FLOAT32, shape=codes.shape)
    b.coded[result.storage] = coded
    return result


def by_codes(b: Builder, x: Tensor, select: Callable[[Tensor], Tensor]) -> Tensor | None:
    """``select(x)``, which takes elements by their order or their place, of the codes that ``x`` was dequantized from, or of the
    int8 that stand for uint8 ones; None where neither is known."""
    if x.dtype is UINT8 and not x.storage.is_constant and x.storage.port is None and takes_codes(b):
        chosen = select(signed(b, x, 0)[0])
        result = b.store(fn.cast(b.expr("cast", chosen, ctype="int") + 128, "uint"), UINT8, shape=chosen.shape)
        b.whole_numbers[_key(result, 128, INT8)] = chosen
        return result
    found = b.coded.get(x.storage)
    codes = None if found is None else _where(x, found[0])
    if found is None or codes is None or found[2] <= 0:
        return None
    result = _dequantized(b, Coded(select(codes), *found[1:]))
    if x.storage in b.steps:
        b.steps[result.storage] = b.steps[x.storage]
    return result


def _key(codes: Tensor, less: int, dtype: DType) -> Hashable:
    return codes.storage, codes.offset, codes.shape, codes.strides, less, dtype.name


def _kept(b: Builder, codes: Tensor, less: int, dtype: DType) -> Tensor:
    """``codes - less`` in a type, once for all that ask: of a view that only has its axes in another order, as that view."""
    order = memory_order(codes)
    if not codes.is_contiguous and (dense := codes.transpose(order)).is_contiguous and dense.is_whole:
        return _kept(b, dense, less, dtype).transpose([order.index(axis) for axis in range(codes.rank)])
    key = _key(codes, less, dtype)
    if key not in b.whole_numbers:
        value = b.expr("cast", codes, ctype="int") - less
        b.whole_numbers[key] = b.store(fn.cast(value, dtype.glsl_compute), dtype, shape=codes.shape)
    return b.whole_numbers[key]


def in_halves(b: Builder, codes: Tensor, zero: int) -> Tensor:
    """``codes - zero`` in float16."""
    return _kept(b, codes, zero, FLOAT16)


def signed(b: Builder, codes: Tensor, zero: int) -> tuple[Tensor, int]:
    """8-bit codes in int8, and their zero point."""
    return (codes, zero) if codes.dtype is INT8 else (_kept(b, codes, 128, INT8), zero - 128)


def operands(b: Builder, x: Tensor, w: Tensor, axis: int) -> Iterator[Operands]:
    """A product's operands, the faster ones first, where ``x`` was dequantized and ``w`` is a weight that was, by one scale or
    those of ``axis``."""
    found, weight = b.coded.get(x.storage), w.storage.weight
    made = weight.codes if isinstance(weight, ArrayWeight) else None
    if found is None or made is None or weight is None or not w.is_whole or w.shape != weight.shape:
        return
    values, axis = made.codes.array(), axis % w.rank
    if values.dtype not in (np.int8, np.uint8) or made.scale.dtype != np.float32:
        return
    if made.scale.size != 1 and (made.axis % w.rank != axis or made.scale.size != w.shape[axis]):
        return
    coded = Coded(*found)
    factor = np.float32(coded.scale) * made.scale.reshape(-1)
    codes = _where(x, coded.codes) if coded.codes.dtype is INT8 and x.is_whole else None
    if codes is not None and (of := signed_weight(b, made.codes, made.zero)) is not None:
        yield Operands(codes, of, coded.zero, factor)
    halves = _where(x, _halves(b, coded))
    if halves is not None:
        yield Operands(halves, half_weight(b, made.codes, made.zero, made.axis), 0, factor)


def computed_operands(b: Builder, x: Tensor, y: Tensor) -> Operands | None:
    """A product's operands in float16 where both were dequantized, and neither is a weight."""
    found = [b.coded.get(t.storage) for t in (x, y)]
    if None in found:
        return None
    left, right = (Coded(*coded) for coded in found if coded is not None)
    views = _where(x, _halves(b, left)), _where(y, _halves(b, right))
    if views[0] is None or views[1] is None:
        return None
    return Operands(views[0], views[1], 0, np.array([np.float32(left.scale) * np.float32(right.scale)]))


def _halves(b: Builder, coded: Coded) -> Tensor:
    """The codes less their zero point in float16."""
    return coded.codes if coded.codes.dtype is FLOAT16 else in_halves(b, coded.codes, coded.zero)


def _where(x: Tensor, codes: Tensor) -> Tensor | None:
    """The codes of a view of the dense tensor that they became."""
    return (
        codes.view(x.shape, x.strides, x.offset) if codes.is_whole else codes.reshape(x.shape) if x.is_whole else None
    )


def known_operands(b: Builder, x: Tensor, w: Tensor, x_zero: Tensor | None, w_zero: Tensor | None) -> Operands | None:
    """A product's operands in int8, where ``x`` are codes, ``w`` is a weight of codes, and their zero points are known numbers;
    None where int8 is not the faster type, or cannot hold them."""
    zeros = [None if zero is None else zero.array for zero in (x_zero, w_zero)]
    weight = w.storage.weight
    unknown = (x_zero is not None and zeros[0] is None) or (w_zero is not None and zeros[1] is None)
    if not takes_codes(b) or weight is None or unknown or (zeros[0] is not None and zeros[0].size != 1):
        return None
    of = signed_weight(b, weight, zeros[1])
    if of is None:
        return None
    of = of.view(w.shape, w.strides, w.offset)
    codes, zero = signed(b, x, 0 if zeros[0] is None else int(zeros[0].item()))
    return Operands(codes, of, zero, np.ones(1, np.float32))


def known_halves(
    b: Builder, x: Tensor, y: Tensor, x_zero: Tensor | None, y_zero: Tensor | None
) -> tuple[Tensor, Tensor] | None:
    """A product's operands in float16, where both are computed codes whose zero points are known numbers."""
    zeros = [None if zero is None else zero.array for zero in (x_zero, y_zero)]
    if not takes_halves(b) or any(t.storage.is_constant for t in (x, y)):
        return None
    if any(t is not None and (z is None or z.size != 1) for t, z in zip((x_zero, y_zero), zeros, strict=True)):
        return None
    left, right = (
        in_halves(b, t, 0 if zero is None else int(zero.item())) for t, zero in zip((x, y), zeros, strict=True)
    )
    return left, right


def signed_weight(b: Builder, codes: Weight, zero: np.ndarray | None) -> Tensor | None:
    """A weight's codes less their zero points in int8, where these are 0 as int8; None where they are not."""
    middle = 128 if codes.array().dtype == np.uint8 else 0
    if np.any((0 if zero is None else zero.astype(np.int32)) != middle):
        return None
    if not middle:
        return b.weight(codes)
    return b.weight(PackedWeight(codes, 0, lambda values: (values ^ 128).view(np.int8), f"{codes.key}/signed"))


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
