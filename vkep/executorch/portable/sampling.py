"""Resizing and grid sampling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from vkep.executorch.portable.pooling import resized
from vkep.executorch.portable.registry import Array, kernel, wide


def _sizes(x: Array, output_size: Sequence[int] | None, scales: Sequence[float] | None) -> list[int]:
    if output_size is not None and len(output_size):
        return list(output_size)
    assert scales is not None
    return [int(n * s) for n, s in zip(x.shape[2:], scales, strict=True)]


def _steps(x: Array, sizes: Sequence[int], scales: Sequence[float] | None) -> list[float]:
    """Input elements for each output element: from the given factors where present, as in torch."""
    if scales is not None and len(scales):
        return [1 / s for s in scales]
    return [n / m for n, m in zip(x.shape[2:], sizes, strict=True)]


def _resized(x: Array, output_size: Sequence[int] | None, *rest: Any) -> int:
    return resized(x, _sizes(x, output_size, rest[-1]))


@kernel("upsample_nearest2d.vec_out", elements=_resized)
def nearest2d(x: Array, output_size: Sequence[int] | None, scale_factors: Sequence[float] | None) -> Array:
    sizes = _sizes(x, output_size, scale_factors)
    for axis, (count, step) in enumerate(zip(sizes, _steps(x, sizes, scale_factors), strict=True), 2):
        index = np.minimum((np.arange(count) * np.float32(step)).astype(np.int64), x.shape[axis] - 1)
        x = np.take(x, index, axis)
    return x


@kernel("upsample_bilinear2d.vec_out", elements=_resized)
def bilinear2d(
    x: Array, output_size: Sequence[int] | None, align_corners: bool, scale_factors: Sequence[float] | None
) -> Array:
    sizes = _sizes(x, output_size, scale_factors)
    result, steps = wide(x), _steps(x, sizes, scale_factors)
    for axis, (count, step) in enumerate(zip(sizes, steps, strict=True), 2):
        size = result.shape[axis]
        if align_corners:
            at = np.arange(count) * ((size - 1) / (count - 1) if count > 1 else 0.0)
        else:
            at = np.maximum((np.arange(count) + 0.5) * step - 0.5, 0)
        low = np.minimum(np.floor(at).astype(np.int64), size - 1)
        part = (at - low).astype(result.dtype).reshape(-1, *(1,) * (result.ndim - 1 - axis))
        high = np.minimum(low + 1, size - 1)
        result = np.take(result, low, axis) * (1 - part) + np.take(result, high, axis) * part
    return result


def _filtered(self: Array, output_size: Sequence[int], *_: Any) -> int:
    weights = (n * size for n, size in zip(self.shape[-2:], output_size, strict=True))
    return max(resized(self, output_size), *weights)


@kernel("_upsample_bilinear2d_aa.out", elements=_filtered)
def bilinear2d_aa(
    self: Array, output_size: Sequence[int], align_corners: bool, scales_h: float | None, scales_w: float | None
) -> Array:
    """A triangle filter as wide as an output element where that is larger than an input element, so that no input
    element is skipped."""
    result = wide(self)
    for axis, count, scale in ((2, output_size[0], scales_h), (3, output_size[1], scales_w)):
        size = self.shape[axis]
        if align_corners:
            step = (size - 1) / (count - 1) if count > 1 else 0.0
        else:
            step = 1 / scale if scale else size / count
        wider = max(step, 1.0)
        centre = step * (np.arange(count)[:, None] + 0.5)
        weights = np.maximum(1 - np.abs(np.arange(size) + 0.5 - centre) / wider, 0)
        weights /= weights.sum(1, keepdims=True)
        result = np.moveaxis(np.matmul(np.moveaxis(result, axis, -1), weights.T.astype(result.dtype)), -1, axis)
    return result


@kernel("grid_sampler_2d.out", elements=lambda x, grid, *_: max(math.prod(x.shape[:2] + grid.shape[1:3]), grid.size))
def grid_sampler_2d(x: Array, grid: Array, interpolation: int, padding: int, align_corners: bool) -> Array:
    """Modes as torch numbers them: bilinear 0, nearest 1, bicubic 2; zeros 0, border 1, reflection 2."""
    image, places = wide(x), wide(grid)
    height, width = image.shape[2:]
    across = _unnormalise(places[..., 0], width, align_corners)
    down = _unnormalise(places[..., 1], height, align_corners)
    if interpolation != 2:
        across, down = (_bounded(v, n, padding, align_corners) for v, n in ((across, width), (down, height)))
    if interpolation == 1:
        return _pixels(image, np.rint(down), np.rint(across))
    y, x0 = np.floor(down), np.floor(across)
    wy, wx = down - y, across - x0
    reach = (0, 1) if interpolation == 0 else (-1, 0, 1, 2)
    weights = (lambda t, k: 1 - t if k == 0 else t) if interpolation == 0 else _cubic
    result = np.zeros((*image.shape[:2], *grid.shape[1:3]), image.dtype)
    for i in reach:
        for j in reach:
            rows, columns = y + i, x0 + j
            if interpolation == 2:
                rows, columns = (_bounded(v, n, padding, align_corners) for v, n in ((rows, height), (columns, width)))
            result += _pixels(image, rows, columns) * (weights(wy, i) * weights(wx, j))[:, None]
    return result


def _cubic(t: Array, k: int) -> Array:
    """Weights of the cubic convolution with a = -0.75 for the taps -1 to 2."""
    d, a = np.abs(t - k), -0.75
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    return np.where(d <= 1, near, ((a * d - 5 * a) * d + 8 * a) * d - 4 * a)


def _unnormalise(v: Array, size: int, align_corners: bool) -> Array:
    return (v + 1) / 2 * (size - 1) if align_corners else ((v + 1) * size - 1) / 2


def _bounded(v: Array, size: int, padding: int, align_corners: bool) -> Array:
    if padding == 2:
        low, span = (0.0, float(size - 1)) if align_corners else (-0.5, float(size))
        if span == 0:
            return np.zeros_like(v)
        turns, rest = np.divmod(np.abs(v - low), span)
        v = np.where(turns % 2 == 0, rest + low, span - rest + low)
    return np.clip(v, 0, size - 1) if padding else v


def _pixels(image: Array, rows: Array, columns: Array) -> Array:
    """(N, C, h, w) of the pixels at whole coordinates; zero outside."""
    height, width = image.shape[2:]
    inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    r = np.clip(np.nan_to_num(rows), 0, height - 1).astype(np.int64)
    c = np.clip(np.nan_to_num(columns), 0, width - 1).astype(np.int64)
    batch = np.arange(image.shape[0])[:, None, None]
    return np.where(inside[:, None], image[batch, :, r, c].transpose(0, 3, 1, 2), 0)
