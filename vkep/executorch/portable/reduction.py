"""Reductions, scans and orderings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from vkep.executorch.portable.registry import Array, Number, axes_of, kernel, kernels, wide

Dims = Sequence[int] | int | None


def _accumulator(x: Array) -> Any:
    """Integers and bools are summed in int64, as in torch."""
    return np.int64 if x.dtype.kind in "iub" else None


def _reduced(function: Callable[..., Array], x: Array, dim: Dims, keepdim: bool, **more: Any) -> Array:
    x = wide(x)
    return function(x, axis=axes_of(dim, x.ndim), keepdims=keepdim, **more)


def _logical(function: Callable[..., Array], x: Array, dim: Dims, keepdim: bool) -> Array:
    # an empty list: unlike sums, this does not mean all dimensions
    if not isinstance(dim, int) and dim is not None and not len(dim):
        return x != 0
    return _reduced(function, x, dim, keepdim)


def _position(function: Callable[..., Array], x: Array, dim: int | None, keepdim: bool) -> Array:
    if dim is None:
        found = np.asarray(function(x.reshape(-1)), np.int64)
        return found.reshape((1,) * x.ndim) if keepdim else found
    if x.ndim == 0:
        return np.zeros((), np.int64)
    index = function(x, axis=dim)
    return np.expand_dims(index, dim) if keepdim else index


def _variance(x: Array, dim: Dims, correction: Number | None, keepdim: bool) -> Array:
    x, axes = wide(x), axes_of(dim, x.ndim)
    count = int(np.prod([x.shape[a] for a in axes], dtype=np.int64))
    centred = x - np.mean(x, axis=axes, keepdims=True)
    degrees = count - (1 if correction is None else correction)
    return np.sum(centred * centred, axis=axes, keepdims=keepdim) / max(degrees, 0)


@kernel("topk.values", elements=lambda self, k, *_: max(self.size, k))
def topk(self: Array, k: int, dim: int, largest: bool, sorted_: bool) -> tuple[Array, Array]:
    if self.ndim == 0:
        return self, np.zeros((), np.int64)
    order = _order(self, dim, largest)
    index = np.take(order, np.arange(k), axis=dim)
    return np.take_along_axis(self, index, dim), index


@kernel("sort.values")
def sort(self: Array, dim: int, descending: bool) -> tuple[Array, Array]:
    if self.ndim == 0:
        return self, np.zeros((), np.int64)
    index = _order(self, dim, descending)
    return np.take_along_axis(self, index, dim), index


def _order(x: Array, dim: int, descending: bool) -> Array:
    """Stable sorting: positions in order; equal elements keep their order, also when descending."""
    if not descending:
        return np.argsort(x, axis=dim, kind="stable")
    turned = np.argsort(np.flip(x, dim), axis=dim, kind="stable")
    return x.shape[dim] - 1 - np.flip(turned, dim)


_EXPRESSIONS: dict[str, Callable[..., Any]] = {
    "sum.IntList_out": lambda x, dim, keepdim, dtype: _reduced(np.sum, x, dim, keepdim, dtype=_accumulator(x)),
    "prod.int_out": lambda x, dim, keepdim, dtype: _reduced(np.prod, x, dim, keepdim, dtype=_accumulator(x)),
    "prod.out": lambda x, dtype: np.prod(wide(x), dtype=_accumulator(x)),
    "mean.out": lambda x, dim, keepdim, dtype: _reduced(np.mean, x, dim, keepdim),
    "mean.dtype_out": lambda x, dtype: np.asarray(np.mean(wide(x))),
    "amax.out": lambda x, dim, keepdim: _reduced(np.max, x, dim, keepdim),
    "amin.out": lambda x, dim, keepdim: _reduced(np.min, x, dim, keepdim),
    "max.unary_out": lambda x: np.max(x),
    "min.unary_out": lambda x: np.min(x),
    "any.all_out": lambda x: np.asarray(np.any(x)),
    "all.all_out": lambda x: np.asarray(np.all(x)),
    "any.dims_out any.out": lambda x, dim, keepdim: _logical(np.any, x, dim, keepdim),
    "all.dims_out all.out": lambda x, dim, keepdim: _logical(np.all, x, dim, keepdim),
    "argmax.out": lambda x, dim, keepdim: _position(np.argmax, x, dim, keepdim),
    "argmin.out": lambda x, dim, keepdim: _position(np.argmin, x, dim, keepdim),
    "max.dim_max": lambda x, dim, keepdim: (
        _reduced(np.max, x, dim, keepdim),
        _position(np.argmax, x, dim, keepdim),
    ),
    "min.dim_min": lambda x, dim, keepdim: (
        _reduced(np.min, x, dim, keepdim),
        _position(np.argmin, x, dim, keepdim),
    ),
    "var.correction_out": _variance,
    "var.out": lambda x, dim, unbiased, keepdim: _variance(x, dim, int(unbiased), keepdim),
    "var_mean.correction_out": lambda x, dim, correction, keepdim: (
        _variance(x, dim, correction, keepdim),
        _reduced(np.mean, x, dim, keepdim),
    ),
    "std.correction_out": lambda x, dim, correction, keepdim: np.sqrt(_variance(x, dim, correction, keepdim)),
    "cumsum.out": lambda x, dim, dtype: np.cumsum(wide(x), axis=dim, dtype=_accumulator(x)) if x.ndim else x,
    "sort.values_stable": lambda x, stable, dim, descending: sort(x, dim, descending),
}
kernels(_EXPRESSIONS)
kernels({"nonzero.out": lambda x: np.argwhere(x)}, elements=lambda x: x.size * max(x.ndim, 1))
