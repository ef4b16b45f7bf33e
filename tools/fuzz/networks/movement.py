"""Operators that move elements."""

from __future__ import annotations

import math
from typing import Any

from tools.fuzz.networks.graph import Graph, Unfit, Value
from tools.fuzz.networks.steps import Step


def transpose(g: Graph) -> Value:
    x = g.pick(lambda v: v.rank >= 2, "image")
    orders = {4: ((0, 2, 3, 1), (0, 3, 1, 2), (0, 2, 1, 3), (1, 0, 2, 3)), 3: ((0, 2, 1), (1, 0, 2), (2, 1, 0))}
    order = g.one_of(*orders.get(x.rank, (tuple(range(x.rank))[::-1],)))
    return g.add("Transpose", x, perm=list(order))


def reshape(g: Graph) -> Value:
    """Two axes as one, one axis as two, or a flat form."""
    x = g.pick(lambda v: v.rank >= 2, "image")
    keep: list[Any] = [(x, axis) for axis in range(x.rank)]
    axis = g.number(0, x.rank - 1)
    kind = g.one_of("merge", "split", "flatten", "zero", "swap")
    if kind == "merge" and axis + 1 < x.rank:
        return g.reshape(x, *keep[:axis], -1, *keep[axis + 2 :])
    if kind == "split" and x.rank < 5 and x.is_fixed(axis):
        size = x.shape[axis]
        part = g.one_of(*(n for n in (2, 3, 4, 1, size) if size % n == 0))
        return g.reshape(x, *keep[:axis], part, size // part, *keep[axis + 1 :])
    if kind == "zero":
        return g.add("Reshape", x, g.ints(*[0] * min(axis, x.rank - 1), -1))
    if kind == "swap" and x.is_fixed():
        return g.reshape(x, *x.shape[::-1])
    return g.add("Flatten", x, axis=g.number(0, x.rank))


def squeeze(g: Graph) -> Value:
    x = g.pick(lambda v: 1 <= v.rank < 5, "vector")
    ones = [axis for axis in range(x.rank) if x.shape[axis] == 1 and x.is_fixed(axis)]
    if ones and x.rank > 1 and g.flag():
        return g.add("Squeeze", x, g.ints(g.one_of(*ones)))
    return g.add("Unsqueeze", x, g.ints(g.number(-x.rank - 1, x.rank)))


def slices(g: Graph) -> Value:
    x = g.pick(lambda v: v.rank >= 1, "image")
    axis = g.number(0, x.rank - 1)
    size = x.least(axis)
    step = g.one_of(1, 2, -1, 3)
    start = g.number(0, size - 1)
    if step < 0:
        ends = (-1 - start, -(1 << 31))
    else:
        ends = (start, g.one_of(size, 1 << 31, start + 1, -1))
    lists = [g.ints(n) for n in (*ends, axis, step)]
    return g.add("Slice", x, *lists)


def concat(g: Graph) -> Value:
    """Values side by side along any axis: of other steps, parts of them, or constants."""
    x = g.pick(lambda v: v.rank >= 1, "image")
    axis = g.number(0, x.rank - 1)

    def fits(v: Value) -> bool:
        return v.rank == x.rank and all(
            a == axis or m.shape[a] == n.shape[a] for m, n in zip(x.runs, v.runs, strict=True) for a in range(x.rank)
        )

    parts = [x]
    for _ in range(g.number(1, 3)):
        other = g.one_of("value", "value", "activation", "constant")
        if other == "constant" and x.is_fixed(*(a for a in range(x.rank) if a != axis)):
            shape = list(x.shape)
            shape[axis] = 1
            parts.append(g.weights(x.dtype, *shape))
        elif other == "activation":
            parts.append(g.add(g.one_of("Relu", "Neg"), x))
        else:
            parts.append(g.cast(g.pick(fits), x.dtype))
    if g.flag():
        parts.reverse()
    return g.add("Concat", *parts, axis=g.one_of(axis, axis - x.rank))


def split(g: Graph) -> Any:
    x = g.pick(lambda v: v.rank >= 1 and any(v.is_fixed(a) and v.shape[a] > 1 for a in range(v.rank)), "image")
    axis = g.one_of(*(a for a in range(x.rank) if x.is_fixed(a) and x.shape[a] > 1))
    first = g.number(1, x.shape[axis] - 1)
    sizes = [first, x.shape[axis] - first]
    return g.split(x, sizes, axis)


def pad(g: Graph) -> Value:
    x = g.pick(lambda v: v.rank >= 2, "image")
    mode = g.one_of("constant", "reflect", "edge")
    axes = (x.rank - 1, x.rank - 2) if x.rank > 2 else (x.rank - 1,)
    pads = [0] * 2 * x.rank
    for axis in axes:
        most = min(2, x.least(axis) - 1) if mode == "reflect" else 2
        pads[axis], pads[x.rank + axis] = g.number(0, most), g.number(0, most)
    value = g.constant(g.one_of(0.0, 1.5), x.dtype) if mode == "constant" else None
    return g.add("Pad", x, g.ints(*pads), value, mode=mode)


def crop(g: Graph) -> Value:
    """A Pad with negative pads."""
    x = g.pick(lambda v: v.rank >= 2 and v.least(-1) > 2, "image")
    pads = [0] * 2 * x.rank
    pads[x.rank - 1], pads[-1] = -1, g.one_of(0, -1, 1)
    return g.add("Pad", x, g.ints(*pads))


def tile(g: Graph) -> Value:
    x = g.pick(lambda v: v.rank >= 1 and v.runs[0].size < 500, "vector")
    return g.add("Tile", x, g.ints(*(g.one_of(1, 2, 3) for _ in range(x.rank))))


def expand(g: Graph) -> Value:
    x = g.pick(lambda v: v.rank < 5 and v.is_fixed() and v.runs[0].size < 500, "vector")
    sizes = [g.one_of(1, 2, 3) if size == 1 else g.one_of(size, 1) for size in x.shape]
    return g.add("Expand", x, g.ints(*([2] if g.flag() else []), *sizes))


def gather(g: Graph) -> Value:
    x = g.pick(lambda v: v.rank >= 1, "sequence")
    axis = g.number(0, x.rank - 1)
    size = x.least(axis)
    indices = g.rng.integers(-size, size, g.one_of((), (1,), (3,), (2, 2)))
    if indices.ndim + x.rank > 6:
        raise Unfit
    return g.add("Gather", x, g.constant(indices, g.one_of("int64", "int32")), axis=axis)


def shuffle(g: Graph) -> Value:
    """Depth to space, or space to depth."""
    x = g.pick(lambda v: v.rank == 4 and v.is_fixed(1), "image")
    if x.shape[1] % 4 == 0:
        return g.add("DepthToSpace", x, blocksize=2, mode=g.one_of("DCR", "CRD"))
    if all(n % 2 == 0 for run in x.runs for n in run.shape[2:]):
        return g.add("SpaceToDepth", x, blocksize=2)
    raise Unfit


def scatter(g: Graph) -> Value:
    """Elements that others replace, or are added to."""
    x = g.pick(lambda v: v.rank >= 2 and v.is_fixed() and math.prod(v.shape) < 2000, "vector")
    count = g.number(1, x.shape[0])
    rows = g.rng.permutation(x.shape[0])[:count].reshape(-1, 1)
    updates = g.weights(x.dtype, count, *x.shape[1:])
    if g.opset >= 16 and x.dtype == "float32" and g.flag():
        return g.add("ScatterND", x, g.constant(rows, "int64"), updates, reduction="add")
    return g.add("ScatterND", x, g.constant(rows, "int64"), updates)


MOVEMENTS: tuple[Step, ...] = (
    transpose, reshape, concat, slices, split, pad, gather, squeeze, tile, expand, shuffle, scatter, crop,
)  # fmt: skip
