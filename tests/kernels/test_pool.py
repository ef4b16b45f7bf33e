"""Pooling against a plain numpy model, window by window."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from gpu_shared.capabilities import DeviceCapabilities
from tests.kernels.harness import Harness, Tensor
from vkep.errors import Decline, InvalidNode
from vkep.graph.windows import Window
from vkep.kernels.images.pool import PoolProblem
from vkep.kernels.select import choose


def out_size(size: int, kernel: int, stride: int, dilation: int, begin: int, end: int, ceil: bool) -> int:
    """ONNX's output size; with ceil_mode, windows that would begin in the end padding are dropped."""
    span = size + begin + end - dilation * (kernel - 1) - 1
    out = (-(-span // stride) if ceil else span // stride) + 1
    if ceil and (out - 1) * stride >= size + begin:
        out -= 1
    return out


def out_sizes(
    spatial: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    pads: Sequence[int],
    ceil: bool,
) -> list[int]:
    """The output's size along each axis; ``pads`` are those at the beginnings, then those at the ends."""
    rank = len(spatial)
    axes = zip(spatial, kernel, strides, dilations, pads[:rank], pads[rank:], strict=True)
    return [out_size(n, k, s, d, begin, end, ceil) for n, k, s, d, begin, end in axes]


def expected(
    op: str,
    x: np.ndarray,
    out: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    pads: Sequence[int],
    dilations: Sequence[int],
    include: bool,
    p: int,
    column_major: bool,
) -> tuple[np.ndarray, np.ndarray]:
    rank, spatial = len(kernel), x.shape[2:]
    planes = x.reshape(-1, *spatial)
    y = np.zeros((len(planes), *out))
    where = np.zeros((len(planes), *out), np.int64)
    for place in itertools.product(*map(range, out)):
        starts = [o * s - b for o, s, b in zip(place, strides, pads[:rank], strict=True)]
        taps = [[start + k * d for k in range(n)] for start, n, d in zip(starts, kernel, dilations, strict=True)]
        inside = [[t for t in axis if 0 <= t < n] for axis, n in zip(taps, spatial, strict=True)]
        padded = [[t for t in axis if t < n + e] for axis, n, e in zip(taps, spatial, pads[rank:], strict=True)]
        taken: tuple[Any, ...] = (slice(None), *np.ix_(*inside))
        window = planes[taken].reshape(len(planes), -1)
        wide = window.astype(np.float64)
        at: tuple[slice | int, ...] = (slice(None), *place)
        if op == "max":
            y[at] = window.max(1)
            positions = list(itertools.product(*inside))
            for plane in range(len(planes)):
                best = positions[int(window[plane].argmax())]
                order = reversed(range(rank)) if column_major else range(rank)
                flat = 0
                for d in order:
                    flat = flat * spatial[d] + best[d]
                where[(plane, *place)] = plane * np.prod(spatial) + flat
        elif op == "average":
            count = np.prod([len(axis) for axis in (padded if include else inside)])
            y[at] = wide.sum(1) / count
        else:
            y[at] = (np.abs(wide) ** p).sum(1) ** (1 / p)
    return y.reshape(*x.shape[:2], *out), where.reshape(*x.shape[:2], *out)


def window(kernel: Sequence[int], out: Sequence[int], strides: Sequence[int] | None = None) -> Window:
    """One without padding and dilation."""
    ones = (1,) * len(kernel)
    return Window(tuple(kernel), tuple(strides or ones), ones, (0,) * 2 * len(kernel), tuple(out))


CASES = [
    # spatial, kernel, strides, pads, dilations, ceil
    ((13,), (3,), (2,), (1, 0), (1,), False),
    ((12, 15), (3, 3), (2, 2), (1, 1, 1, 1), (1, 1), False),
    ((7, 9), (2, 3), (1, 2), (0, 0, 0, 0), (1, 1), True),
    ((11, 11), (3, 3), (3, 2), (2, 0, 1, 2), (2, 1), True),
    ((8, 8), (5, 5), (1, 1), (2, 2, 2, 2), (1, 1), False),
    ((5, 6, 7), (2, 3, 2), (2, 1, 2), (1, 1, 0, 0, 1, 1), (1, 1, 2), False),
    # more taps than are unrolled
    ((9, 20), (21, 33), (1, 3), (12, 14, 11, 13), (1, 1), False),
    ((70,), (19,), (3,), (5, 7), (3,), False),
    ((3, 4, 30), (1, 17, 18), (1, 1, 2), (0, 16, 10, 0, 15, 11), (1, 1, 2), True),
]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("op", ["max", "average", "lp"])
def test_float32(
    gpu: Harness, caps: DeviceCapabilities, rng: np.random.Generator, op: str, case: tuple[Any, ...]
) -> None:
    spatial, kernel, strides, pads, dilations, ceil = case
    out = out_sizes(spatial, kernel, strides, dilations, pads, ceil)
    x = rng.normal(size=(2, 3, *spatial)).astype(np.float32)
    for option in (False, True):
        y, indices = Tensor.empty((2, 3, *out), np.float32), Tensor.empty((2, 3, *out), np.int64)
        window = Window(kernel, strides, dilations, pads, tuple(out))
        p, wanted = 3 if option else 2, op == "max"
        problem = PoolProblem(op, 2, 3, spatial, window, "float32", option, p, wanted, column_major=option)
        gpu.compute(problem, caps, [Tensor(x)], [y, indices] if wanted else [y])
        want, where = expected(op, x, out, kernel, strides, pads, dilations, option, 3 if option else 2, option)
        np.testing.assert_allclose(y.array, want, rtol=1e-5, atol=1e-6)
        if op == "max":
            np.testing.assert_array_equal(indices.array, where)


@pytest.mark.parametrize("dtype", ["float16", "int8", "uint8", "int32"])
def test_max_of_other_types(gpu: Harness, caps: DeviceCapabilities, rng: np.random.Generator, dtype: str) -> None:
    x = (rng.normal(size=(1, 4, 9, 9)) * 40).astype(dtype)
    y = Tensor.empty((1, 4, 4, 4), dtype)
    gpu.compute(PoolProblem("max", 1, 4, (9, 9), window((3, 3), (4, 4), (2, 2)), dtype), caps, [Tensor(x)], [y])
    want, _ = expected("max", x, (4, 4), (3, 3), (2, 2), (0,) * 4, (1, 1), False, 2, False)
    np.testing.assert_array_equal(y.array, want)


def test_average_of_float16(gpu: Harness, caps: DeviceCapabilities, rng: np.random.Generator) -> None:
    x = rng.uniform(500, 1000, size=(1, 2, 14, 14)).astype(np.float16)  # sums overflow float16
    y = Tensor.empty((1, 2, 1, 1), np.float16)
    gpu.compute(PoolProblem("average", 1, 2, (14, 14), window((14, 14), (1, 1)), "float16"), caps, [Tensor(x)], [y])
    np.testing.assert_allclose(y.array[..., 0, 0], x.astype(np.float64).mean((2, 3)), rtol=1e-3)


def test_nan_and_minus_infinity(gpu: Harness, caps: DeviceCapabilities) -> None:
    x = np.full((1, 1, 2, 4), -np.inf, np.float32)
    x[0, 0, 1, 2] = np.nan
    y, indices = Tensor.empty((1, 1, 1, 2), np.float32), Tensor.empty((1, 1, 1, 2), np.int64)
    problem = PoolProblem("max", 1, 1, (2, 4), window((2, 2), (1, 2), (2, 2)), "float32", indices=True)
    gpu.compute(problem, caps, [Tensor(x)], [y, indices])
    np.testing.assert_array_equal(y.array.ravel(), [-np.inf, np.nan])
    np.testing.assert_array_equal(indices.array.ravel(), [0, 6])


@pytest.mark.parametrize("op", ["max", "average", "lp"])
def test_a_huge_window_costs_what_lies_in_the_image(gpu: Harness, caps: DeviceCapabilities, op: str) -> None:
    """2**60 taps a window, of which 16 are inside."""
    x, half = np.arange(1, 17, dtype=np.float32).reshape(1, 1, 4, 4), 1 << 29
    wide = Window((2 * half, 2 * half), (1, 1), (1, 1), (half,) * 4, (5, 5))
    y = Tensor.empty((1, 1, 5, 5), np.float32)
    gpu.compute(PoolProblem(op, 1, 1, (4, 4), wide, "float32"), caps, [Tensor(x)], [y])
    want = {"max": 16, "average": 8.5, "lp": np.sqrt((x**2).sum())}[op]
    np.testing.assert_allclose(y.array, np.full((1, 1, 5, 5), want), rtol=1e-6)


def test_what_is_turned_down(caps: DeviceCapabilities) -> None:
    two = window((2, 2), (2, 2))
    for problem, why in {
        PoolProblem("max", 1, 1, (2,) * 4, window((2,) * 4, (1,) * 4), "float32"): "4 spatial axes, expected 1 to 3",
        PoolProblem("average", 1, 1, (4, 4), two, "int8"): "average pooling of 'int8' has no kernel",
        PoolProblem("average", 1, 1, (4, 4), two, "float32", indices=True): "indices are an output of max pooling",
    }.items():
        with pytest.raises(Decline, match=why):
            choose(problem, caps)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"strides": (2,)}, "strides \\(2,\\) has 1 entries; the input has 2 spatial axes"),
        ({"kernel": (2, 2, 2)}, "kernel_shape \\(2, 2, 2\\) has 3 entries"),
        ({"kernel": (0, 2)}, "kernel_shape \\(0, 2\\); each must be at least 1"),
        ({"pads": (0, 0)}, "4 are expected"),
        ({"pads": (0, 0, -1, 0)}, "not negative"),
    ],
)
@pytest.mark.parametrize("channels_last", [False, True])
def test_wrong_windows(given: dict[str, tuple[int, ...]], why: str, channels_last: bool) -> None:
    wrong = dataclasses.replace(window((2, 2), (2, 2)), **given)
    with pytest.raises(InvalidNode, match=why):
        PoolProblem("max", 1, 8, (4, 4), wrong, "float16", channels_last=channels_last)
