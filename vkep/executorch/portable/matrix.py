"""Matrix products and convolutions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from vkep.aten.arguments import Convolution
from vkep.executorch.portable.registry import Array, Number, kernel, kernels, pair, wide


def _products(x: Array, other: Array) -> int:
    rows, columns = (x.shape[-2] if x.ndim > 1 else 1), (other.shape[-1] if other.ndim > 1 else 1)
    return math.prod(np.broadcast_shapes(x.shape[:-2], other.shape[:-2])) * rows * columns


kernels({"mm.out bmm.out matmul.out": lambda x, other: np.matmul(wide(x), wide(other))}, elements=_products)


@kernel("addmm.out", elements=lambda self, mat1, mat2, beta, alpha: max(self.size, _products(mat1, mat2)))
def addmm(self: Array, mat1: Array, mat2: Array, beta: Number, alpha: Number) -> Array:
    product = np.matmul(wide(mat1), wide(mat2))
    return (product if alpha == 1 else product * alpha) + (wide(self) if beta == 1 else wide(self) * beta)


@kernel("linear.out", elements=lambda self, weight, bias: math.prod(self.shape[:-1]) * weight.shape[0])
def linear(self: Array, weight: Array, bias: Array | None) -> Array:
    product = np.matmul(wide(self), wide(weight).T)
    return product if bias is None else product + wide(bias)


def _differences(x1: Array, x2: Array, p: float, compute_mode: int | None) -> int:
    shapes = (*x1.shape[:-1], 1, x1.shape[-1]), (*x2.shape[:-2], 1, *x2.shape[-2:])
    return math.prod(np.broadcast_shapes(*shapes))


@kernel("_cdist_forward.out", elements=_differences)
def cdist(x1: Array, x2: Array, p: float, compute_mode: int | None) -> Array:
    distance = np.abs(wide(x1)[..., :, None, :] - wide(x2)[..., None, :, :])
    if p == 0:
        return np.count_nonzero(distance, axis=-1)
    return distance.max(-1) if np.isinf(p) else np.sum(distance**p, axis=-1) ** (1 / p)


@kernel("_pdist_forward.out", elements=lambda self, p: len(self) * max(self.size, len(self)))
def pdist(self: Array, p: float) -> Array:
    """Distances of each row to the later rows."""
    first, second = np.triu_indices(len(self), 1)
    return cdist(self[first][:, None], self[second][:, None], p, None).reshape(-1)


def convolution_elements(input_: Array, weight: Array, bias: Array | None, how: Convolution) -> int:
    """The elements of the largest of a convolution's padded input, its windows and its result."""
    n = weight.ndim - 2
    stride, dilation = pair(how.stride, n), pair(how.dilation, n)
    lead, places, taps = math.prod(input_.shape[:-n]), 1, math.prod(weight.shape[2:])
    padded = lead
    for axis, size in enumerate(input_.shape[-n:]):
        reach = dilation[axis] * (weight.shape[2 + axis] - 1) + 1
        if how.transposed:
            before = reach - 1 - pair(how.padding, n)[axis]
            edges, size = (before, before + pair(how.output_padding, n)[axis]), (size - 1) * stride[axis] + 1
        else:
            edges = (pair(how.padding, n)[axis],) * 2
        whole = size + sum(edges)
        padded *= max(size, size + max(edges[0], 0) + max(edges[1], 0))
        places *= max(whole - reach, 0) // (1 if how.transposed else stride[axis]) + 1
    batch = lead // input_.shape[-n - 1] if lead else 0
    made = weight.shape[1] * how.groups if how.transposed else weight.shape[0]
    return max(padded, lead * places * taps, batch * made * places)


@kernel("convolution.out", elements=convolution_elements)
def convolution(input_: Array, weight: Array, bias: Array | None, how: Convolution) -> Array:
    n = weight.ndim - 2
    batched = input_.ndim == n + 2
    x = wide(input_ if batched else input_[None])
    w = wide(weight)
    if how.transposed:
        x, w, edges = _transposed(x, w, how)
    else:
        edges = [(p, p) for p in pair(how.padding, n)]
    stride = (1,) * n if how.transposed else pair(how.stride, n)
    result = _correlate(x, w, stride, edges, pair(how.dilation, n), how.groups)
    if bias is not None:
        result = result + wide(bias).reshape(1, -1, *(1,) * n)
    return result if batched else result[0]


def _transposed(x: Array, w: Array, how: Convolution) -> tuple[Array, Array, list[tuple[int, int]]]:
    """A transposed convolution as an ordinary one: zeros between the elements, and the kernel mirrored."""
    n, groups = w.ndim - 2, how.groups
    stride = pair(how.stride, n)
    spread = np.zeros((*x.shape[:2], *((s - 1) * k + 1 for s, k in zip(x.shape[2:], stride, strict=True))), x.dtype)
    places: list[Any] = [slice(None, None, k) for k in (1, 1, *stride)]
    spread[tuple(places)] = x
    _, per_group, *kernel_shape = w.shape
    grouped = w.reshape(groups, -1, per_group, *kernel_shape).swapaxes(1, 2)
    turned = np.flip(grouped, tuple(range(3, 3 + n))).reshape(groups * per_group, -1, *kernel_shape)
    edges = []
    sizes = pair(how.dilation, n), pair(how.padding, n), pair(how.output_padding, n)
    for k, d, p, o in zip(kernel_shape, *sizes, strict=True):
        edges.append((d * (k - 1) - p, d * (k - 1) - p + o))
    return spread, turned, edges


def _correlate(
    x: Array, w: Array, stride: Sequence[int], edges: Sequence[tuple[int, int]], dilation: Sequence[int], groups: int
) -> Array:
    n = len(stride)
    kernel_shape = w.shape[2:]
    windows = windows_of(x, kernel_shape, stride, edges, dilation)
    batch, channels, *places = windows.shape[: 2 + n]
    count = int(np.prod(places, dtype=np.int64))
    taps = int(np.prod(kernel_shape, dtype=np.int64))
    per_group = channels // groups
    order = [0, 1, *range(2 + n, 2 + 2 * n), *range(2, 2 + n)]
    columns = windows.transpose(order).reshape(batch, groups, per_group * taps, count)
    rows = w.reshape(groups, -1, per_group * taps)
    return np.matmul(rows, columns).reshape(batch, -1, *places)


def windows_of(
    x: Array,
    kernel_shape: Sequence[int],
    stride: Sequence[int],
    edges: Sequence[tuple[int, int]],
    dilation: Sequence[int],
) -> Array:
    """Windows (batch, channels, *places, *taps) of ``x`` with zero padding (negative padding crops)."""
    n = len(stride)
    cut: list[Any] = [slice(max(-a, 0), s - max(-b, 0)) for (a, b), s in zip(edges, x.shape[2:], strict=True)]
    x = np.pad(x[(..., *cut)], [(0, 0), (0, 0), *((max(a, 0), max(b, 0)) for a, b in edges)])
    reach = tuple(d * (k - 1) + 1 for k, d in zip(kernel_shape, dilation, strict=True))
    axes = tuple(range(2, 2 + n))
    windows = np.lib.stride_tricks.sliding_window_view(x, reach, axes)
    steps: list[Any] = [slice(None, None, s) for s in (1, 1, *stride, *dilation)]
    return windows[tuple(steps)]
