"""Operators that create tensors from numbers, and that move elements."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from vkep.executorch.portable.registry import Array, Number, kernel, kernels


@kernel("squeeze_copy.dims_out")
def squeeze_dims(self: Array, dims: Sequence[int]) -> Array:
    if self.ndim == 0:
        return self
    return np.squeeze(self, tuple({d % self.ndim for d in dims if self.shape[d] == 1}))


@kernel("expand_copy.out")
def expand(self: Array, size: Sequence[int], implicit: bool) -> Array:
    lead = len(size) - self.ndim
    full = [self.shape[i - lead] if s == -1 else s for i, s in enumerate(size)]
    return np.broadcast_to(self, full)


@kernel("select_copy.int_out")
def select(self: Array, dim: int, index: int) -> Array:
    return self[(slice(None),) * (dim % self.ndim) + (index,)]


def span(size: int, start: int | None, end: int | None, step: int) -> slice:
    """torch's slice: negative bounds count from the end, and all are clamped to the size."""
    first = 0 if start is None else max(start + size, 0) if start < 0 else min(start, size)
    last = size if end is None else max(end + size, 0) if end < 0 else min(end, size)
    return slice(first, max(first, last), step)


@kernel("slice_copy.Tensor_out")
def slice_(self: Array, dim: int, start: int | None, end: int | None, step: int) -> Array:
    axis = dim % self.ndim
    return self[(slice(None),) * axis + (span(self.shape[axis], start, end, step),)]


@kernel("narrow_copy.out")
def narrow(self: Array, dim: int, start: int, length: int) -> Array:
    axis = dim % self.ndim
    first = start % self.shape[axis] if start < 0 else start
    return self[(slice(None),) * axis + (slice(first, first + length),)]


@kernel("split_copy.Tensor_out")
def split(self: Array, split_size: int, dim: int) -> tuple[Array, ...]:
    size = self.shape[dim]
    return tuple(slice_(self, dim, k, k + split_size, 1) for k in range(0, max(size, 1), max(split_size, 1)))


@kernel("split_with_sizes_copy.out")
def split_with_sizes(self: Array, sizes: Sequence[int], dim: int) -> tuple[Array, ...]:
    ends = np.cumsum(sizes)
    return tuple(slice_(self, dim, int(e) - s, int(e), 1) for s, e in zip(sizes, ends, strict=True))


def _joined(tensors: Sequence[Array], dim: int) -> int:
    return sum(x.size for x in tensors)


@kernel("cat.out", elements=_joined)
def cat(tensors: Sequence[Array], dim: int) -> Array:
    parts = [x for x in tensors if x.shape != (0,)] or list(tensors)[:1]  # torch allows empty ones of rank 1
    return np.concatenate(parts, axis=dim)


@kernel("roll.out")
def roll(self: Array, shifts: Sequence[int], dims: Sequence[int]) -> Array:
    if not len(dims):
        return np.roll(self.reshape(-1), shifts[0]).reshape(self.shape)
    return np.roll(self, tuple(shifts), tuple(dims))


def _widths(self: Array, pad: Sequence[int]) -> list[tuple[int, int]]:
    """Pairs for each dimension, from torch's list that starts with the last one."""
    pairs = [(pad[i], pad[i + 1]) for i in range(0, len(pad), 2)]
    return [(0, 0)] * (self.ndim - len(pairs)) + pairs[::-1]


def _padded(self: Array, pad: Sequence[int], value: Number = 0) -> int:
    return math.prod(n + max(a, 0) + max(b, 0) for n, (a, b) in zip(self.shape, _widths(self, pad), strict=True))


@kernel("constant_pad_nd.out", elements=_padded)
def constant_pad(self: Array, pad: Sequence[int], value: Number) -> Array:
    widths = _widths(self, pad)
    cut = tuple(slice(max(-a, 0), n - max(-b, 0)) for (a, b), n in zip(widths, self.shape, strict=True))
    return np.pad(self[cut], [(max(a, 0), max(b, 0)) for a, b in widths], constant_values=value)


