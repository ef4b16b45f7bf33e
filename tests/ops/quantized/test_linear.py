"""Quantisation against ONNX's reference, and its exact semantics where the reference cannot say."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto

from tests.ops.cases import check, model_of, on_vulkan

RNG = np.random.default_rng(7)


def _bytes(dtype: Any, *shape: int) -> np.ndarray[Any, Any]:
    info = np.iinfo(dtype)
    return RNG.integers(info.min, info.max, shape, dtype=dtype, endpoint=True)


@pytest.mark.parametrize("kind", ["int8", "uint8", "int16", "uint16"])
@pytest.mark.parametrize("axis", [None, 1, -1])
def test_quantize_and_back(kind: str, axis: int | None) -> None:
    count = 1 if axis is None else (2, 3, 5)[axis]
    x = RNG.normal(0, 50, (2, 3, 5)).astype(np.float32)
    scale = RNG.uniform(0.1, 1, () if axis is None else (count,)).astype(np.float32)
    zero = RNG.integers(0, 100, scale.shape).astype(kind)
    attributes: dict[str, Any] = {} if axis is None else {"axis": axis}
    [q] = check("QuantizeLinear", {"x": x, "s": scale, "z": zero}, **attributes)
    check("DequantizeLinear", {"x": q, "s": scale, "z": zero}, **attributes)


def test_ties_go_to_even_and_overflow_saturates() -> None:
    x = np.array([0.5, 1.5, 2.5, -0.5, -1.5, 1e6, -1e6, np.inf, -np.inf], np.float32)
    model = model_of("QuantizeLinear", {"x": x, "s": np.array(1, np.float32), "z": np.array(0, np.int8)})
    [y] = on_vulkan(model, {"x": x, "s": np.array(1, np.float32), "z": np.array(0, np.int8)})
    assert y.tolist() == [0, 2, 2, 0, -2, 127, -128, 127, -128]


@pytest.mark.parametrize("constants", [("s", "z"), ()])
@pytest.mark.parametrize("scale", [0.1, 1 / 3, 0.0078431377, 3.7e-5, 6.1e7])
@pytest.mark.gpu  # the interpreter does not round as float32 does
def test_quotients_near_the_middle_of_two_steps(scale: float, constants: tuple[str, ...]) -> None:
    """The nearest floats of each middle and their neighbours: the quotient is rounded once, as IEEE 754 has it."""
    s, z = np.array(scale, np.float32), np.array(32768, np.uint16)
    middles = ((np.arange(-32768, 32767) + 0.5) * np.float64(s)).astype(np.float32)
    x = np.concatenate([middles, np.nextafter(middles, np.float32(np.inf)), np.nextafter(middles, np.float32(-np.inf))])
    values: dict[str, np.ndarray[Any, Any]] = {"x": x, "s": s, "z": z}
    [got] = on_vulkan(model_of("QuantizeLinear", values, constants=constants), values)
    np.testing.assert_array_equal(got, np.clip(np.rint(x / s) + 32768, 0, 65535).astype(np.uint16))


@pytest.mark.parametrize("length", [8, 7])
@pytest.mark.parametrize("axis", [0, 1])
def test_blocks(axis: int, length: int) -> None:
    shape = (length, 3) if axis == 0 else (3, length)
    blocks = (-(-length // 4), 3) if axis == 0 else (3, -(-length // 4))
    scale = RNG.uniform(0.1, 1, blocks).astype(np.float32)
    zero = RNG.integers(-5, 5, blocks).astype(np.int8)
    x = RNG.normal(0, 10, shape).astype(np.float32)
    q = np.clip(
        np.rint(x / np.repeat(scale, 4, axis).take(range(length), axis))
        + np.repeat(zero, 4, axis).take(range(length), axis),
        -128,
        127,
    ).astype(np.int8)
    values: dict[str, np.ndarray[Any, Any]] = {"x": x, "s": scale, "z": zero}
    model = model_of("QuantizeLinear", values, axis=axis, block_size=4)
    np.testing.assert_array_equal(on_vulkan(model, values)[0], q)
    if length == 8:
        check("DequantizeLinear", {"x": q, "s": scale, "z": zero}, axis=axis, block_size=4)


@pytest.mark.parametrize("dtype", [ml_dtypes.int4, ml_dtypes.uint4])
@pytest.mark.parametrize("constants", [(), ("x",), ("x", "z")])
@pytest.mark.parametrize(
    ("axis", "block", "scales"), [(0, 0, (6,)), (1, 0, (8,)), (1, 4, (6, 2)), (0, 2, (3, 8)), (0, 0, ())]
)
def test_four_bits(dtype: Any, constants: tuple[str, ...], axis: int, block: int, scales: tuple[int, ...]) -> None:
    low, high = (-8, 8) if dtype is ml_dtypes.int4 else (0, 16)
    x = RNG.integers(low, high, (6, 8)).astype(dtype)
    scale = RNG.uniform(0.1, 1, scales).astype(np.float32)
    zero = RNG.integers(low, high, scales).astype(dtype)
    inputs = {"x": x, "s": scale, "z": zero}
    check("DequantizeLinear", inputs, constants=constants, axis=axis, block_size=block)


def test_packed_constants_take_half_a_byte() -> None:
    from vkep import InferenceSession

    x = RNG.integers(0, 16, (64, 64)).astype(ml_dtypes.uint4)
    model = model_of("DequantizeLinear", {"x": x, "s": np.array(0.5, np.float32)}, constants=("x",))
    with InferenceSession(model) as session:
        [island] = session.report().islands
        assert 64 * 64 // 2 <= island.constant_bytes < 64 * 64


def test_odd_four_bit_constant() -> None:
    x = RNG.integers(0, 16, (3, 5)).astype(ml_dtypes.uint4)
    check("DequantizeLinear", {"x": x, "s": np.array(0.5, np.float32)}, constants=("x",))


def test_quantize_to_four_bits_by_output_dtype() -> None:
    x = RNG.normal(0, 5, (4, 6)).astype(np.float32)
    check("QuantizeLinear", {"x": x, "s": np.array(0.7, np.float32)}, output_dtype=TensorProto.INT4)


@pytest.mark.parametrize("opset", [13, 21, 23])
def test_constants_are_dequantized_to_the_type_of_their_scale(opset: int) -> None:
    kind = np.float32 if opset == 13 else np.float16
    inputs = {"x": np.array([1, -2, 127], np.int8), "s": np.array(0.5, kind)}
    model = model_of("DequantizeLinear", inputs, constants=tuple(inputs), opset=opset)
    [y] = on_vulkan(model, {})
    assert y.dtype == kind and y.tolist() == [0.5, -1, 63.5]


def test_dynamic_quantization() -> None:
    for x in (RNG.normal(3, 2, (5, 7)), np.abs(RNG.normal(3, 2, 9)), np.zeros(4)):
        model = model_of("DynamicQuantizeLinear", {"x": x.astype(np.float32)}, outputs=("y", "s", "z"))
        from tests.ops.cases import assert_like, by_onnxruntime

        values = {"x": x.astype(np.float32)}
        assert_like(on_vulkan(model, values), by_onnxruntime(model, values))


@pytest.mark.parametrize(("left", "right"), [("int8", "int8"), ("uint8", "int8"), ("uint8", "uint8")])
@pytest.mark.parametrize("constant", [False, True])
def test_integer_products(left: str, right: str, constant: bool) -> None:
    a, b = _bytes(left, 2, 5, 19), _bytes(right, 19, 7)
    inputs = {"a": a, "b": b, "az": _bytes(left, 1), "bz": _bytes(right, 7)}
    constants = ("b", "bz") if constant else ()
    [y] = check("MatMulInteger", inputs, constants=constants)
    exact = (a.astype(np.int64) - inputs["az"]) @ (b.astype(np.int64) - inputs["bz"])
    np.testing.assert_array_equal(y, exact)


def test_per_row_zero_points() -> None:
    a, b = _bytes(np.uint8, 5, 6), _bytes(np.int8, 6, 4)
    az = _bytes(np.uint8, 5)
    values = {"a": a, "b": b, "az": az}
    [y] = on_vulkan(model_of("MatMulInteger", values), values)
    np.testing.assert_array_equal(y, (a.astype(np.int32) - az[:, None].astype(np.int32)) @ b.astype(np.int32))


def test_quantized_product() -> None:
    a, b = _bytes(np.uint8, 6, 9), _bytes(np.int8, 9, 8)
    inputs = {
        "a": a,
        "as": np.array(0.02, np.float32),
        "az": np.array(100, np.uint8),
        "b": b,
        "bs": RNG.uniform(0.01, 0.02, 8).astype(np.float32),
        "bz": np.zeros(8, np.int8),
        "ys": np.array(0.05, np.float32),
        "yz": np.array(120, np.uint8),
    }
    check("QLinearMatMul", inputs, against="onnxruntime", opset=21)


@pytest.mark.parametrize("group", [1, 2, 4])
@pytest.mark.parametrize("per_channel", [False, True])
def test_quantized_convolution(group: int, per_channel: bool) -> None:
    x, w = _bytes(np.uint8, 2, 4, 9, 8), _bytes(np.int8, 8, 4 // group, 3, 3)
    channels = (8,) if per_channel else ()
    inputs = {
        "x": x,
        "xs": np.array(0.02, np.float32),
        "xz": np.array(100, np.uint8),
        "w": w,
        "ws": RNG.uniform(0.01, 0.02, channels).astype(np.float32),
        "wz": np.zeros(channels, np.int8),
        "ys": np.array(0.3, np.float32),
        "yz": np.array(120, np.uint8),
        "bias": RNG.integers(-1000, 1000, 8).astype(np.int32),
    }
    window: dict[str, Any] = {"group": group, "pads": [1, 0, 2, 1], "strides": [2, 1], "dilations": [1, 2]}
    check("QLinearConv", inputs, against="onnxruntime", opset=21, constants=("w", "wz", "ws"), **window)


def test_integer_convolution_pads_with_the_zero_point() -> None:
    x, w = _bytes(np.uint8, 1, 3, 6, 6), _bytes(np.uint8, 4, 3, 3, 3)
    inputs = {"x": x, "w": w, "xz": np.array(77, np.uint8), "wz": np.array(3, np.uint8)}
    check("ConvInteger", inputs, pads=[1, 1, 1, 1], against="onnxruntime", opset=21)
