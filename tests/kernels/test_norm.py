"""Layer, RMS, group, Lp and local response normalisation against numpy at float64."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from gpu_shared.capabilities import DeviceCapabilities
from tests.devices import GPU
from tests.kernels.harness import Harness, NumpyWorkspace, Tensor
from tests.kernels.test_softmax import TO_CODES, codes_of
from vkep.dtypes import DTYPES
from vkep.errors import Decline, InvalidNode
from vkep.ir import tensor as view
from vkep.kernels.reductions.norm import (
    ChannelFactorsProblem,
    GroupNormProblem,
    LayerNormProblem,
    LocalResponseNormProblem,
    MomentsProblem,
    gains_by_moments,
)
from vkep.kernels.select import bind, choose, emit

LAIN = view.Tensor.contiguous(DTYPES["float32"], (16,))


def normalised(x: np.ndarray, epsilon: float, center: bool = True) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(x normalised over its last axis, mean, 1 / standard deviation), float64."""
    wide = x.astype(np.float64)
    mean = wide.mean(-1, keepdims=True) if center else np.zeros((*x.shape[:-1], 1))
    inv_std = 1 / np.sqrt(((wide - mean) ** 2).mean(-1, keepdims=True) + epsilon)
    return (wide - mean) * inv_std, mean[..., 0], inv_std[..., 0]


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize("shape", [(1, 1), (3, 37), (5, 768), (300, 64), (2, 5001)])
@pytest.mark.parametrize("rms", [False, True])
def test_layer_norm(
    gpu: Harness, caps: DeviceCapabilities, rng: np.random.Generator, shape: tuple[int, int], rms: bool
) -> None:
    x = (rng.normal(size=shape) * 3 + 5).astype(np.float32)
    scale, bias = (rng.normal(size=shape[1]).astype(np.float32) for _ in range(2))
    want, _, _ = normalised(x, 1e-5, center=not rms)
    for s in (None, scale):
        for b in (None, bias):
            y = Tensor.empty(shape, np.float32)
            factors = [Tensor(t) for t in (s, b) if t is not None]
            problem = LayerNormProblem(*shape, "float32", 1e-5, rms, s is not None, b is not None)
            gpu.compute(problem, caps, [Tensor(x), *factors], [y])
            full = want * (1 if s is None else s) + (0 if b is None else b)
            np.testing.assert_allclose(y.array, full, rtol=2e-5, atol=2e-5)


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize("to", ["int8", "float16"])
@pytest.mark.parametrize("alignment", [1, 16])
def test_epilogues_store_codes(
    gpu: Harness, caps: DeviceCapabilities, rng: np.random.Generator, to: str, alignment: int
) -> None:
    for shape in [(3, 37), (5, 768), (300, 64), (2, 5001)]:
        x, y = (rng.normal(size=shape) * 3 + 5).astype(np.float32), Tensor.empty(shape, np.dtype(to).type)
        scale, bias = (np.full(shape[1], value, np.float32) for value in (0.25, -0.125))
        problem = LayerNormProblem(*shape, "float32", to=to, alignment=alignment)
        gpu.compute(problem, caps, [Tensor(x), Tensor(scale), Tensor(bias)], [y], epilogue=TO_CODES)
        want = codes_of(normalised(x, 1e-5)[0] / 4 - 0.125)
        assert np.max(np.abs(y.array.astype(np.float64) - want)) <= 0.501, problem


@pytest.mark.usefixtures("kept")
def test_layer_norm_gives_statistics(gpu: Harness, caps: DeviceCapabilities, rng: np.random.Generator) -> None:
    x = rng.normal(size=(7, 200)).astype(np.float32)
    y, mean, inv_std = (
        Tensor.empty((7, 200), np.float32),
        Tensor.empty((7,), np.float32),
        Tensor.empty((7,), np.float32),
    )
    problem = LayerNormProblem(7, 200, "float32", scale=False, bias=False, mean=True, inv_std=True)
    gpu.compute(problem, caps, [Tensor(x)], [y, mean, inv_std], indirect=True)
    _, want_mean, want_inv_std = normalised(x, 1e-5)
    np.testing.assert_allclose(mean.array, want_mean, atol=1e-6)
    np.testing.assert_allclose(inv_std.array, want_inv_std, rtol=1e-5)


