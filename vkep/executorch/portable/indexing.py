"""Operators that read or write at indices."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from vkep.executorch.portable.movement import span
from vkep.executorch.portable.registry import Array, Number, broadcast, kernel, kernels


@kernel("gather.out", elements=lambda self, dim, index, sparse_grad: index.size)
def gather(self: Array, dim: int, index: Array, sparse_grad: bool) -> Array:
    if self.ndim == 0 or index.ndim == 0:
        return self.reshape(-1)[index]
    return self[_grid(index, dim)]


def _grid(index: Array, dim: int) -> tuple[Array, ...]:
    """Full indices of each element of ``index``, which replaces those of ``dim``."""
    grid: list[Array] = list(np.ix_(*(np.arange(n) for n in index.shape)))
    grid[dim % index.ndim] = index
    return tuple(grid)


def _tuple(indices: Sequence[Array | None]) -> tuple[Any, ...]:
    """numpy's form of torch's list of indices. numpy puts the dimensions of split advanced indices first, as torch does."""
    found: list[Any] = []
    for index in indices:
        if index is None:
            found.append(slice(None))
        elif index.dtype == np.bool_:
            found += list(np.nonzero(index))
        else:
            found.append(index)
    return tuple(found)


def _picked(self: Array, indices: Sequence[Array | None], *_: Any) -> int:
    """The elements at the indices: those of the indices together, for each element of the dimensions without one."""
    given = [index.reshape(-1) if index.dtype == np.bool_ else index for index in indices if index is not None]
    taken = [index.ndim if index is not None and index.dtype == np.bool_ else 1 for index in indices]
    shape, rest, axis = self.shape, 1, 0
    for index, count in zip(indices, taken, strict=True):
        rest *= 1 if index is not None else shape[axis]
        axis += count
    together = math.prod(np.broadcast_shapes(*[index.shape for index in given]))
    return max(self.size, together * rest * math.prod(shape[axis:]))


@kernel("index_put.out", "index_put_", elements=_picked)
def index_put(self: Array, indices: Sequence[Array | None], values: Array, accumulate: bool) -> Array:
    result, where = self.copy(), _tuple(indices)
    if accumulate:
        np.add.at(result, where, values.astype(result.dtype))
    else:
        result[where] = values
    return result


def _scattered(self: Array, dim: int, index: Array, source: Array | Number) -> int:
    return max(self.size, index.size)


@kernel("scatter.value_out", elements=_scattered)
def scatter(self: Array, dim: int, index: Array, value: Array | Number) -> Array:
    result = self.copy()
    result[_grid(index, dim)] = value
    return result


@kernel("scatter.src_out", elements=_scattered)
def scatter_source(self: Array, dim: int, index: Array, source: Array) -> Array:
    return scatter(self, dim, index, source[tuple(slice(n) for n in index.shape)])


@kernel("scatter_add.out", elements=_scattered)
def scatter_add(self: Array, dim: int, index: Array, source: Array) -> Array:
    result = self.copy()
    np.add.at(result, _grid(index, dim), source[tuple(slice(n) for n in index.shape)])
    return result


@kernel("select_scatter.out", elements=lambda self, *_: self.size)
def select_scatter(self: Array, source: Array, dim: int, index: int) -> Array:
    result = self.copy()
    result[(slice(None),) * (dim % self.ndim) + (index,)] = source
    return result


@kernel("slice_scatter.out", elements=lambda self, *_: self.size)
def slice_scatter(self: Array, source: Array, dim: int, start: int | None, end: int | None, step: int) -> Array:
    result, axis = self.copy(), dim % self.ndim
    result[(slice(None),) * axis + (span(self.shape[axis], start, end, step),)] = source
    return result


@kernel("masked_scatter.out", elements=lambda self, mask, source: broadcast(self, mask))
def masked_scatter(self: Array, mask: Array, source: Array) -> Array:
    shape = np.broadcast_shapes(self.shape, mask.shape)
    result, where = np.broadcast_to(self, shape).copy(), np.broadcast_to(mask, shape)
    result[where] = source.reshape(-1)[: int(where.sum())]
    return result


@kernel("masked_select.out")
def masked_select(self: Array, mask: Array) -> Array:
    everywhere, where = np.broadcast_arrays(self, mask)
    return everywhere[where]


_INDEX_SELECT: dict[str, Callable[..., Any]] = {
    "index_select.out": lambda x, dim, index: np.take(x, index.reshape(-1), axis=dim) if x.ndim else x,
}
kernels(_INDEX_SELECT, elements=lambda x, dim, index: math.prod(np.delete(x.shape, dim)) * index.size if x.ndim else 1)
_EMBEDDING: dict[str, Callable[..., Any]] = {
    "embedding.out": lambda weight, indices, padding_idx, scale_grad, sparse: weight[indices],
}
kernels(_EMBEDDING, elements=lambda weight, indices, *_: indices.size * math.prod(weight.shape[1:]))
kernels({"index.Tensor_out": lambda x, indices: x[_tuple(indices)]}, elements=_picked)
