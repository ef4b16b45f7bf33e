"""Reading by index."""

from __future__ import annotations

from collections.abc import Sequence

from vkep.aten.builder import BOOL, GraphBuilder, Val
from vkep.aten.registry import aten


def taken(b: GraphBuilder, x: Val, axis: int, index: Val) -> Val:
    """``x`` at positions along an axis, whose place the index's axes take."""
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
    """One index takes its axis's place; several neighbours are broadcast, and take the place of theirs together."""
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
    # the indexed axes to the front, GatherND, and the index's axes back in their place
    rest = [k for k in range(x.rank) if not first <= k <= last]
    front = b.transpose(x, [*range(first, last + 1), *rest]) if first else x
    shape = b.results[0].rank - len(rest)
    total = given[0][1]
    for _, i in given[1:]:
        total = b.op("Add", b.cast(total, 7), b.cast(i, 7))  # only for its sizes
    columns = [b.op("Expand", b.cast(i, 7), b.sizes(total), dims=total.dims) for _, i in given]
    joined = b.op("Concat", *(b.unsqueeze(c, [shape]) for c in columns), axis=shape, dims=(*total.dims, len(columns)))
    out = b.op("GatherND", front, joined, dims=(*total.dims, *(x.dims[k] for k in rest)))
    order = [*range(shape, shape + first), *range(shape), *range(shape + first, shape + len(rest))]
    return b.transpose(out, order) if first else out
