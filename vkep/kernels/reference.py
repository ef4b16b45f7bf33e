"""numpy functions that the references of several problems share (`vkep.kernels.problem.Problem.reference`)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from vkep.kernels.problem import NoReference

#: elements of all windows together
_LARGEST = 1 << 30


def wide(x: np.ndarray) -> np.ndarray:
    """Integers and bools in 64 bits, whose sums wrap as those of fewer bits do; floats unchanged."""
    return x.astype(np.uint64 if x.dtype.kind == "u" else np.int64) if x.dtype.kind in "iub" else x


def undefined(shape: int | tuple[int, ...]) -> np.ma.MaskedArray:
    """Integers that are not written, until elements are assigned."""
    return np.ma.array(np.zeros(shape, np.int64), mask=True)


def windows(
    x: np.ndarray,
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    begins: Sequence[int],
    out: Sequence[int],
    fill: float = 0,
) -> np.ndarray:
    """A view [..., *out, *kernel] of the windows of x [..., *spatial], which has ``begins`` elements of ``fill`` before its
    first ones, and as many after its last ones as the windows reach. Raises `NoReference` for very many elements."""
    rank = len(kernel)
    shape = (*x.shape[: x.ndim - rank], *out, *kernel)
    if math.prod(shape) >= _LARGEST:
        raise NoReference("windows of more elements than numpy counts quickly")
    pads = [(0, 0)] * (x.ndim - rank)
    for size, k, step, apart, begin, count in zip(
        x.shape[-rank:], kernel, strides, dilations, begins, out, strict=True
    ):
        pads.append((begin, max((count - 1) * step + (k - 1) * apart + 1 - begin - size, 0)))
    padded = np.pad(x, pads, constant_values=fill)
    lead, spatial = padded.strides[: x.ndim - rank], padded.strides[x.ndim - rank :]
    moves = [s * step for s, step in zip(spatial, strides, strict=True)]
    taps = [s * apart for s, apart in zip(spatial, dilations, strict=True)]
    return np.lib.stride_tricks.as_strided(padded, shape, (*lead, *moves, *taps), writeable=False)


def corners(x: np.ndarray, v: np.ndarray, u: np.ndarray) -> np.ndarray:
    """The four neighbours of places (rows ``v`` and columns ``u``, which broadcast) in x [channels, height, width], times their
    weights, as [4, channels, *places]. Places up to one pixel beyond an edge are on it; beyond that they have zeros."""
    v, u = np.broadcast_arrays(v, u)
    height, width = x.shape[1:]
    inside = (v >= -1) & (v <= height) & (u >= -1) & (u <= width)
    v, u = (np.clip(np.where(inside, at, 0.0), 0, size - 1) for at, size in ((v, height), (u, width)))
    top, left = np.floor(v).astype(np.int64), np.floor(u).astype(np.int64)
    down, across = v - top, u - left
    bottom, right = np.minimum(top + 1, height - 1), np.minimum(left + 1, width - 1)
    return np.stack(
        [
            np.where(inside, x[:, rows, columns] * weight, 0.0)
            for rows, columns, weight in (
                (top, left, (1 - down) * (1 - across)),
                (top, right, (1 - down) * across),
                (bottom, left, down * (1 - across)),
                (bottom, right, down * across),
            )
        ]
    )


def bilinear(x: np.ndarray, v: np.ndarray, u: np.ndarray) -> np.ndarray:
    """[channels, *places]: x [channels, height, width] interpolated at places (rows ``v``, columns ``u``), with zeros around
    it."""
    v, u = np.broadcast_arrays(v, u)
    top, left = np.floor(v), np.floor(u)
    total = np.zeros((x.shape[0], *v.shape))
    for row, column in ((top, left), (top, left + 1), (top + 1, left), (top + 1, left + 1)):
        inside = (row >= 0) & (row < x.shape[1]) & (column >= 0) & (column < x.shape[2])
        at = np.where(inside, row, 0).astype(np.int64), np.where(inside, column, 0).astype(np.int64)
        total += np.where(inside, (1 - np.abs(v - row)) * (1 - np.abs(u - column)), 0.0) * x[(slice(None), *at)]
    return total


def unpacked(codes: np.ndarray, bits: int, count: int) -> np.ndarray:
    """The first ``count`` codes of each row of bytes, the first in the lowest bits, as int64."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    every = codes[..., None] >> shifts & np.uint8((1 << bits) - 1)
    return every.reshape(*codes.shape[:-1], codes.shape[-1] * len(shifts))[..., :count].astype(np.int64)


def rotated(x: np.ndarray, cos: np.ndarray, sin: np.ndarray, interleaved: bool) -> np.ndarray:
    """Rows whose first pairs of features are rotated, by as many angles as ``cos`` and ``sin`` have: (i, i + half), or
    neighbours (RoPE, arXiv:2104.09864)."""
    half = cos.shape[-1]
    first, second = (slice(k, 2 * half, 2) if interleaved else slice(k * half, (k + 1) * half) for k in (0, 1))
    y = x.copy()
    y[..., first] = x[..., first] * cos - x[..., second] * sin
    y[..., second] = x[..., second] * cos + x[..., first] * sin
    return y


def weighted(weights: np.ndarray, v: np.ndarray) -> np.ndarray:
    """``weights @ v``, to which rows of v whose weight is 0 contribute nothing, also where they are not finite."""
    y = weights @ np.where(np.isfinite(v), v, 0.0)
    for row in np.flatnonzero(~np.isfinite(v).all(axis=(0, 1, 3))):
        strange = np.where(np.isfinite(v[:, :, row]), 0.0, v[:, :, row])[:, :, None]
        weight = weights[..., row, None]
        y += np.where(weight > 0, weight * strange, 0.0)
    return y


def placed_as(x: np.ndarray, strides: Sequence[int]) -> np.ndarray:
    """The elements of an array in the order in which ``strides`` (elements, of a dense array) put them in memory."""
    y = np.empty(x.size, x.dtype)
    steps = [step * y.itemsize for step in strides]
    np.lib.stride_tricks.as_strided(y, x.shape, steps)[...] = x
    return y
