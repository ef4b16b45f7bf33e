"""Operators that move elements without computing: views, joins, slices, padding, reading by index."""

from __future__ import annotations

import math
from collections.abc import Sequence

from vkep.aten.builder import BOOL, INT64, GraphBuilder, Number, Size, Val
from vkep.aten.registry import aten

_TO_THE_END = 2**63 - 1


@aten("aten.view_copy.default")
def view(b: GraphBuilder, x: Val, size: Sequence[Size]) -> Val:
    return b.reshape(x, size)


@aten("aten.permute.default", "aten.permute_copy.default")
def permute(b: GraphBuilder, x: Val, dims: Sequence[int]) -> Val:
    return b.transpose(x, [b.axis(d, x.rank) for d in dims])


@aten("aten.t_copy.default")
def t_copy(b: GraphBuilder, x: Val) -> Val:
    return b.transpose(x, range(x.rank)[::-1])


@aten("aten.expand_copy.default")
def expand(b: GraphBuilder, x: Val, size: Sequence[Size], implicit: bool = False) -> Val:
    """Expand a tensor; a size of -1 keeps the tensor's, where ONNX's Expand has 1."""
    lead = [None] * (len(size) - x.rank)
    dims = [
        old if s == -1 else (s if isinstance(s, int) else None) for s, old in zip(size, [*lead, *x.dims], strict=True)
    ]
    return b.op("Expand", x, b.ints([1 if isinstance(s, int) and s == -1 else s for s in size]), dims=dims)


@aten("aten.repeat.default")
def repeat(b: GraphBuilder, x: Val, repeats: Sequence[Size]) -> Val:
    if len(repeats) > x.rank:
        x = b.unsqueeze(x, range(len(repeats) - x.rank))
    dims = [d * r if d is not None and isinstance(r, int) else None for d, r in zip(x.dims, repeats, strict=True)]
    return b.op("Tile", x, b.ints(repeats), dims=dims) if repeats else x


@aten("aten.squeeze_copy.dims")
def squeeze(b: GraphBuilder, x: Val, dim: Sequence[int]) -> Val:
    """Only axes of size 1 are removed. Where sizes are not known, the rank of the result decides whether all of them
    are."""
    axes = sorted({b.axis(d, x.rank) for d in dim})
    if x.rank - b.results[0].rank != len(axes):
        axes = [a for a in axes if x.dims[a] == 1]
        if x.rank - b.results[0].rank != len(axes):
            b.decline("which of its axes have the size 1 is known only while running")
    return b.squeeze(x, axes) if axes else x


@aten("aten.unsqueeze_copy.default")
def unsqueeze(b: GraphBuilder, x: Val, dim: int) -> Val:
    return b.unsqueeze(x, [b.axis(dim, x.rank + 1)])


@aten("aten.cat.default")
def cat(b: GraphBuilder, tensors: Sequence[Val], dim: int = 0) -> Val:
    rank = b.results[0].rank
    parts = [b.cast(t, b.results[0].elem) for t in tensors if not (t.dims == (0,) and rank != 1)]
    axis = b.axis(dim, rank)
    sizes = [p.dims[axis] for p in parts]
    length = None if None in sizes else sum(s for s in sizes if s is not None)
    dims = [length if k == axis else d for k, d in enumerate(parts[0].dims)]
    return parts[0] if len(parts) == 1 else b.op("Concat", *parts, axis=axis, dims=dims)


@aten("aten.split_with_sizes_copy.default")
def split_with_sizes(b: GraphBuilder, x: Val, split_sizes: Sequence[Size], dim: int = 0) -> list[Val]:
    axis = b.axis(dim, x.rank)
    if len(split_sizes) == 1:
        return [x]
    parts = b.ops(len(split_sizes), "Split", x, b.ints(split_sizes), axis=axis, dims=x.dims)
    lengths = [s if isinstance(s, int) else None for s in split_sizes]
    return [
        b.retyped(part, dims=[length if k == axis else d for k, d in enumerate(x.dims)])
        for part, length in zip(parts, lengths, strict=True)
    ]


@aten("aten.slice_copy.Tensor")
def slice_(
    b: GraphBuilder, x: Val, dim: int = 0, start: Size | None = None, end: Size | None = None, step: int = 1
) -> Val:
    axis = b.axis(dim, x.rank)
    first: Size = 0 if start is None else start
    last: Size = _TO_THE_END if end is None else end
    length = _distance(b, first, last)
    if length is not None and not isinstance(first, int):
        # a window at a variable position: its length is known, so one plan serves all positions
        index = b.range(length, first)
        return b.op("Gather", x, index, axis=axis, dims=[length if k == axis else d for k, d in enumerate(x.dims)])
    return b.slice(x, axis, first, last, step)


def _distance(b: GraphBuilder, first: Size, last: Size) -> int | None:
    """``last - first`` where both are the same symbolic integer plus a number and it is not negative; else None."""
    if isinstance(first, int) or isinstance(last, int):
        return None
    base, offset = b.offsets.get(first.name, (first.name, 0))
    other, end = b.offsets.get(last.name, (last.name, 0))
    return end - offset if base == other and end >= offset else None


@aten("aten.select_copy.int")
def select(b: GraphBuilder, x: Val, dim: int, index: Size) -> Val:
    axis = b.axis(dim, x.rank)
    dims = [d for k, d in enumerate(x.dims) if k != axis]
    if isinstance(index, int):
        end = index + 1 if index != -1 else _TO_THE_END
        return b.squeeze(b.slice(x, axis, index, end), [axis])
    return b.op("Gather", x, b.cast(index, INT64), axis=axis, dims=dims)


