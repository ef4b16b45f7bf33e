"""Products and convolutions of 8-bit integers with results in int32.

float32 holds every whole number up to 2**24, and its kernels are the fast ones: sums of at most that size are computed there, a
longer one in parts, which are added in int32. Sums of more than a few parts are computed in int32 as a whole.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from vkep.dtypes import DTYPES
from vkep.graph.attributes import ConvAttributes
from vkep.graph.weights import PackedWeight
from vkep.ir.builder import Builder
from vkep.ir.expr import Expr
from vkep.ir.tensor import Tensor
from vkep.kernels.launch import ceil_div
from vkep.ops.contraction import matrix_product
from vkep.ops.convolution import convolution
from vkep.sizes import serves_others

_FLOAT32, _INT32, _INT16 = DTYPES["float32"], DTYPES["int32"], DTYPES["int16"]
#: float32 holds every whole number up to this
_EXACT = 2**24
#: parts of a sum beyond which it is computed in int32
_MOST_PARTS = 8


def of_rows(b: Builder, values: Tensor) -> Tensor:
    """Per-row values of a matrix (or its stack), shaped to broadcast (MatMulInteger: [M], or [..., M, 1])."""
    return b.reshape(values, (values.size, 1)) if values.rank == 1 and values.size > 1 else values


def of_channels(b: Builder, values: Tensor, rank: int, axis: int) -> Tensor:
    """Per-channel values (or one for all), shaped to broadcast along ``axis``."""
    shape = [1] * rank
    shape[axis] = values.size
    return b.reshape(values, shape)


def integer_product(b: Builder, x: Tensor, y: Tensor, x_zero: Tensor | None, y_zero: Tensor | None) -> Tensor:
    """``(x - x_zero) @ (y - y_zero)`` in int32. Zero points broadcast; several of rank 1 for x are those of its rows."""
    x_zero = None if x_zero is None else of_rows(b, x_zero)
    along_x, along_y = max(x.rank - 1, 0), max(y.rank - 2, 0)
    length = x.shape[along_x] if 0 not in (x.rank, y.rank) and x.shape[along_x] == y.shape[along_y] else 0
    step = _step(length, _most(x, x_zero), _sizes(y, y_zero, along_y))
    step = step or _step(length, _most(y, y_zero), _sizes(x, x_zero, along_x))
    if not step:
        return matrix_product(b, _in_integers(b, x, x_zero), _in_integers(b, y, y_zero), _INT32)
    x, y = _in_floats(b, x, x_zero), _in_floats(b, y, y_zero)
    return _total(b, [matrix_product(b, x.slice(along_x, *at), y.slice(along_y, *at)) for at in _parts(length, step)])


def integer_convolution(
    b: Builder, x: Tensor, w: Tensor, x_zero: Tensor | None, w_zero: Tensor | None, a: ConvAttributes
) -> Tensor:
    """A convolution of 8-bit tensors in int32; the padding is the zero point. ``w_zero`` is one value, or one for each output
    channel."""
    b.expect("the weights' zero point", w_zero, (), (1,), w.shape[:1])
    if x_zero is not None and x_zero.size != 1:
        b.decline(f"{x_zero.size} zero points of the input; a convolution has one")
    x_zero = None if x_zero is None else b.reshape(x_zero, ())
    w_zero = None if w_zero is None else of_channels(b, w_zero, w.rank, 0)
    channels = w.shape[1] if w.rank > 2 and w.shape[1] * a.group == x.shape[1] else 0
    step = _step(channels, _most(x, x_zero), _sizes(w, w_zero, 1, outputs=0))
    if not step or (step < channels and a.group > 1):
        return convolution(b, _in_integers(b, x, x_zero), _in_integers(b, w, w_zero), a, _INT32)
    images = _in_floats(b, x, x_zero)
    sums = []
    for start, count in _parts(channels, step):
        weights = _in_floats(b, w, w_zero, (start, count))
        part = images if count == channels else images.slice(1, start, count)
        sums.append(convolution(b, part, weights, a, exact=True))
    return _total(b, sums)


def _total(b: Builder, parts: Sequence[Tensor]) -> Tensor:
    """The sum of whole numbers, in int32."""
    total = b.expr("cast", parts[0], ctype="int")
    for part in parts[1:]:
        total = total + b.expr("cast", part, ctype="int")
    return b.store(total, _INT32, shape=parts[0].shape)


# ---- how large sums become


def _most(x: Tensor, zero: Tensor | None) -> int:
    """The largest possible distance of a value to its zero point."""
    low, high = (int(limit) for limit in (np.iinfo(x.dtype.numpy).min, np.iinfo(x.dtype.numpy).max))
    known = None if zero is None else zero.array
    zeros = (0, 0) if zero is None else (low, high) if known is None else (int(known.min()), int(known.max()))
    return max(high - zeros[0], zeros[1] - low)


def _sizes(x: Tensor, zero: Tensor | None, axis: int, outputs: int | None = None) -> int | np.ndarray:
    """What the elements at one place along ``axis`` multiply others' distances by, at most: [length, sums], or one number where
    the values are not known while planning. A convolution's weights are added up for each output channel (axis ``outputs``)."""
    values, known = x.array, None if zero is None else zero.array
    if values is None or (zero is not None and known is None):
        taps = 1 if outputs is None else math.prod(d for i, d in enumerate(x.shape) if i not in (axis, outputs))
        return _most(x, zero) * taps
    distances = np.abs(values.astype(np.int32) - (0 if known is None else known.astype(np.int32)))
    if outputs is not None:
        distances = distances.sum(axis=tuple(i for i in range(x.rank) if i not in (axis, outputs)))
    return np.moveaxis(distances, axis, 0).reshape(x.shape[axis], -1)


