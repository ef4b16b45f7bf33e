"""Layer, RMS, group, Lp and local response normalisation against numpy at float64."""

from __future__ import annotations

import numpy as np
import pytest

from gpu_shared.capabilities import DeviceCapabilities
from tests.kernels.harness import Harness, Tensor
from vkep.kernels.norm import group_norm, layer_norm, local_response_norm, lp_norm


def normalised(x: np.ndarray, epsilon: float, center: bool = True) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(x normalised over its last axis, mean, 1 / standard deviation), float64."""
    wide = x.astype(np.float64)
    mean = wide.mean(-1, keepdims=True) if center else np.zeros((*x.shape[:-1], 1))
    inv_std = 1 / np.sqrt(((wide - mean) ** 2).mean(-1, keepdims=True) + epsilon)
    return (wide - mean) * inv_std, mean[..., 0], inv_std[..., 0]


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
            operands = {"scale": None if s is None else Tensor(s), "bias": None if b is None else Tensor(b)}
            gpu.run(layer_norm(*shape, "float32", caps, Tensor(x), y, epsilon=1e-5, rms=rms, **operands))
            full = want * (1 if s is None else s) + (0 if b is None else b)
            np.testing.assert_allclose(y.array, full, rtol=2e-5, atol=2e-5)


def test_layer_norm_gives_statistics(gpu: Harness, caps: DeviceCapabilities, rng: np.random.Generator) -> None:
    x = rng.normal(size=(7, 200)).astype(np.float32)
    y, mean, inv_std = (
        Tensor.empty((7, 200), np.float32),
        Tensor.empty((7,), np.float32),
        Tensor.empty((7,), np.float32),
    )
    gpu.run(layer_norm(7, 200, "float32", caps, Tensor(x), y, mean=mean, inv_std=inv_std), indirect=True)
    _, want_mean, want_inv_std = normalised(x, 1e-5)
    np.testing.assert_allclose(mean.array, want_mean, atol=1e-6)
    np.testing.assert_allclose(inv_std.array, want_inv_std, rtol=1e-5)


def test_layer_norm_is_stable_around_a_large_mean(
    gpu: Harness, caps: DeviceCapabilities, rng: np.random.Generator
) -> None:
    x = (rng.normal(size=(4, 1500)) + 10_000).astype(np.float32)
    y = Tensor.empty(x.shape, np.float32)
    gpu.run(layer_norm(*x.shape, "float32", caps, Tensor(x), y))
    np.testing.assert_allclose(y.array, normalised(x, 1e-5)[0], atol=5e-3)


@pytest.mark.parametrize("rms", [False, True])
def test_layer_norm_float16(gpu: Harness, caps: DeviceCapabilities, rng: np.random.Generator, rms: bool) -> None:
    x = (rng.normal(size=(6, 1024)) * 100).astype(np.float16)  # squares overflow float16
    scale = rng.normal(size=1024).astype(np.float16)
    y = Tensor.empty(x.shape, np.float16)
    gpu.run(layer_norm(*x.shape, "float16", caps, Tensor(x), y, scale=Tensor(scale), rms=rms))
    want = normalised(x, 1e-5, center=not rms)[0] * scale
    np.testing.assert_allclose(y.array.astype(np.float64), want, rtol=2e-3, atol=2e-3)


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
    operands = {"scale": Tensor(scale), "bias": Tensor(bias)}
    gpu.run(group_norm(images, groups, channels, spatial, "float32", caps, Tensor(x), y, epsilon=1e-3, **operands))
    flat = x.reshape(images, groups, -1)
    want = normalised(flat, 1e-3)[0].reshape(x.shape) * scale + bias
    np.testing.assert_allclose(y.array, want, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_four_at_a_time(gpu: Harness, caps: DeviceCapabilities, rng: np.random.Generator, dtype: str) -> None:
    tolerance = 2e-5 if dtype == "float32" else 4e-3
    for rows, axis in [(1, 4), (5, 768), (300, 12), (2, 6000)]:
        x = (rng.normal(size=(rows, axis)) + 1).astype(dtype)
        scale, bias = (rng.normal(size=axis).astype(dtype) for _ in range(2))
        y = Tensor.empty(x.shape, dtype)
        operands = {"scale": Tensor(scale), "bias": Tensor(bias)}
        calls = layer_norm(rows, axis, dtype, caps, Tensor(x), y, alignment=16, **operands)
        assert "VECTOR_IN_T" in dict(calls[0].variant.defines)
        gpu.run(calls)
        want = normalised(x, 1e-5)[0] * scale.astype(np.float64) + bias
        np.testing.assert_allclose(y.array.astype(np.float64), want, rtol=tolerance, atol=tolerance)
    x = rng.normal(size=(2, 3, 5, 16)).astype(dtype)
    scale = rng.normal(size=15).astype(dtype)
    y = Tensor.empty(x.shape, dtype)
    gpu.run(group_norm(2, 3, 5, 16, dtype, caps, Tensor(x), y, scale=Tensor(scale), alignment=16))
    want = normalised(x.reshape(2, 3, 80), 1e-5)[0].reshape(x.shape) * scale.astype(np.float64).reshape(1, 3, 5, 1)
    np.testing.assert_allclose(y.array.astype(np.float64), want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("shape", [(3, 20, 1), (2, 300, 7), (1, 3, 500)])
def test_lp_norm(
    gpu: Harness, caps: DeviceCapabilities, rng: np.random.Generator, shape: tuple[int, int, int], p: int
) -> None:
    x = rng.normal(size=shape).astype(np.float32)
    x[0, :, 0] = 0  # the norm is 0
    y = Tensor.empty(shape, np.float32)
    gpu.run(lp_norm(*shape, "float32", caps, Tensor(x), y, p))
    norm = np.linalg.norm(x.astype(np.float64), p, axis=1, keepdims=True)
    np.testing.assert_allclose(y.array, x / np.where(norm == 0, 1, norm), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_local_response_norm(
    gpu: Harness, caps: DeviceCapabilities, rng: np.random.Generator, size: int, dtype: str
) -> None:
    x = (rng.normal(size=(2, 6, 35)) * 4).astype(dtype)
    y = Tensor.empty(x.shape, x.dtype)
    gpu.run(local_response_norm(2, 6, 35, dtype, caps, Tensor(x), y, size=size, alpha=0.01, beta=0.75, bias=1.5))
    wide = x.astype(np.float64)
    squares = np.zeros(x.shape)
    for c in range(6):
        squares[:, c] = (wide[:, max(0, c - (size - 1) // 2) : c + size // 2 + 1] ** 2).sum(1)
    want = wide / (1.5 + 0.01 / size * squares) ** 0.75
    np.testing.assert_allclose(y.array, want, rtol=1e-5 if dtype == "float32" else 2e-3)


def test_empty_and_wrong_arguments(caps: DeviceCapabilities) -> None:
    assert layer_norm(0, 5, "float32", caps, None, None) == []
    assert group_norm(2, 0, 3, 4, "float32", caps, None, None) == []
    assert local_response_norm(1, 4, 0, "float32", caps, None, None, size=3) == []
    with pytest.raises(ValueError, match="p is 3, expected 1 or 2"):
        lp_norm(1, 2, 1, "float32", caps, None, None, 3)
    with pytest.raises(ValueError, match="size is 0"):
        local_response_norm(1, 2, 1, "float32", caps, None, None, size=0)
    with pytest.raises(ValueError, match="layer norm: element type is 'int8'"):
        layer_norm(1, 2, "int8", caps, None, None)
