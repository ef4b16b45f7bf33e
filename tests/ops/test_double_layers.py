"""float64 in layers that have windows, rows, states and positions, against ONNX's evaluator or numpy; and the other element types
that few operators have."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.ops.cases import Array, check, model_of, on_vulkan

pytestmark = pytest.mark.usefixtures("vulkan")
RNG = np.random.default_rng(83)


def _f(*shape: int) -> Array:
    return RNG.standard_normal(shape)


IMAGE = _f(2, 3, 6, 5)
#: operator, inputs, attributes, operator set, outputs
LAYERS: dict[str, tuple[str, dict[str, Array | None], dict[str, Any], int, int]] = {
    "max pool": ("MaxPool", {"x": IMAGE}, {"kernel_shape": [3, 2], "pads": [1, 0, 1, 1], "strides": [2, 1]}, 22, 2),
    "average pool": ("AveragePool", {"x": IMAGE}, {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}, 22, 1),
    "lp pool": ("LpPool", {"x": IMAGE}, {"kernel_shape": [2, 2], "p": 2}, 22, 1),
    "global average": ("GlobalAveragePool", {"x": IMAGE}, {}, 22, 1),
    "global max": ("GlobalMaxPool", {"x": IMAGE}, {}, 22, 1),
    "instance norm": ("InstanceNormalization", {"x": IMAGE, "s": _f(3), "b": _f(3)}, {}, 22, 1),
    "rms norm": ("RMSNormalization", {"x": IMAGE, "s": _f(5)}, {}, 23, 1),
    "DFT": ("DFT", {"x": _f(2, 300, 2)}, {"axis": 1}, 17, 1),
    "STFT": ("STFT", {"x": _f(1, 64, 1), "step": np.array(8), "w": _f(16)}, {}, 17, 1),
    "linear resize": ("Resize", {"x": IMAGE, "r": None, "c": np.array([1, 1, 2, 0.5], np.float32)}, {"mode": "linear"}, 19, 1),
    "LSTM": ("LSTM", {"x": _f(3, 2, 4), "w": _f(1, 20, 4), "r": _f(1, 20, 5), "b": _f(1, 40)}, {"hidden_size": 5}, 22, 2),
    "GRU": ("GRU", {"x": _f(3, 2, 4), "w": _f(1, 15, 4), "r": _f(1, 15, 5), "b": _f(1, 30)}, {"hidden_size": 5}, 22, 2),
    "RNN": ("RNN", {"x": _f(3, 2, 4), "w": _f(1, 5, 4), "r": _f(1, 5, 5)}, {"hidden_size": 5}, 22, 2),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
def test_layers(name: str) -> None:
    op_type, inputs, attributes, opset, count = LAYERS[name]
    outputs = [f"y{k}" for k in range(count)]
    rtol = 1e-6 if op_type in ("RMSNormalization", "STFT") else 1e-10  # the evaluator computes in float32
    constants = [n for n in ("c", "step") if n in inputs]
    check(op_type, inputs, outputs=outputs, constants=constants, opset=opset, rtol=rtol, atol=rtol, **attributes)


def test_response_normalization() -> None:
    size, alpha, beta, bias = 3, 0.5, 0.75, 2.0
    [got] = on_vulkan(
        model_of("LRN", {"x": IMAGE}, opset=13, size=size, alpha=alpha, beta=beta, bias=bias), {"x": IMAGE}
    )
    squares = np.pad(IMAGE**2, ((0, 0), (1, 1), (0, 0), (0, 0)))
    total = sum(squares[:, k : k + 3] for k in range(size))
    np.testing.assert_allclose(got, IMAGE / (bias + alpha / size * total) ** beta, rtol=1e-13)


def _bilinear(image: Array, row: float, column: float) -> Array:
    top, left = int(np.floor(row)), int(np.floor(column))
    total = np.zeros(image.shape[0])
    for r, c in ((top, left), (top, left + 1), (top + 1, left), (top + 1, left + 1)):
        if 0 <= r < image.shape[1] and 0 <= c < image.shape[2]:
            total += (1 - abs(row - r)) * (1 - abs(column - c)) * image[:, r, c]
    return total


def test_positions() -> None:
    grid = RNG.uniform(-1.2, 1.2, (2, 1, 4, 2))
    [got] = on_vulkan(model_of("GridSample", {"x": IMAGE, "g": grid}, opset=22), {"x": IMAGE, "g": grid})
    for n in range(2):
        for k, (u, v) in enumerate(grid[n, 0]):
            want = _bilinear(IMAGE[n], ((v + 1) * 6 - 1) / 2, ((u + 1) * 5 - 1) / 2)
            np.testing.assert_allclose(got[n, :, 0, k], want, rtol=1e-12, atol=1e-13)
    inputs = {"x": IMAGE, "rois": np.array([[0.5, 1.0, 3.0, 4.0]]), "i": np.array([1])}
    attributes: dict[str, Any] = {
        "output_height": 1,
        "output_width": 1,
        "sampling_ratio": 1,
        "coordinate_transformation_mode": "output_half_pixel",
    }
    [got] = on_vulkan(model_of("RoiAlign", inputs, opset=22, **attributes), inputs)
    np.testing.assert_allclose(got[0, :, 0, 0], _bilinear(IMAGE[1], 2.5, 1.75), rtol=1e-13)
    inputs = {"x": IMAGE[:1], "w": _f(2, 3, 1, 1), "offset": RNG.uniform(-1, 1, (1, 2, 6, 5))}
    [got] = on_vulkan(model_of("DeformConv", inputs, opset=22), inputs)
    at = inputs["offset"][0]
    want = np.array([[_bilinear(IMAGE[0], r + at[0, r, c], c + at[1, r, c]) for c in range(5)] for r in range(6)])
    np.testing.assert_allclose(got[0], np.einsum("rcm,om->orc", want, inputs["w"][:, :, 0, 0]), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("dtype", [np.int16, np.uint32, np.bool_])
def test_nearest_samples_of_integers(dtype: Any) -> None:
    x = RNG.integers(0, 2 if dtype is np.bool_ else np.iinfo(dtype).max, (1, 2, 4, 5)).astype(dtype)
    check("GridSample", {"x": x, "g": RNG.uniform(-1, 1, (1, 3, 2, 2)).astype(np.float32)}, opset=20, mode="nearest")


def test_affine_grid() -> None:
    inputs = {"t": _f(2, 2, 3), "size": np.array([2, 3, 4, 5])}
    [got] = on_vulkan(model_of("AffineGrid", inputs, opset=20, constants=["size"]), inputs)
    rows, columns = ((2 * np.arange(n) + 1) / n - 1 for n in (4, 5))
    places = np.stack([*np.meshgrid(columns, rows), np.ones((4, 5))], -1)
    np.testing.assert_allclose(got, np.einsum("hwk,njk->nhwj", places, inputs["t"]), rtol=1e-12, atol=1e-14)


@pytest.mark.gpu
def test_integers_of_float_functions() -> None:
    x = np.array([[1, 2, 3], [4, 5, 60]], np.int32)
    check("ReduceLogSumExp", {"x": x}, opset=13, axes=[1], against="onnxruntime")
    [got] = on_vulkan(
        model_of("ReduceLogSum", {"x": x.astype(np.uint64)}, opset=13, axes=[0]), {"x": x.astype(np.uint64)}
    )
    np.testing.assert_array_equal(got, np.log(x.sum(0, keepdims=True)).astype(np.uint64))
    [got] = on_vulkan(model_of("Erf", {"x": x}, opset=9), {"x": x})
    np.testing.assert_array_equal(got, [[0, 0, 0], [1, 1, 1]])  # erf(4) is 1 in float32


def test_scales_that_are_powers_of_two() -> None:
    """OCP's MX formats: blocks of 4-bit or 8-bit floats with one exponent."""
    x = (RNG.standard_normal((2, 8)) * 5).astype(np.float32)
    scales = np.array([[0.5, 2.0], [0.25, 1.0]]).astype(ml_dtypes.float8_e8m0fnu)
    wide = np.repeat(scales.astype(np.float32), 4, 1)
    for kind in (ml_dtypes.float8_e4m3fn, ml_dtypes.float4_e2m1fn):
        zero = np.zeros(scales.shape, kind)
        inputs = {"x": x, "s": scales, "z": zero}
        model = model_of("QuantizeLinear", inputs, opset=25, axis=1, block_size=4)
        [codes] = on_vulkan(model, inputs)
        want = np.clip(x / wide, -float(ml_dtypes.finfo(kind).max), float(ml_dtypes.finfo(kind).max)).astype(kind)
        np.testing.assert_array_equal(codes.astype(np.float32), want.astype(np.float32))
        inputs = {"x": want, "s": scales}
        [back] = on_vulkan(model_of("DequantizeLinear", inputs, opset=25, axis=1, block_size=4, output_dtype=1), inputs)
        np.testing.assert_array_equal(back, want.astype(np.float32) * wide)


def test_products_and_copies_of_8_bit_floats() -> None:
    kind = ml_dtypes.float8_e4m3fn
    a, y = _f(3, 8).astype(kind), _f(8, 4).astype(kind)
    zero, s = np.zeros((), kind), [np.array(v, np.float32) for v in (0.5, 0.25, 0.125)]
    inputs = {"a": a, "as": s[0], "az": zero, "b": y, "bs": s[1], "bz": zero, "ys": s[2], "yz": zero}
    [got] = on_vulkan(model_of("QLinearMatMul", inputs, opset=21), inputs)
    want = (a.astype(np.float32) @ y.astype(np.float32)).astype(kind)
    np.testing.assert_array_equal(got.astype(np.float32), want.astype(np.float32))
    [got] = on_vulkan(model_of("Dropout", {"x": a}, opset=22), {"x": a})
    np.testing.assert_array_equal(got.astype(np.float32), a.astype(np.float32))