def _step(length: int, most: int, sizes: int | np.ndarray) -> int:
    """The elements of a sum of ``length`` products that float32 holds, in equal parts; 0 where it takes too many parts."""
    known = isinstance(sizes, np.ndarray)
    if serves_others(length) or not length or (not known and serves_others(sizes)):
        return 0
    for count in range(1, min(_MOST_PARTS, length) + 1):
        step = ceil_div(length, count)
        largest = _largest_sum(sizes, step) if isinstance(sizes, np.ndarray) else step * sizes
        if largest * most <= _EXACT:
            return step
    return 0


def _largest_sum(sizes: np.ndarray, step: int) -> int:
    return int(np.add.reduceat(sizes, range(0, len(sizes), step), axis=0).max(initial=0))


def _parts(length: int, step: int) -> list[tuple[int, int]]:
    """(first, count) of each part of a sum."""
    return [(start, min(step, length - start)) for start in range(0, length, step)]


# ---- operands less their zero points


def _less_zero(b: Builder, x: Tensor, zero: Tensor, kind: str) -> Expr:
    return b.expr("cast", x, ctype=kind) - b.expr("cast", zero, ctype=kind)


def _in_integers(b: Builder, x: Tensor, zero: Tensor | None) -> Tensor:
    """``x`` less its zero point: as it is where that is 0, else int16, which holds every difference."""
    known = None if zero is None else zero.array
    if zero is None or (known is not None and not known.any()):
        return x
    values = x.array
    if values is not None and known is not None:
        return b.constant((values.astype(np.int32) - known.astype(np.int32)).astype(np.int16))
    return b.store(_less_zero(b, x, zero, "int"), _INT16, shape=x.shape)


def _in_floats(b: Builder, x: Tensor, zero: Tensor | None, part: tuple[int, int] | None = None) -> Tensor:
    """``x`` less its zero point in float32, of a constant a constant; ``part``: of the elements (first, count) along axis 1."""
    weight, known = x.storage.weight, None if zero is None else zero.array
    part = None if part is None or part == (0, x.shape[1]) else part
    if weight is None or x.array is None or (zero is not None and known is None):
        x = x if part is None else x.slice(1, *part)
        value = b.expr("cast", x, ctype="float") if zero is None else _less_zero(b, x, zero, "float")
        return b.store(value, _FLOAT32, shape=x.shape)
    less = np.float32(0) if known is None else known.astype(np.float32)
    key = f"{weight.key}/{x.offset}-{x.shape}-{x.strides}/float32-{less.tobytes().hex()}-{part}"

    def transform(_: np.ndarray) -> np.ndarray:
        values = x.array
        assert values is not None
        return (values if part is None else values[:, slice(part[0], sum(part))]).astype(np.float32) - less

    return b.weight(PackedWeight(weight, 0, transform, key))