@kernel("pixel_shuffle.out")
def pixel_shuffle(self: Array, factor: int) -> Array:
    *lead, c, h, w = self.shape
    n = len(lead)
    x = self.reshape(*lead, c // factor**2, factor, factor, h, w)
    x = x.transpose([*range(n), n, n + 3, n + 1, n + 4, n + 2])
    return x.reshape(*lead, c // factor**2, h * factor, w * factor)


@kernel("pixel_unshuffle.out")
def pixel_unshuffle(self: Array, factor: int) -> Array:
    *lead, c, h, w = self.shape
    n = len(lead)
    x = self.reshape(*lead, c, h // factor, factor, w // factor, factor)
    x = x.transpose([*range(n), n, n + 2, n + 4, n + 1, n + 3])
    return x.reshape(*lead, c * factor**2, h // factor, w // factor)


@kernel("unfold_copy.out")
def unfold(self: Array, dimension: int, size: int, step: int) -> Array:
    axis = dimension % self.ndim
    windows = np.lib.stride_tricks.sliding_window_view(self, size, axis)
    return windows[(slice(None),) * axis + (slice(None, None, step),)]


@kernel("as_strided_copy.out", elements=lambda self, size, stride, offset: math.prod(size))
def as_strided(self: Array, size: Sequence[int], stride: Sequence[int], offset: int | None) -> Array:
    index = np.full((), offset or 0, np.int64)
    for length, step in zip(size, stride, strict=True):
        index = index[..., None] + np.arange(length) * step
    return self.reshape(-1)[index]


_OF_A_SIZE: dict[str, Callable[..., Any]] = {
    "full.out": lambda size, value: np.full(size, value),
    "zeros.out": lambda size: np.zeros(size),
    "ones.out": lambda size: np.ones(size),
    "empty.memory_format empty.out": lambda size, memory_format: np.zeros(size),
    "dim_order_ops::_empty_dim_order.out": lambda size, dim_order: np.zeros(size),
    "rand.out": lambda size: np.random.default_rng().random(size),
    "randn.out": lambda size: np.random.default_rng().standard_normal(size),
}
kernels(_OF_A_SIZE, elements=lambda size, *_: math.prod(size))
_OF_A_RANGE: dict[str, Callable[..., Any]] = {
    "arange.out": lambda end: np.arange(end),
    "arange.start_out": lambda start, end, step: np.arange(start, end, step),
}
kernels(_OF_A_RANGE, elements=lambda first, end=None, step=1: math.ceil(first if end is None else (end - first) / step))
_PADS: dict[str, Callable[..., Any]] = {
    "reflection_pad1d.out reflection_pad2d.out reflection_pad3d.out": (
        lambda x, padding: np.pad(x, _widths(x, padding), mode="reflect")
    ),
    "replication_pad1d.out replication_pad2d.out replication_pad3d.out": (
        lambda x, padding: np.pad(x, _widths(x, padding), mode="edge")
    ),
}
kernels(_PADS, elements=_padded)
kernels({"stack.out": lambda tensors, dim: np.stack(list(tensors), axis=dim)}, elements=_joined)
kernels(
    {"repeat.out": lambda x, repeats: np.tile(x, tuple(repeats))},
    elements=lambda x, repeats: x.size * math.prod(repeats),
)
kernels(
    {"repeat_interleave.Tensor_out": lambda repeats, output_size: np.repeat(np.arange(len(repeats)), repeats)},
    elements=lambda repeats, output_size: max(int(repeats.sum()), repeats.size),
)
_EXPRESSIONS: dict[str, Callable[..., Any]] = {
    "full_like.out": lambda x, value, memory_format: np.full(x.shape, value),
    "zeros_like.out": lambda x, memory_format: np.zeros(x.shape),
    "ones_like.out": lambda x, memory_format: np.ones(x.shape),
    "scalar_tensor.out": lambda value: np.asarray(value),
    "fill.Scalar_out fill.Tensor_out": lambda x, value: np.broadcast_to(np.asarray(value), x.shape),
    "clone.out _to_copy.memory_out": lambda x, memory_format: x,
    "alias_copy.out detach_copy.out lift_fresh_copy.out et_copy::_h2d_copy.out et_copy::_d2h_copy.out": lambda x: x,
    "_to_copy.out": lambda x, non_blocking, memory_format: x,
    "dim_order_ops::_to_dim_order_copy.out dim_order_ops::_clone_dim_order.out": lambda x, non_blocking, dim_order: x,
    "copy.out copy_": lambda x, source, non_blocking: np.broadcast_to(source, x.shape),
    "permute_copy.out": lambda x, dims: x.transpose([d % x.ndim for d in dims]),
    "transpose_copy.int_out": lambda x, dim0, dim1: np.swapaxes(x, dim0, dim1) if x.ndim else x,
    "t_copy.out": lambda x: x.T,
    "view_copy.out _unsafe_view.out reshape_copy.out": lambda x, size: x.reshape(tuple(size)),
    "unsqueeze_copy.out": lambda x, dim: np.expand_dims(x, dim),
    "squeeze_copy.dim_out": lambda x, dim: squeeze_dims(x, (dim,)),
    "unbind_copy.int_out": lambda x, dim: tuple(select(x, dim, k) for k in range(x.shape[dim])),
    "flip.out": lambda x, dims: np.flip(x, tuple(dims)),
    "diagonal_copy.out": lambda x, offset, dim1, dim2: np.diagonal(x, offset, dim1, dim2),
    "tril.out": lambda x, diagonal: np.tril(x, diagonal),
    "triu.out": lambda x, diagonal: np.triu(x, diagonal),
}
kernels(_EXPRESSIONS)
