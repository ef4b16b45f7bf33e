"""Gathers, scatters, and the indices of extremes. TOSA 1.0 has int32 indices: see
`vkep.tosa.type_legalization` for ONNX's int64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from vkep.tosa.graph import PROPAGATE, TosaBuilder, TosaTensor
from vkep.tosa.ops import quantized
from vkep.tosa.ops.convolution import block_of
from vkep.tosa.ops.movement import reversed_along
from vkep.tosa.registry import FLOATS, axis_of, tosa_operator
from vkep.tosa.type_legalization import as_int64, flip, index_of

_ROWS = ("float32", "float16", "int32", "int16", "int8")


def _rows(b: TosaBuilder, x: TosaTensor, numbers: TosaTensor, count: int, rest: Sequence[int]) -> TosaTensor:
    """TOSA's GATHER selects rows: values [1, K, C], indices [1, W] to [1, W, C]; here ``x`` has K rows of shape
    ``rest``."""
    width = math.prod(rest)
    table = b.ordered(b.reshape(x, (1, count, width)))
    flat = b.ordered(b.reshape(numbers, (1, max(numbers.size, 1))))
    value = b.op("gather", [table, flat], (1, numbers.size, width))
    return b.reshape(b.tensor(value), (*numbers.shape, *rest))


@tosa_operator("Gather", types=_ROWS, moves=True)
def gather(b: TosaBuilder, x: TosaTensor, indices: TosaTensor, *, axis: int = 0) -> TosaTensor:
    axis = axis_of(axis, x.rank)
    numbers = index_of(b, indices, x.shape[axis])
    order = (axis, *(i for i in range(x.rank) if i != axis))
    rest = [x.shape[i] for i in order[1:]]
    made = _rows(b, b.permute(x, order), numbers, x.shape[axis], rest)
    k = numbers.rank
    return b.permute(made, (*range(k, k + axis), *range(k), *range(k + axis, k + len(rest))))


def _along(b: TosaBuilder, shape: Sequence[int], indices: TosaTensor, axis: int) -> TosaTensor:
    """Positions in a flattened tensor of ``shape``: ``indices`` along one axis, and each element's own position along
    the others."""
    steps = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    numbers = index_of(b, indices, shape[axis])
    places = np.zeros(indices.shape, np.int64)
    for i, size in enumerate(indices.shape):
        if i != axis:
            places = places + (np.arange(size) * steps[i]).reshape([-1 if k == i else 1 for k in range(len(shape))])
    return _sum_of(b, [(numbers, steps[axis])], places)


def _sum_of(b: TosaBuilder, parts: Sequence[tuple[TosaTensor, int]], base: np.ndarray) -> TosaTensor:
    """``base`` and the parts times their factors, as int32."""
    if all(part.array is not None for part, _ in parts):
        total = base + sum(part.array.astype(np.int64) * step for part, step in parts if part.array is not None)
        return b.constant(np.asarray(total, np.int32))
    made: TosaTensor | None = None
    for part, step in parts:
        scaled = part if step == 1 else b.mul(part, b.fill(part, step))
        made = scaled if made is None else b.add(made, scaled)
    assert made is not None
    return b.add(made, b.constant(base.astype(np.int32))) if base.any() else made


@tosa_operator("GatherElements", types=_ROWS, moves=True)
def gather_elements(b: TosaBuilder, x: TosaTensor, indices: TosaTensor, *, axis: int = 0) -> TosaTensor:
    flat = _along(b, x.shape, indices, axis_of(axis, x.rank))
    return b.reshape(_rows(b, x, flat, x.size, (1,)), indices.shape)


def _tuples(b: TosaBuilder, shape: Sequence[int], indices: TosaTensor, base: np.ndarray) -> tuple[TosaTensor, int]:
    """The row numbers of index tuples (the last axis) in a tensor of ``shape``, and the number of axes in a tuple."""
    count = indices.shape[-1]
    if count > len(shape):
        b.decline(f"index tuples of {count} for {len(shape)} axes")
    parts = []
    for i in range(count):
        plain = indices if indices.array is not None else replace(indices, stored="")
        column = b.reshape(block_of(b, plain, indices.rank - 1, i, 1), indices.shape[:-1])
        column = column if indices.array is not None else replace(column, stored=indices.stored)
        parts.append((index_of(b, column, shape[i]), math.prod(shape[i + 1 : count])))
    return _sum_of(b, parts, base), count


@tosa_operator("GatherND", types=_ROWS, moves=True)
def gather_nd(b: TosaBuilder, x: TosaTensor, indices: TosaTensor, *, batch_dims: int = 0) -> TosaTensor:
    batch = x.shape[:batch_dims]
    inner = x.shape[batch_dims:]
    each = math.prod(inner[: indices.shape[-1]])
    lead = (np.arange(math.prod(batch)) * each).reshape(*batch, *[1] * (indices.rank - 1 - batch_dims))
    numbers, count = _tuples(b, inner, indices, lead if batch_dims else np.zeros(1, np.int64))
    return _rows(b, x, numbers, math.prod(batch) * each, inner[count:])


# ---- scatters


def _scattered(b: TosaBuilder, x: TosaTensor, numbers: TosaTensor, updates: TosaTensor, width: int) -> TosaTensor:
    """TOSA's SCATTER: rows of ``x`` replaced by those of ``updates``, each at most once."""
    if updates.dtype != x.dtype or updates.stored:
        b.decline(f"updates of {updates.dtype} for {x.dtype}")
    if numbers.array is not None and len(np.unique(numbers.array)) != numbers.size:
        b.decline("an index twice; TOSA's SCATTER writes each row once")
    operands = [
        b.ordered(b.reshape(x, (1, x.size // width, width))),
        b.ordered(b.reshape(numbers, (1, numbers.size))),
        b.ordered(b.reshape(updates, (1, numbers.size, width))),
    ]
    value = b.op("scatter", operands, operands[0].shape)
    return b.reshape(b.tensor(value), x.shape)


@tosa_operator("ScatterND", types=_ROWS)
def scatter_nd(
    b: TosaBuilder, x: TosaTensor, indices: TosaTensor, updates: TosaTensor, *, reduction: str = "none"
) -> TosaTensor:
    if reduction != "none":
        b.decline("TOSA's SCATTER has no reduction")
    numbers, count = _tuples(b, x.shape, indices, np.zeros(1, np.int64))
    return _scattered(b, x, numbers, updates, math.prod(x.shape[count:]))


@tosa_operator("ScatterElements", types=_ROWS)
def scatter_elements(
    b: TosaBuilder, x: TosaTensor, indices: TosaTensor, updates: TosaTensor, *, axis: int = 0, reduction: str = "none"
) -> TosaTensor:
    if reduction != "none":
        b.decline("TOSA's SCATTER has no reduction")
    return _scattered(b, x, _along(b, x.shape, indices, axis_of(axis, x.rank)), updates, 1)


# ---- indices of extremes

_EXTREMES = (*FLOATS, "int8", "uint8")


@tosa_operator("ArgMax", types=_EXTREMES)
def arg_max(
    b: TosaBuilder, x: TosaTensor, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0
) -> TosaTensor:
    return _extreme_at(b, _ordering(b, x), axis, keepdims, select_last_index)


@tosa_operator("ArgMin", types=_EXTREMES)
def arg_min(
    b: TosaBuilder, x: TosaTensor, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0
) -> TosaTensor:
    x = _ordering(b, x)
    # in the opposite order, without integer overflow
    turned = b.negate(x) if x.dtype in FLOATS else b.unary("bitwise_not", x)
    return _extreme_at(b, turned, axis, keepdims, select_last_index)


def _ordering(b: TosaBuilder, x: TosaTensor) -> TosaTensor:
    """A value with the same order as ``x`` that ARGMAX supports: the integers of quantized floats, uint8 as int8."""
    known = quantized.same_everywhere(x)
    if known is not None:
        return known.ints
    return flip(b, x) if x.dtype == "uint8" else x


def _extreme_at(b: TosaBuilder, x: TosaTensor, axis: int, keepdims: int, last: int) -> TosaTensor:
    if x.scalar:
        b.decline("the place of the extreme in a scalar")
    axis = axis_of(axis, x.rank)
    size = x.shape[axis]
    if last:
        x = reversed_along(b, x, axis)
    p = x.perm[axis]
    shape = [s for i, s in enumerate(x.value.shape) if i != p]
    kept = [q - (q > p) for i, q in enumerate(x.perm) if i != axis]
    if x.rank == 1:  # TOSA's ARGMAX makes rank 0 of that, which has no place among vkep's values
        grown = b.reshape(x, (1, size))
        value = b.op("argmax", [grown.value], (1,), "int32", axis="1 : i32", nan_mode=PROPAGATE)
        made = TosaTensor(value, (0,), scalar=True)
    else:
        made = TosaTensor(b.op("argmax", [x.value], shape, "int32", axis=f"{p} : i32", nan_mode=PROPAGATE), tuple(kept))
    if last:
        made = b.sub(b.constant(np.array(size - 1, np.int32)), made)
    if keepdims:
        made = b.reshape(made, [1 if i == axis else s for i, s in enumerate(x.shape)])
    return as_int64(made)
