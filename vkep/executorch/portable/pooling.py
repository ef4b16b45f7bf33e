"""Pooling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from vkep.aten.arguments import AveragePool, MaxPool
from vkep.executorch.portable.registry import Array, kernel, pair, wide


def _output_size(size: int, kernel_: int, stride: int, padding: int, dilation: int, ceil: bool) -> int:
    """torch's rule: in ceil mode the last window must start inside the input or the padding before it."""
    room = size + 2 * padding - dilation * (kernel_ - 1) - 1
    count = (-(-room // stride) if ceil else room // stride) + 1
    if ceil and (count - 1) * stride >= size + padding:
        count -= 1
    return count


def _windows(
    x: Array,
    kernel_: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil: bool,
    fill: float,
) -> Array:
    """(..., places, taps) of the last dimensions."""
    n = len(kernel_)
    sizes = x.shape[x.ndim - n :]
    edges = [(0, 0)] * (x.ndim - n)
    counts = []
    for size, k, s, p, d in zip(sizes, kernel_, stride, padding, dilation, strict=True):
        count = _output_size(size, k, s, p, d, ceil)
        counts.append(count)
        edges.append((p, max((count - 1) * s + d * (k - 1) + 1 - size - p, 0)))
    padded = np.pad(x, edges, constant_values=fill)
    reach = tuple(d * (k - 1) + 1 for k, d in zip(kernel_, dilation, strict=True))
    views = np.lib.stride_tricks.sliding_window_view(padded, reach, tuple(range(x.ndim - n, x.ndim)))
    pick: list[Any] = [slice(0, (c - 1) * s + 1, s) for c, s in zip(counts, stride, strict=True)]
    return views[(..., *pick, *(slice(None, None, d) for d in dilation))]


def _pooled(self: Array, pool: MaxPool | AveragePool) -> int:
    """The elements of the padded input or of the windows."""
    kernel_, padding = pair(pool.kernel_size), pair(pool.padding)
    stride = pair(pool.stride) if len(pool.stride) else kernel_
    dilation = pair(pool.dilation) if isinstance(pool, MaxPool) else (1, 1)
    lead = math.prod(self.shape[:-2])
    padded = windows = lead
    for size, k, s, p, d in zip(self.shape[-2:], kernel_, stride, padding, dilation, strict=True):
        count = max(_output_size(size, k, s, p, d, pool.ceil_mode), 0)
        padded *= max(size + 2 * p, (count - 1) * s + d * (k - 1) + 1)
        windows *= count * k
    return max(padded, windows)


@kernel("max_pool2d_with_indices.out", elements=_pooled)
def max_pool2d(self: Array, pool: MaxPool) -> tuple[Array, Array]:
    k, p, d = pair(pool.kernel_size), pair(pool.padding), pair(pool.dilation)
    s = pair(pool.stride) if len(pool.stride) else k
    lowest = -np.inf if self.dtype.kind not in "iub" else np.iinfo(self.dtype).min
    windows = _windows(wide(self), k, s, p, d, pool.ceil_mode, lowest)
    flat = windows.reshape(*windows.shape[:-2], -1)
    best = np.argmax(flat, axis=-1)
    values = np.take_along_axis(flat, best[..., None], -1)[..., 0]
    rows = np.arange(values.shape[-2])[:, None] * s[0] - p[0] + best // k[1] * d[0]
    columns = np.arange(values.shape[-1]) * s[1] - p[1] + best % k[1] * d[1]
    return values, rows * self.shape[-1] + columns


@kernel("avg_pool2d.out", elements=_pooled)
def avg_pool2d(self: Array, pool: AveragePool) -> Array:
    k, p = pair(pool.kernel_size), pair(pool.padding)
    s = pair(pool.stride) if len(pool.stride) else k
    sums = _windows(wide(self), k, s, p, (1, 1), pool.ceil_mode, 0).sum((-1, -2))
    if pool.divisor_override is not None:
        return sums / pool.divisor_override
    # elements that count: the input, and the padding where requested, but never what ceil mode adds after it
    counted = np.ones([n + 2 * q if pool.count_include_pad else n for n, q in zip(self.shape[-2:], p, strict=True)])
    if not pool.count_include_pad:
        counted = np.pad(counted, [(q, q) for q in p])
    need = [(n - 1) * step + size for n, step, size in zip(sums.shape[-2:], s, k, strict=True)]
    counted = np.pad(counted, [(0, max(m - n, 0)) for m, n in zip(need, counted.shape, strict=True)])
    counts = _windows(counted, k, s, (0, 0), (1, 1), False, 0)[: sums.shape[-2], : sums.shape[-1]].sum((-1, -2))
    return sums / counts.astype(sums.dtype)


def resized(x: Array, sizes: Sequence[int]) -> int:
    """The elements of the largest array where the last dimensions become ``sizes`` one after the other, at most."""
    return math.prod(x.shape[:-2]) * math.prod(max(n, size) for n, size in zip(x.shape[-2:], sizes, strict=True))


@kernel("_adaptive_avg_pool2d.out", elements=resized)
def adaptive_avg_pool2d(self: Array, output_size: Sequence[int]) -> Array:
    x = wide(self)
    for axis, count in zip((-2, -1), output_size, strict=True):
        size = x.shape[axis]
        parts = [
            np.take(x, np.arange(i * size // count, -(-(i + 1) * size // count)), axis).mean(axis, keepdims=True)
            for i in range(count)
        ]
        x = np.concatenate(parts, axis)
    return x