@aten("aten.flip.default")
def flip(b: GraphBuilder, x: Val, dims: Sequence[int]) -> Val:
    axes = sorted({b.axis(d, x.rank) for d in dims})
    if not axes or not x.rank:
        return x
    count = len(axes)
    bounds = [b.ints([-1] * count), b.ints([-_TO_THE_END] * count), b.ints(axes), b.ints([-1] * count)]
    return b.op("Slice", x, *bounds, dims=x.dims)


@aten("aten.constant_pad_nd.default")
def constant_pad(b: GraphBuilder, x: Val, pad: Sequence[Size], value: Number = 0) -> Val:
    """Pairs start at the last axis; a negative pad removes elements."""
    count = len(pad) // 2
    axes = [x.rank - 1 - k for k in range(count)]
    pads = [*(pad[2 * k] for k in range(count)), *(pad[2 * k + 1] for k in range(count))]
    dims: list[int | None] = list(x.dims)
    for k, axis in enumerate(axes):
        before, after, size = pad[2 * k], pad[2 * k + 1], dims[axis]
        dims[axis] = (
            size + before + after if isinstance(before, int) and isinstance(after, int) and size is not None else None
        )
    return b.op("Pad", x, b.ints(pads), b.number(value, x.elem), b.ints(axes), dims=dims) if pad else x


@aten("aten.pixel_shuffle.default")
def pixel_shuffle(b: GraphBuilder, x: Val, upscale_factor: int) -> Val:
    flat = x if x.rank == 4 else b.reshape(x, [math.prod(x.shape[:-3]), *x.shape[-3:]])
    out = b.op("DepthToSpace", flat, blocksize=upscale_factor, mode="CRD")
    if x.rank == 4:
        return out
    channels, height, width = x.shape[-3:]
    r = upscale_factor
    return b.reshape(out, [*x.shape[:-3], channels // (r * r), height * r, width * r])


@aten("aten.unfold_copy.default")
def unfold(b: GraphBuilder, x: Val, dimension: int, size: int, step: int) -> Val:
    """Windows along an axis; the window's elements become the last axis."""
    axis = b.axis(dimension, x.rank)
    steps = b.arithmetic("Add", b.arithmetic("Div", b.arithmetic("Sub", b.size(x, axis), size), step), 1)
    starts = b.op("Mul", b.range(steps), b.number(step, INT64))
    index = b.op("Add", b.unsqueeze(starts, [1]), b.range(size))
    windows = b.op("Gather", x, index, axis=axis, dims=[*x.dims[:axis], *index.dims, *x.dims[axis + 1 :]])
    return b.transpose(windows, [k for k in range(x.rank + 1) if k != axis + 1] + [axis + 1])


def taken(b: GraphBuilder, x: Val, axis: int, index: Val) -> Val:
    """Gather ``x`` at positions along an axis. The index's axes replace that axis."""
    return b.op("Gather", x, index, axis=axis, dims=[*x.dims[:axis], *index.dims, *x.dims[axis + 1 :]])


@aten("aten.embedding.default")
def embedding(
    b: GraphBuilder,
    weight: Val,
    indices: Val,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Val:
    return taken(b, weight, 0, indices)


@aten("aten.index_select.default")
def index_select(b: GraphBuilder, x: Val, dim: int, index: Val) -> Val:
    if not x.rank:
        return x
    return taken(b, x, b.axis(dim, x.rank), b.reshape(index, [1]) if index.rank == 0 else index)


@aten("aten.gather.default")
def gather(b: GraphBuilder, x: Val, dim: int, index: Val, sparse_grad: bool = False) -> Val:
    if not x.rank:
        return x
    axis = b.axis(dim, x.rank)
    for k in range(x.rank):  # the index may be smaller than the tensor
        have, want = x.dims[k], index.dims[k]
        if k != axis and have != want and want is not None:
            x = b.slice(x, k, 0, want)
    return b.op("GatherElements", x, index, axis=axis, dims=index.dims)


@aten("aten.index.Tensor")
def index(b: GraphBuilder, x: Val, indices: Sequence[Val | None]) -> Val:
    """One index replaces its axis; several adjacent ones are broadcast, and replace their axes together."""
    given = [(axis, i) for axis, i in enumerate(indices) if i is not None]
    if not given:
        return x
    if any(i.elem == BOOL for _, i in given):
        b.decline("an index of booleans, whose result's size is data")
    first, last = given[0][0], given[-1][0]
    if len(given) == 1:
        return taken(b, x, first, given[0][1])
    if last - first + 1 != len(given):
        b.decline("several indices with an axis between them")
    # move the indexed axes to the front, GatherND, and move the index's axes back
    rest = [k for k in range(x.rank) if not first <= k <= last]
    front = b.transpose(x, [*range(first, last + 1), *rest]) if first else x
    index_rank = b.results[0].rank - len(rest)
    broadcast = given[0][1]
    for _, i in given[1:]:
        # only its shape matters: that of the broadcast indices
        broadcast = b.op("Add", b.cast(broadcast, INT64), b.cast(i, INT64))
    columns = [b.op("Expand", b.cast(i, INT64), b.sizes(broadcast), dims=broadcast.dims) for _, i in given]
    joined = b.op(
        "Concat",
        *(b.unsqueeze(c, [index_rank]) for c in columns),
        axis=index_rank,
        dims=(*broadcast.dims, len(columns)),
    )
    out = b.op("GatherND", front, joined, dims=(*broadcast.dims, *(x.dims[k] for k in rest)))
    order = [
        *range(index_rank, index_rank + first),
        *range(index_rank),
        *range(index_rank + first, index_rank + len(rest)),
    ]
    return b.transpose(out, order) if first else out
