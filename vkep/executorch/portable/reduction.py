"""Reductions, scans and orderings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from vkep.executorch.portable.registry import Array, Number, axes_of, kernel, wide


def _accumulator(x: Array) -> Any:
    """Integers and bools are summed in int64, as in torch."""
    return np.int64 if x.dtype.kind in "iub" else None


@kernel("sum.IntList_out")
def sum_(self: Array, dim: Sequence[int] | None, keepdim: bool, dtype: int | None) -> Array:
    x = wide(self)
    return np.sum(x, axis=axes_of(dim, x.ndim), keepdims=keepdim, dtype=_accumulator(x))


@kernel("mean.out")
def mean(self: Array, dim: Sequence[int] | None, keepdim: bool, dtype: int | None) -> Array:
    x = wide(self)
    return np.mean(x, axis=axes_of(dim, x.ndim), keepdims=keepdim)


@kernel("mean.dtype_out")
def mean_all(self: Array, dtype: int | None) -> Array:
    return np.asarray(np.mean(wide(self)))


@kernel("prod.int_out")
def prod(self: Array, dim: int, keepdim: bool, dtype: int | None) -> Array:
    x = wide(self)
    return np.prod(x, axis=axes_of(dim, x.ndim), keepdims=keepdim, dtype=_accumulator(x))


@kernel("prod.out")
def prod_all(self: Array, dtype: int | None) -> Array:
    x = wide(self)
    return np.prod(x, dtype=_accumulator(x))


@kernel("amax.out")
def amax(self: Array, dim: Sequence[int], keepdim: bool) -> Array:
    return np.max(self, axis=axes_of(dim, self.ndim), keepdims=keepdim)


@kernel("amin.out")
def amin(self: Array, dim: Sequence[int], keepdim: bool) -> Array:
    return np.min(self, axis=axes_of(dim, self.ndim), keepdims=keepdim)


@kernel("any.all_out")
def any_all(self: Array) -> Array:
    return np.asarray(np.any(self))


@kernel("all.all_out")
def all_all(self: Array) -> Array:
    return np.asarray(np.all(self))


@kernel("any.dims_out", "any.out")
def any_(self: Array, dim: Sequence[int] | int | None, keepdim: bool) -> Array:
    if not isinstance(dim, int) and dim is not None and not len(dim):  # no dimension, other than for sums
        return self != 0
    return np.any(self, axis=axes_of(dim, self.ndim), keepdims=keepdim)


@kernel("all.dims_out", "all.out")
def all_(self: Array, dim: Sequence[int] | int | None, keepdim: bool) -> Array:
    if not isinstance(dim, int) and dim is not None and not len(dim):  # no dimension, other than for sums
        return self != 0
    return np.all(self, axis=axes_of(dim, self.ndim), keepdims=keepdim)


def _arg(self: Array, dim: int | None, keepdim: bool, best: Any) -> Array:
    if dim is None:
        found = np.asarray(best(self.reshape(-1)), np.int64)
        return found.reshape((1,) * self.ndim) if keepdim else found
    if self.ndim == 0:
        return np.zeros((), np.int64)
    index = best(self, axis=dim)
    return np.expand_dims(index, dim) if keepdim else index


@kernel("argmax.out")
def argmax(self: Array, dim: int | None, keepdim: bool) -> Array:
    return _arg(self, dim, keepdim, np.argmax)


@kernel("argmin.out")
def argmin(self: Array, dim: int | None, keepdim: bool) -> Array:
    return _arg(self, dim, keepdim, np.argmin)


@kernel("max.dim_max")
def max_dim(self: Array, dim: int, keepdim: bool) -> tuple[Array, Array]:
    return amax(self, (dim,), keepdim), argmax(self, dim, keepdim)


@kernel("min.dim_min")
def min_dim(self: Array, dim: int, keepdim: bool) -> tuple[Array, Array]:
    return amin(self, (dim,), keepdim), argmin(self, dim, keepdim)


@kernel("max.unary_out")
def max_all(self: Array) -> Array:
    return np.max(self)


@kernel("min.unary_out")
def min_all(self: Array) -> Array:
    return np.min(self)


def _variance(x: Array, axes: tuple[int, ...], correction: Number, keepdim: bool) -> Array:
    count = int(np.prod([x.shape[a] for a in axes], dtype=np.int64))
    centred = x - np.mean(x, axis=axes, keepdims=True)
    return np.sum(centred * centred, axis=axes, keepdims=keepdim) / max(count - correction, 0)


@kernel("var.correction_out")
def var_correction(self: Array, dim: Sequence[int] | None, correction: Number | None, keepdim: bool) -> Array:
    x = wide(self)
    return _variance(x, axes_of(dim, x.ndim), 1 if correction is None else correction, keepdim)


@kernel("var.out")
def var(self: Array, dim: Sequence[int] | None, unbiased: bool, keepdim: bool) -> Array:
    return _variance(wide(self), axes_of(dim, self.ndim), int(unbiased), keepdim)


@kernel("var_mean.correction_out")
def var_mean(self: Array, dim: Sequence[int] | None, correction: Number | None, keepdim: bool) -> tuple[Array, Array]:
    axes = axes_of(dim, self.ndim)
    return var_correction(self, dim, correction, keepdim), np.mean(wide(self), axis=axes, keepdims=keepdim)


@kernel("std.correction_out")
def std(self: Array, dim: Sequence[int] | None, correction: Number | None, keepdim: bool) -> Array:
    return np.sqrt(var_correction(self, dim, correction, keepdim))


@kernel("cumsum.out")
def cumsum(self: Array, dim: int, dtype: int | None) -> Array:
    x = wide(self)
    return np.cumsum(x, axis=dim, dtype=_accumulator(x)) if x.ndim else x


@kernel("topk.values")
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


@kernel("sort.values_stable")
def sort_stable(self: Array, stable: bool | None, dim: int, descending: bool) -> tuple[Array, Array]:
    return sort(self, dim, descending)


def _order(x: Array, dim: int, descending: bool) -> Array:
    """Stable positions in order; equal elements stay as they are, also backwards."""
    if not descending:
        return np.argsort(x, axis=dim, kind="stable")
    turned = np.argsort(np.flip(x, dim), axis=dim, kind="stable")
    return x.shape[dim] - 1 - np.flip(turned, dim)


@kernel("nonzero.out")
def nonzero(self: Array) -> Array:
    return np.argwhere(self)
