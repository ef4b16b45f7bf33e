"""Operators that move elements."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vkep.executorch.portable.registry import Array, Number, kernel


@kernel("clone.out", "_to_copy.memory_out")
def clone(self: Array, memory_format: int | None) -> Array:
    return self


@kernel("alias_copy.out", "detach_copy.out", "lift_fresh_copy.out", "et_copy::_h2d_copy.out", "et_copy::_d2h_copy.out")
def alias(self: Array) -> Array:
    return self


@kernel("_to_copy.out")
def to_copy(self: Array, non_blocking: bool, memory_format: int | None) -> Array:
    return self


@kernel("dim_order_ops::_to_dim_order_copy.out", "dim_order_ops::_clone_dim_order.out")
def to_dim_order(self: Array, non_blocking: bool, dim_order: Sequence[int] | None) -> Array:
    return self


@kernel("copy.out", "copy_")
def copy(self: Array, source: Array, non_blocking: bool) -> Array:
    return np.broadcast_to(source, self.shape)


@kernel("permute_copy.out")
def permute(self: Array, dims: Sequence[int]) -> Array:
    return self.transpose([d % self.ndim for d in dims])


@kernel("transpose_copy.int_out")
def transpose(self: Array, dim0: int, dim1: int) -> Array:
    return np.swapaxes(self, dim0, dim1) if self.ndim else self


@kernel("t_copy.out")
def t(self: Array) -> Array:
    return self.T


@kernel("view_copy.out", "_unsafe_view.out", "reshape_copy.out")
def view(self: Array, size: Sequence[int]) -> Array:
    return self.reshape(tuple(size))


@kernel("unsqueeze_copy.out")
def unsqueeze(self: Array, dim: int) -> Array:
    return np.expand_dims(self, dim)


@kernel("squeeze_copy.dim_out")
def squeeze(self: Array, dim: int) -> Array:
    return squeeze_dims(self, (dim,))


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
    """torch's slice: bounds from the end where negative, clamped to the size."""
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


@kernel("unbind_copy.int_out")
def unbind(self: Array, dim: int) -> tuple[Array, ...]:
    return tuple(select(self, dim, k) for k in range(self.shape[dim]))


@kernel("cat.out")
def cat(tensors: Sequence[Array], dim: int) -> Array:
    parts = [x for x in tensors if x.shape != (0,)] or list(tensors)[:1]  # torch lets empty ones of rank 1 pass
    return np.concatenate(parts, axis=dim)


@kernel("stack.out")
def stack(tensors: Sequence[Array], dim: int) -> Array:
    return np.stack(list(tensors), axis=dim)


@kernel("repeat.out")
def repeat(self: Array, repeats: Sequence[int]) -> Array:
    return np.tile(self, tuple(repeats))


@kernel("repeat_interleave.Tensor_out")
def repeat_interleave(repeats: Array, output_size: int | None) -> Array:
    return np.repeat(np.arange(len(repeats)), repeats)


@kernel("flip.out")
def flip(self: Array, dims: Sequence[int]) -> Array:
    return np.flip(self, tuple(dims))


@kernel("roll.out")
def roll(self: Array, shifts: Sequence[int], dims: Sequence[int]) -> Array:
    if not len(dims):
        return np.roll(self.reshape(-1), shifts[0]).reshape(self.shape)
    return np.roll(self, tuple(shifts), tuple(dims))


def _widths(self: Array, pad: Sequence[int]) -> list[tuple[int, int]]:
    """Pairs for each dimension, from torch's list that starts with the last one."""
    pairs = [(pad[i], pad[i + 1]) for i in range(0, len(pad), 2)]
    return [(0, 0)] * (self.ndim - len(pairs)) + pairs[::-1]


@kernel("constant_pad_nd.out")
def constant_pad(self: Array, pad: Sequence[int], value: Number) -> Array:
    widths = _widths(self, pad)
    cut = tuple(slice(max(-a, 0), n - max(-b, 0)) for (a, b), n in zip(widths, self.shape, strict=True))
    return np.pad(self[cut], [(max(a, 0), max(b, 0)) for a, b in widths], constant_values=value)


@kernel(*(f"reflection_pad{n}d.out" for n in (1, 2, 3)))
def reflection_pad(self: Array, padding: Sequence[int]) -> Array:
    return np.pad(self, _widths(self, padding), mode="reflect")


@kernel(*(f"replication_pad{n}d.out" for n in (1, 2, 3)))
def replication_pad(self: Array, padding: Sequence[int]) -> Array:
    return np.pad(self, _widths(self, padding), mode="edge")


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


@kernel("diagonal_copy.out")
def diagonal(self: Array, offset: int, dim1: int, dim2: int) -> Array:
    return np.diagonal(self, offset, dim1, dim2)


@kernel("unfold_copy.out")
def unfold(self: Array, dimension: int, size: int, step: int) -> Array:
    axis = dimension % self.ndim
    windows = np.lib.stride_tricks.sliding_window_view(self, size, axis)
    return windows[(slice(None),) * axis + (slice(None, None, step),)]


@kernel("as_strided_copy.out")
def as_strided(self: Array, size: Sequence[int], stride: Sequence[int], offset: int | None) -> Array:
    index = np.full((), offset or 0, np.int64)
    for length, step in zip(size, stride, strict=True):
        index = index[..., None] + np.arange(length) * step
    return self.reshape(-1)[index]


@kernel("tril.out")
def tril(self: Array, diagonal: int) -> Array:
    return np.tril(self, diagonal)


@kernel("triu.out")
def triu(self: Array, diagonal: int) -> Array:
    return np.triu(self, diagonal)