def test_layer_norm_is_stable_around_a_large_mean(
    gpu: Harness, caps: DeviceCapabilities, rng: np.random.Generator
) -> None:
    x = (rng.normal(size=(4, 1500)) + 10_000).astype(np.float32)
    y = Tensor.empty(x.shape, np.float32)
    gpu.compute(LayerNormProblem(4, 1500, "float32", scale=False, bias=False), caps, [Tensor(x)], [y])
    np.testing.assert_allclose(y.array, normalised(x, 1e-5)[0], atol=5e-3)


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize("rms", [False, True])
def test_layer_norm_float16(gpu: Harness, caps: DeviceCapabilities, rng: np.random.Generator, rms: bool) -> None:
    x = (rng.normal(size=(6, 1024)) * 100).astype(np.float16)  # squares overflow float16
    scale = rng.normal(size=1024).astype(np.float16)
    y = Tensor.empty(x.shape, np.float16)
    gpu.compute(LayerNormProblem(6, 1024, "float16", rms=rms, bias=False), caps, [Tensor(x), Tensor(scale)], [y])
    want = normalised(x, 1e-5, center=not rms)[0] * scale
    np.testing.assert_allclose(y.array.astype(np.float64), want, rtol=2e-3, atol=2e-3)


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize(
    ("images", "groups", "channels", "spatial"),
    [(1, 1, 1, 1), (2, 3, 1, 49), (2, 4, 3, 25), (1, 2, 5, 900), (30, 9, 1, 4)],
)
def test_group_norm(
    gpu: Harness,
    caps: DeviceCapabilities,
    rng: np.random.Generator,
    images: int,
    groups: int,
    channels: int,
    spatial: int,
) -> None:
    x = (rng.normal(size=(images, groups, channels, spatial)) + 2).astype(np.float32)
    scale, bias = (rng.normal(size=(1, groups, channels, 1)).astype(np.float32) for _ in range(2))
    y = Tensor.empty(x.shape, np.float32)
    problem = GroupNormProblem(images, groups * channels, spatial, "float32", groups, 1e-3)
    gpu.compute(problem, caps, [Tensor(x), Tensor(scale.reshape(-1)), Tensor(bias.reshape(-1))], [y])
    flat = x.reshape(images, groups, -1)
    want = normalised(flat, 1e-3)[0].reshape(x.shape) * scale + bias
    np.testing.assert_allclose(y.array, want, rtol=2e-5, atol=2e-5)


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_four_at_a_time(gpu: Harness, caps: DeviceCapabilities, rng: np.random.Generator, dtype: str) -> None:
    tolerance = 2e-5 if dtype == "float32" else 4e-3
    for rows, axis in [(1, 4), (5, 768), (300, 12), (2, 6000)]:
        x = (rng.normal(size=(rows, axis)) + 1).astype(dtype)
        scale, bias = (rng.normal(size=axis).astype(dtype) for _ in range(2))
        y = Tensor.empty(x.shape, dtype)
        operands = [Tensor(x), Tensor(scale), Tensor(bias)]
        calls = emit(LayerNormProblem(rows, axis, dtype, alignment=16), NumpyWorkspace(caps), operands, [y])
        assert "VECTOR_IN_T" in dict(calls[0].variant.defines)
        gpu.run(calls)
        want = normalised(x, 1e-5)[0] * scale.astype(np.float64) + bias
        np.testing.assert_allclose(y.array.astype(np.float64), want, rtol=tolerance, atol=tolerance)
    x = rng.normal(size=(2, 3, 5, 16)).astype(dtype)
    scale = rng.normal(size=15).astype(dtype)
    y = Tensor.empty(x.shape, dtype)
    factors = [Tensor(scale), Tensor(np.zeros(15, dtype))]
    gpu.compute(GroupNormProblem(2, 15, 16, dtype, 3, alignment=16), caps, [Tensor(x), *factors], [y])
    want = normalised(x.reshape(2, 3, 80), 1e-5)[0].reshape(x.shape) * scale.astype(np.float64).reshape(1, 3, 5, 1)
    np.testing.assert_allclose(y.array.astype(np.float64), want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_local_response_norm(
    gpu: Harness, caps: DeviceCapabilities, rng: np.random.Generator, size: int, dtype: str
) -> None:
    x = (rng.normal(size=(2, 6, 35)) * 4).astype(dtype)
    y = Tensor.empty(x.shape, x.dtype)
    gpu.compute(LocalResponseNormProblem(2, 6, 35, dtype, size, 0.01, 0.75, 1.5), caps, [Tensor(x)], [y])
    wide = x.astype(np.float64)
    squares = np.zeros(x.shape)
    for c in range(6):
        squares[:, c] = (wide[:, max(0, c - (size - 1) // 2) : c + size // 2 + 1] ** 2).sum(1)
    want = wide / (1.5 + 0.01 / size * squares) ** 0.75
    np.testing.assert_allclose(y.array, want, rtol=1e-5 if dtype == "float32" else 2e-3)


def test_wrong_arguments(caps: DeviceCapabilities) -> None:
    with pytest.raises(InvalidNode, match="size is 0"):
        LocalResponseNormProblem(1, 2, 1, "float32", 0)
    with pytest.raises(InvalidNode, match="6 channels do not divide into 4 groups"):
        GroupNormProblem(1, 6, 1, "float32", 4)
    with pytest.raises(Decline, match="element type is 'int8'"):
        choose(LayerNormProblem(1, 2, "int8"), caps)


def test_alignment_is_that_of_rows_and_factors() -> None:
    """The statistics are written one by one, wherever they lie."""
    problem = LayerNormProblem(2, 4, "float32", mean=True)
    x, scale, bias, y, mean = (LAIN.view((4,), (1,), offset) for offset in (0, 4, 8, 12, 1))
    assert problem.placed(bind(problem, [x, scale, bias], [y, mean])).alignment == 16
    assert problem.placed(bind(problem, [x, scale, mean], [y, mean])).alignment == 4


@pytest.mark.parametrize("rms", [False, True])
@pytest.mark.parametrize(
    ("rows", "axis", "dtype", "offset"),
    [(1, 65536, "float32", 16), (3, 40001, "float32", 16), (5, 33000, "float16", 16), (2, 33000, "float16", 2)],
)
def test_moments_of_long_rows(
    gpu: Harness, rng: np.random.Generator, rows: int, axis: int, dtype: str, offset: int, rms: bool
) -> None:
    """Of a mean that is a thousand deviations away, too: the sums are no differences of squares."""
    caps = dataclasses.replace(gpu.caps, device_type="discrete", compute_units=7)
    x = (rng.normal(size=(rows, axis)) * 0.1 + (100 if dtype == "float32" else 3)).astype(dtype)
    results = [Tensor.empty((rows,), np.float32) for _ in range(2)]
    problem = MomentsProblem(rows, axis, dtype, 1e-5, rms)
    gpu.compute(problem, caps, [Tensor(x, offset=offset)], results)
    _, mean, inv_std = normalised(x, 1e-5, center=not rms)
    np.testing.assert_allclose(results[0].array, mean, rtol=1e-6)
    np.testing.assert_allclose(results[1].array, inv_std, rtol=1e-4)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(
    ("images", "channels", "positions", "groups", "dtype", "offset"),
    [
        (2, 32, 4096, 4, "float16", 16),
        (1, 40, 500, 4, "float16", 16),
        (3, 24, 77, 2, "float16", 2),
        (2, 12, 3000, 6, "float32", 16),
        (1, 320, 1024, 32, "float16", 16),
        (2, 6, 1, 1, "float32", 16),
    ],
)
def test_factors_of_channels(
    gpu: Harness,
    rng: np.random.Generator,
    images: int,
    channels: int,
    positions: int,
    groups: int,
    dtype: str,
    offset: int,
    last: bool,
) -> None:
    caps = dataclasses.replace(gpu.caps, device_type="discrete", compute_units=7)
    x = (rng.normal(size=(images, channels, positions)) * 0.5 + rng.normal(size=(1, channels, 1)) * 4).astype(dtype)
    scale, bias = (rng.normal(size=channels).astype(dtype) for _ in range(2))
    results = [Tensor.empty((images, channels), np.float32) for _ in range(2)]
    problem = ChannelFactorsProblem(images, channels, positions, groups, dtype, 1e-3, last)
    given = np.ascontiguousarray(x.transpose(0, 2, 1)) if last else x
    gpu.compute(problem, caps, [Tensor(given, offset=offset), Tensor(scale), Tensor(bias)], results)
    normed = normalised(x.reshape(images, groups, -1), 1e-3)[0].reshape(x.shape)
    want = normed * scale[:, None].astype(np.float64) + bias[:, None]
    got = x.astype(np.float64) * results[0].array[..., None] + results[1].array[..., None]
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3)


def test_channels_of_a_group_that_lie_apart_are_not_read_so() -> None:
    problem = ChannelFactorsProblem(1, 32, 4096, 32, "float16", 1e-5, last=True)
    with pytest.raises(Decline, match="groups of 1 channels lie apart"):
        choose(problem, GPU)


def test_few_long_rows_gain_by_moments_on_a_gpu() -> None:
    assert gains_by_moments(32, 1 << 20, GPU) and not gains_by_moments(32, 1 << 20, DeviceCapabilities.for_tests())
    assert not gains_by_moments(4096, 1 << 20, GPU) and not gains_by_moments(32, 1 << 12, GPU)
