"""Fourier transforms against numpy, and mel filters against ONNX's reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ops.cases import Array, check, model_of, on_vulkan
from tests.ops.microsoft import Inputs, against, normal

RNG = np.random.default_rng(4)


def _normal(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.normal(0, 1, shape).astype(np.float32)


def _complex(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return x[..., 0] + 1j * x[..., 1] if x.shape[-1] == 2 else x[..., 0]


@pytest.mark.parametrize("n", [1, 2, 7, 16, 127, 131, 144, 1000, 4096])
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("inverse", [0, 1])
def test_lengths(n: int, parts: int, inverse: int) -> None:
    x = _normal(3, n, parts)
    [y] = on_vulkan(model_of("DFT", {"x": x}, opset=20, inverse=inverse), {"x": x})
    exact = (np.fft.ifft if inverse else np.fft.fft)(_complex(x.astype(np.float64)), axis=1)
    scale = np.abs(exact).max()
    np.testing.assert_allclose(_complex(y), exact, atol=3e-6 * scale)


@pytest.mark.parametrize("axis", [1, -2, -3, 0])
@pytest.mark.parametrize("length", [None, 12, 5])
@pytest.mark.parametrize("onesided", [0, 1])
def test_axes_lengths_and_sides(axis: int, length: int | None, onesided: int) -> None:
    x = _normal(8, 9, 10, 1)
    inputs = {
        "x": x,
        "n": np.array(length, np.int64) if length else None,
        "axis": np.array(axis, np.int64),
    }
    constants = ("n", "axis") if length else ("axis",)
    model = model_of("DFT", inputs, constants=constants, opset=20, onesided=onesided)
    [y] = on_vulkan(model, {"x": x})
    real = x[..., 0].astype(np.float64)
    at = axis if axis >= 0 else axis + 1  # numpy's array has no axis for the parts
    exact = (np.fft.rfft if onesided else np.fft.fft)(real, n=length, axis=at)
    assert y.shape == (*exact.shape, 2)
    np.testing.assert_allclose(_complex(y), exact, atol=1e-5 * np.abs(exact).max())


@pytest.mark.parametrize("n", [8, 9, 300])
def test_real_signal_from_one_side(n: int) -> None:
    x = _normal(3, n // 2 + 1, 2)
    model = model_of("DFT", {"x": x, "n": np.array(n)}, constants=("n",), opset=20, inverse=1, onesided=1)
    [y] = on_vulkan(model, {"x": x})
    np.testing.assert_allclose(y[..., 0], np.fft.irfft(_complex(x.astype(np.float64)), n=n, axis=1), atol=1e-6 * n)


def test_there_and_back() -> None:
    x = _normal(2, 360, 2)
    [forward] = on_vulkan(model_of("DFT", {"x": x}, opset=17), {"x": x})
    [back] = on_vulkan(model_of("DFT", {"x": forward}, opset=17, inverse=1), {"x": forward})
    np.testing.assert_allclose(back, x, atol=1e-5)


@pytest.mark.parametrize("onesided", [0, 1])
@pytest.mark.parametrize("windowed", [False, True])
def test_short_time(onesided: int, windowed: bool) -> None:
    x = _normal(2, 100, 1)
    window = np.hanning(32).astype(np.float32)
    inputs: dict[str, Any] = {"x": x, "step": np.array(8), "w": window if windowed else None}
    inputs["n"] = None if windowed else np.array(32)
    constants = ("step",) if windowed else ("step", "n")
    [y] = on_vulkan(model_of("STFT", inputs, constants=constants, onesided=onesided), {"x": x, "w": window})
    frames = np.lib.stride_tricks.sliding_window_view(x[..., 0].astype(np.float64), 32, axis=1)[:, ::8]
    exact = (np.fft.rfft if onesided else np.fft.fft)(frames * window if windowed else frames)
    assert y.shape == (*exact.shape, 2)
    np.testing.assert_allclose(_complex(y), exact, atol=1e-4)


@pytest.mark.parametrize("values", [(8, 16, 8192, 0.0, 4096.0), (20, 512, 16000, 125.0, 7500.0)])
def test_mel_filters(values: tuple[Any, ...]) -> None:
    names = ("bins", "length", "rate", "low", "high")
    inputs = {
        n: np.array(v, np.float32 if isinstance(v, float) else np.int64) for n, v in zip(names, values, strict=True)
    }
    check("MelWeightMatrix", inputs, atol=1e-6)


@pytest.mark.parametrize("shapes", [((3, 4, 2), (3, 4, 2)), ((3, 1, 2), (4, 2))])
def test_complex_products(shapes: Any) -> None:
    def expected(conj: bool, x: Array, y: Array) -> Array:
        u, v = (t[..., 0] + 1j * t[..., 1] for t in (x, y))
        made = u * (v.conj() if conj else v)
        return np.stack([made.real, made.imag], -1)

    inputs: Inputs = dict(zip("xv", (normal(*s) for s in shapes), strict=True))
    against(lambda x, v: expected(False, x, v), "ComplexMul", inputs)
    against(lambda x, v: expected(True, x, v), "ComplexMulConj", inputs)


@pytest.mark.parametrize(("shape", "ndim"), [((3, 16), 1), ((2, 6, 10), 2), ((1, 4, 6, 8), 3)])
def test_fourier(shape: tuple[int, ...], ndim: int) -> None:
    x, axes = normal(*shape), tuple(range(-ndim, 0))
    spectrum = np.fft.rfftn(x, axes=axes)
    parts = np.stack([spectrum.real, spectrum.imag], -1).astype(np.float32)
    against(lambda x: parts, "Rfft", {"x": x}, signal_ndim=ndim, atol=1e-4)
    against(lambda x: np.fft.irfftn(spectrum, axes=axes), "Irfft", {"x": parts}, signal_ndim=ndim, atol=1e-4)
