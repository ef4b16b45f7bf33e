"""Operators that move elements: shapes, axes, slices, pads, gathers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from vkep.graph.windows import slice_span
from vkep.tosa.graph import TosaBuilder, TosaTensor, Value
from vkep.tosa.registry import ANY, axis_of, constant_of, tosa_operator


@tosa_operator("Reshape", types=ANY, since=5, moves=True)
def reshape(b: TosaBuilder, x: TosaTensor, shape: TosaTensor, *, allowzero: int = 0) -> TosaTensor:
    sizes = [int(s) for s in constant_of(shape, "the shape")]
    if not allowzero:
        sizes = [x.shape[i] if s == 0 else s for i, s in enumerate(sizes)]
    if -1 in sizes:
        sizes[sizes.index(-1)] = x.size // max(1, math.prod(s for s in sizes if s != -1))
    return b.reshape(x, sizes)


@tosa_operator("Flatten", types=ANY, moves=True)
def flatten(b: TosaBuilder, x: TosaTensor, *, axis: int = 1) -> TosaTensor:
    axis = axis + x.rank if axis < 0 else axis
    return b.reshape(x, (math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))


@tosa_operator("Transpose", types=ANY, moves=True)
def transpose(b: TosaBuilder, x: TosaTensor, *, perm: Sequence[int] | None = None) -> TosaTensor:
    if x.scalar:
        return x
    order = tuple(perm) if perm is not None else tuple(reversed(range(x.rank)))
    if sorted(order) != list(range(x.rank)):
        b.decline(f"perm={list(order)} is no permutation of {x.rank} axes")
    return b.permute(x, order)


def _squeeze(b: TosaBuilder, x: TosaTensor, axes: Sequence[int] | None) -> TosaTensor:
    gone = {axis_of(a, x.rank) for a in axes} if axes is not None else {i for i, s in enumerate(x.shape) if s == 1}
    return b.reshape(x, [s for i, s in enumerate(x.shape) if i not in gone])


@tosa_operator("Squeeze", types=ANY, until=12, moves=True)
def squeeze_1(b: TosaBuilder, x: TosaTensor, *, axes: Sequence[int] | None = None) -> TosaTensor:
    return _squeeze(b, x, axes)


@tosa_operator("Squeeze", types=ANY, since=13, moves=True)
def squeeze(b: TosaBuilder, x: TosaTensor, axes: TosaTensor | None = None) -> TosaTensor:
    return _squeeze(b, x, None if axes is None else [int(a) for a in constant_of(axes, "the axes")])


def _unsqueeze(b: TosaBuilder, x: TosaTensor, axes: Sequence[int]) -> TosaTensor:
    rank = x.rank + len(axes)
    new = {axis_of(int(a), rank) for a in axes}
    sizes = iter(x.shape)
    return b.reshape(x, [1 if i in new else next(sizes) for i in range(rank)])


@tosa_operator("Unsqueeze", types=ANY, until=12, moves=True)
def unsqueeze_1(b: TosaBuilder, x: TosaTensor, *, axes: Sequence[int]) -> TosaTensor:
    return _unsqueeze(b, x, axes)


@tosa_operator("Unsqueeze", types=ANY, since=13, moves=True)
def unsqueeze(b: TosaBuilder, x: TosaTensor, axes: TosaTensor) -> TosaTensor:
    return _unsqueeze(b, x, constant_of(axes, "the axes").reshape(-1))


# ---- slices


def slice_of(b: TosaBuilder, x: TosaTensor, starts: Sequence[int], sizes: Sequence[int]) -> TosaTensor:
    """A contiguous block of every logical axis."""
    if tuple(sizes) == x.shape:
        return x
    if 0 in sizes:
        b.decline("an empty slice; TOSA has no empty tensors")
    start, size = [0] * x.rank, [0] * x.rank
    for axis, p in enumerate(x.perm):
        start[p], size[p] = starts[axis], sizes[axis]
    value = b.op("slice", [x.value, b.shape_value(start), b.shape_value(size)], size)
    return TosaTensor(value, x.perm)


def part_of(b: TosaBuilder, x: TosaTensor, axis: int, start: int, count: int) -> TosaTensor:
    """``count`` of one axis, all of the others."""
    starts, sizes = [0] * x.rank, list(x.shape)
    starts[axis], sizes[axis] = start, count
    return slice_of(b, x, starts, sizes)


def _slice(
    b: TosaBuilder, x: TosaTensor, starts: Sequence[int], ends: Sequence[int], axes: Sequence[int], steps: Sequence[int]
) -> TosaTensor:
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        axis = axis_of(int(axis), x.rank)
        size = x.shape[axis]
        step = int(step)
        first, count = slice_span(size, int(start), int(end), step)
        if step < 0:
            x = reversed_along(b, x, axis)
            first, step = size - 1 - first, -step
        x = _strided(b, x, axis, first, count, step)
    return x


def reversed_along(b: TosaBuilder, x: TosaTensor, axis: int) -> TosaTensor:
    """``x`` reversed along an axis."""
    value = b.op("reverse", [x.value], x.value.shape, axis=f"{x.perm[axis]} : i32")
    return TosaTensor(value, x.perm)


def _strided(b: TosaBuilder, x: TosaTensor, axis: int, first: int, count: int, step: int) -> TosaTensor:
    """Every ``step``-th element of an axis: crop to whole periods, then take the first of each."""
    if step == 1 or count <= 1:
        return part_of(b, x, axis, first, count)
    wanted = count * step
    room = x.shape[axis] - first
    x = part_of(b, x, axis, first, min(room, wanted))
    if room < wanted:
        pads = [(0, 0)] * x.rank
        pads[axis] = (0, wanted - room)
        x = pad_of(b, x, pads, 0)
    shape = x.shape
    split = b.reshape(x, (*shape[:axis], count, step, *shape[axis + 1 :]))
    return b.reshape(part_of(b, split, axis + 1, 0, 1), (*shape[:axis], count, *shape[axis + 1 :]))


@tosa_operator("Slice", types=ANY, until=9, moves=True)
def slice_1(
    b: TosaBuilder, x: TosaTensor, *, starts: Sequence[int], ends: Sequence[int], axes: Sequence[int] | None = None
) -> TosaTensor:
    return _slice(b, x, starts, ends, axes if axes is not None else range(len(starts)), [1] * len(starts))


@tosa_operator("Slice", types=ANY, since=10, moves=True)
def slice_10(
    b: TosaBuilder,
    x: TosaTensor,
    starts: TosaTensor,
    ends: TosaTensor,
    axes: TosaTensor | None = None,
    steps: TosaTensor | None = None,
) -> TosaTensor:
    first = constant_of(starts, "starts").reshape(-1)
    return _slice(
        b,
        x,
        first,
        constant_of(ends, "ends").reshape(-1),
        constant_of(axes, "axes").reshape(-1) if axes is not None else range(len(first)),
        constant_of(steps, "steps").reshape(-1) if steps is not None else [1] * len(first),
    )


def _split(b: TosaBuilder, x: TosaTensor, sizes: Sequence[int], axis: int) -> list[TosaTensor]:
    axis = axis_of(axis, x.rank)
    results, at = [], 0
    for size in sizes:
        results.append(part_of(b, x, axis, at, int(size)))
        at += int(size)
    return results


@tosa_operator("Split", types=ANY, since=2, until=12, moves=True)
def split_2(
    b: TosaBuilder, x: TosaTensor, *, split: Sequence[int] | None = None, axis: int = 0, count: int
) -> list[TosaTensor]:
    return _split(b, x, split if split is not None else _parts(x, axis, count), axis)


def _parts(x: TosaTensor, axis: int, count: int) -> list[int]:
    """The sizes of ``count`` parts of an axis; the last one may be smaller."""
    size = x.shape[axis_of(axis, x.rank)]
    each = -(-size // count)
    return [min(each, size - i * each) for i in range(count)]


@tosa_operator("Split", types=ANY, since=13, moves=True)
def split_13(
    b: TosaBuilder, x: TosaTensor, split: TosaTensor | None = None, *, axis: int = 0, num_outputs: int = 0, count: int
) -> list[TosaTensor]:
    if split is not None:
        return _split(b, x, constant_of(split, "the sizes").reshape(-1), axis)
    return _split(b, x, _parts(x, axis, num_outputs or count), axis)


@tosa_operator("Concat", types=ANY, since=4, moves=True)
def concat(b: TosaBuilder, *inputs: TosaTensor, axis: int) -> TosaTensor:
    if len(inputs) == 1:
        return inputs[0]
    axis = axis_of(axis, inputs[0].rank)
    lead = max((t for t in inputs if t.array is None), key=lambda t: t.size, default=inputs[0])
    order = tuple(int(i) for i in np.argsort(lead.perm))
    values = [b.ordered(t, order) for t in inputs]
    shape = list(values[0].shape)
    place = lead.perm[axis]
    shape[place] = sum(v.shape[place] for v in values)
    return TosaTensor(b.op("concat", values, shape, axis=f"{place} : i32"), lead.perm)


# ---- pads and repeats


def pad_of(b: TosaBuilder, x: TosaTensor, pads: Sequence[tuple[int, int]], fill: float) -> TosaTensor:
    """Pad logical axes (before, after) with a constant; none of them negative."""
    if not any(any(p) for p in pads):
        return x
    flat = [(0, 0)] * x.rank
    shape = [0] * x.rank
    for axis, p in enumerate(x.perm):
        flat[p] = pads[axis]
        shape[p] = x.shape[axis] + sum(pads[axis])
    amounts = b.shape_value([n for pair in flat for n in pair])
    value = Value(x.dtype, (1,), np.array([fill], np.dtype(x.dtype)))
    return TosaTensor(b.op("pad", [x.value, amounts, value], shape), x.perm)


def _pad(b: TosaBuilder, x: TosaTensor, pads: Sequence[int], axes: Sequence[int], mode: str, fill: float) -> TosaTensor:
    if mode != "constant":
        b.decline(f"TOSA's PAD has no mode {mode!r}")
    pairs = [(0, 0)] * x.rank
    for i, axis in enumerate(axes):
        pairs[axis_of(int(axis), x.rank)] = (int(pads[i]), int(pads[i + len(axes)]))
    starts = [max(0, -before) for before, _ in pairs]
    sizes = [s - st - max(0, -after) for s, st, (_, after) in zip(x.shape, starts, pairs, strict=True)]
    x = slice_of(b, x, starts, sizes)
    return pad_of(b, x, [(max(0, before), max(0, after)) for before, after in pairs], fill)


@tosa_operator("Pad", types=("float32", "float16"), since=2, until=10)
def pad_2(
    b: TosaBuilder, x: TosaTensor, *, pads: Sequence[int], mode: str = "constant", value: float = 0.0
) -> TosaTensor:
    return _pad(b, x, pads, range(x.rank), mode, value)


@tosa_operator("Pad", types=ANY, since=11)
def pad_11(
    b: TosaBuilder,
    x: TosaTensor,
    pads: TosaTensor,
    constant_value: TosaTensor | None = None,
    axes: TosaTensor | None = None,
    *,
    mode: str = "constant",
) -> TosaTensor:
    fill = constant_of(constant_value, "the fill value").reshape(-1)[0] if constant_value is not None else 0
    where = constant_of(axes, "the axes").reshape(-1) if axes is not None else range(x.rank)
    return _pad(b, x, constant_of(pads, "the pads").reshape(-1), where, mode, fill)


def tile_of(b: TosaBuilder, x: TosaTensor, repeats: Sequence[int]) -> TosaTensor:
    """Repeat logical axes."""
    if all(n == 1 for n in repeats):
        return x
    flat, shape = [0] * x.rank, [0] * x.rank
    for axis, p in enumerate(x.perm):
        flat[p], shape[p] = int(repeats[axis]), x.shape[axis] * int(repeats[axis])
    return TosaTensor(b.op("tile", [x.value, b.shape_value(flat)], shape), x.perm)


@tosa_operator("Tile", types=ANY, since=6, moves=True)
def tile(b: TosaBuilder, x: TosaTensor, repeats: TosaTensor) -> TosaTensor:
    return tile_of(b, x, [int(n) for n in constant_of(repeats, "the repeats")])


@tosa_operator("Expand", types=ANY, since=8, moves=True)
def expand(b: TosaBuilder, x: TosaTensor, shape: TosaTensor) -> TosaTensor:
    wanted = np.broadcast_shapes(x.shape, tuple(int(s) for s in constant_of(shape, "the shape")))
    grown = b.reshape(x, (1,) * (len(wanted) - x.rank) + x.shape)
    if grown.scalar:
        return grown
    return tile_of(b, grown, [w // s for w, s in zip(wanted, grown.shape, strict=True)])


@tosa_operator("DepthToSpace", types=ANY, moves=True)
def depth_to_space(b: TosaBuilder, x: TosaTensor, *, blocksize: int, mode: str = "DCR") -> TosaTensor:
    n, c, h, w = x.shape
    s, rest = blocksize, c // blocksize**2
    if mode == "DCR":
        moved = b.permute(b.reshape(x, (n, s, s, rest, h, w)), (0, 3, 4, 1, 5, 2))
    else:
        moved = b.permute(b.reshape(x, (n, rest, s, s, h, w)), (0, 1, 4, 2, 5, 3))
    return b.reshape(moved, (n, rest, h * s, w * s))


@tosa_operator("SpaceToDepth", types=ANY, moves=True)
def space_to_depth(b: TosaBuilder, x: TosaTensor, *, blocksize: int) -> TosaTensor:
    n, c, h, w = x.shape
    s = blocksize
    moved = b.permute(b.reshape(x, (n, c, h // s, s, w // s, s)), (0, 3, 5, 1, 2, 4))
    return b.reshape(moved, (n, c * s * s, h // s, w // s))


@tosa_operator("ReverseSequence", types=ANY, moves=True)
def reverse_sequence(
    b: TosaBuilder, x: TosaTensor, lengths: TosaTensor, *, batch_axis: int = 1, time_axis: int = 0
) -> TosaTensor:
    """Whole sequences are reversed where all lengths are equal; others need a gather, which is not lowered."""
    wanted = constant_of(lengths, "the lengths").reshape(-1)
    if len(set(wanted.tolist())) != 1:
        b.decline("sequences of different lengths")
    size, length = x.shape[time_axis], int(wanted[0])
    head, *tail = _split(b, x, [length, size - length] if length < size else [length], time_axis)
    turned = reversed_along(b, head, time_axis)
    return concat(b, turned, *tail, axis=time_axis)


@tosa_operator("Trilu", types=ANY, moves=True)
def trilu(b: TosaBuilder, x: TosaTensor, k: TosaTensor | None = None, *, upper: int = 1) -> TosaTensor:
    shift = int(constant_of(k, "k").reshape(-1)[0]) if k is not None else 0
    ones = np.ones(x.shape[-2:], np.bool_)
    mask = b.constant(np.triu(ones, shift) if upper else np.tril(ones, shift))
    if x.dtype == "bool":
        return b.elementwise("logical_and", x, mask)
    return b.select(mask, x, b.fill(x, 0))
