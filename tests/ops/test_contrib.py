"""ONNX Runtime's own operators, against onnxruntime."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.ops.cases import assert_like, by_onnxruntime, check, model_of, on_vulkan

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(3)
MS: dict[str, Any] = {"domain": "com.microsoft", "against": "onnxruntime", "opset": 21}


def _normal(*shape: int, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    return RNG.normal(0, 1, shape).astype(dtype)


@pytest.mark.parametrize("op_type", ["Gelu", "FastGelu", "QuickGelu"])
def test_activations(op_type: str) -> None:
    check(op_type, {"x": 3 * _normal(4, 33)}, atol=1e-4, **MS)


@pytest.mark.parametrize("op_type", ["BiasGelu", "FastGelu"])
def test_biased_activations(op_type: str) -> None:
    check(op_type, {"x": _normal(2, 5, 16), "b": _normal(16)}, atol=1e-4, **MS)


@pytest.mark.parametrize("beta", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("outputs", [("y",), ("y", "", "", "sum")])
def test_skip_layer_norm(beta: bool, bias: bool, outputs: tuple[str, ...]) -> None:
    inputs: dict[str, Array | None] = {"x": _normal(2, 5, 16), "s": _normal(2, 5, 16), "g": _normal(16)}
    inputs |= {"b": _normal(16) if beta else None, "c": _normal(16) if bias else None}
    check("SkipLayerNormalization", inputs, outputs=outputs, atol=1e-4, epsilon=1e-5, **MS)


@pytest.mark.parametrize("bias", [True, False])
def test_skip_rms_norm(bias: bool) -> None:
    inputs = {"x": _normal(2, 5, 16), "s": _normal(2, 5, 16), "g": _normal(16), "b": _normal(16) if bias else None}
    check("SkipSimplifiedLayerNormalization", inputs, outputs=("y", "", "", "sum"), atol=1e-4, epsilon=1e-6, **MS)


def test_rms_norm() -> None:
    inputs = {"x": _normal(2, 5, 16), "g": _normal(16)}
    check("SimplifiedLayerNormalization", inputs, against="onnxruntime", opset=21, atol=1e-4, epsilon=1e-6)


@pytest.mark.parametrize("op_type", ["SimplifiedLayerNormalization", "LayerNormalization"])
@pytest.mark.parametrize("dtypes", [("float16", "float32"), ("float32", "float16")])
def test_the_norms_of_two_types_give_the_scales(op_type: str, dtypes: tuple[str, str]) -> None:
    """As ONNX Runtime's own operators before those of ONNX have it."""
    inputs = {"x": _normal(2, 5, 16).astype(dtypes[0]), "g": _normal(16).astype(dtypes[1])}
    check(op_type, inputs, against="onnxruntime", opset=12, atol=4e-3, epsilon=1e-5)


@pytest.mark.parametrize("segments", [True, False])
@pytest.mark.parametrize("positions", [True, False])
def test_embedding(segments: bool, positions: bool) -> None:
    ids = RNG.integers(0, 9, (2, 6)).astype(np.int32)
    inputs: dict[str, Any] = {
        "ids": ids,
        "seg": RNG.integers(0, 2, (2, 6)).astype(np.int32) if segments else None,
        "word": _normal(9, 8),
        "pos": _normal(12, 8),
        "segs": _normal(2, 8) if segments else None,
        "g": _normal(8),
        "b": _normal(8),
        "m": np.tri(2, 6, 3).astype(np.int32),
        "pids": RNG.integers(0, 12, (2, 6)).astype(np.int32) if positions else None,
    }
    check("EmbedLayerNormalization", inputs, outputs=("y", "index", "sum"), atol=1e-4, **MS)


@pytest.mark.parametrize("transposed", [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_fused_matmul(transposed: tuple[int, int]) -> None:
    a = _normal(3, 7, 5) if transposed[0] else _normal(3, 5, 7)
    b = _normal(3, 6, 7) if transposed[1] else _normal(3, 7, 6)
    check("FusedMatMul", {"a": a, "b": b}, transA=transposed[0], transB=transposed[1], alpha=0.5, **MS)


def test_fused_matmul_with_batch_transposed() -> None:
    check("FusedMatMul", {"a": _normal(5, 3, 7), "b": _normal(7, 3, 6)}, transBatchA=1, transBatchB=1, **MS)


@pytest.mark.parametrize("activation", ["Relu", "LeakyRelu", "Tanh", "Sigmoid"])
def test_fused_convolution_and_gemm(activation: str) -> None:
    inputs = {"a": _normal(4, 5), "b": _normal(5, 6), "c": _normal(6)}
    slope: dict[str, Any] = {"activation_alpha": 0.2} if activation == "LeakyRelu" else {}
    check("FusedGemm", inputs, activation=activation, **slope, **MS)
    more: dict[str, Any] = {"activation_params": [0.2]} if activation == "LeakyRelu" else {}
    inputs = {"x": _normal(1, 2, 6, 6), "w": _normal(3, 2, 3, 3), "b": _normal(3)}
    check("FusedConv", inputs, activation=activation, atol=1e-4, **more, **MS)


def test_bias_dropout_of_inference() -> None:
    inputs = {"x": _normal(3, 8), "b": _normal(8), "r": _normal(3, 8)}
    model = model_of("BiasDropout", inputs, domain="com.microsoft", outputs=("y",))
    np.testing.assert_allclose(on_vulkan(model, inputs)[0], sum(inputs.values()), rtol=1e-6)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("rows", [1, 3, 40])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("depth", [64, 80])
def test_matmul_nbits(bits: int, rows: int, zeros: bool, depth: int) -> None:
    n, block = 24, 32
    blocks = -(-depth // block)
    inputs: dict[str, Any] = {
        "a": _normal(2, rows, depth) if rows == 3 else _normal(rows, depth),
        "b": RNG.integers(0, 256, (n, blocks, block * bits // 8)).astype(np.uint8),
        "s": RNG.uniform(0.01, 0.1, (n, blocks)).astype(np.float32),
        "z": RNG.integers(0, 256, (n, -(-blocks * bits // 8))).astype(np.uint8) if zeros else None,
    }
    constants = ("b", "s", "z") if zeros else ("b", "s")
    attributes: dict[str, Any] = {"K": depth, "N": n, "bits": bits, "block_size": block}
    check("MatMulNBits", inputs, constants=constants, atol=2e-4, rtol=1e-4, **attributes, **MS)


def test_matmul_nbits_with_bias_and_float_zero_points() -> None:
    inputs: dict[str, Array | None] = {
        "a": _normal(2, 64),
        "b": RNG.integers(0, 256, (16, 2, 16)).astype(np.uint8),
        "s": RNG.uniform(0.01, 0.1, (16, 2)).astype(np.float32),
        "z": RNG.uniform(0, 15, (16, 2)).astype(np.float32),
        "g": None,
        "c": _normal(16),
    }
    check("MatMulNBits", inputs, constants=("b", "s", "z"), atol=2e-4, K=64, N=16, bits=4, block_size=32, **MS)


@pytest.mark.parametrize("dtype", [ml_dtypes.int4, ml_dtypes.uint4])
@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize(("gather_axis", "quantize_axis"), [(0, 1), (0, 2), (1, 2), (1, 0)])
def test_gather_block_quantized(dtype: Any, constant: bool, zeros: bool, gather_axis: int, quantize_axis: int) -> None:
    shape = [6, 4, 8]
    shape[quantize_axis] = 32
    low, high = (-8, 8) if dtype is ml_dtypes.int4 else (0, 16)
    scales = list(shape)
    scales[quantize_axis] = 2
    inputs = {
        "x": RNG.integers(low, high, shape).astype(dtype),
        "i": RNG.integers(0, shape[gather_axis], (2, 3)).astype(np.int64),
        "s": RNG.uniform(0.1, 1, scales).astype(np.float32),
        "z": RNG.integers(low, high, scales).astype(dtype) if zeros else None,
    }
    values = {name: value for name, value in inputs.items() if value is not None}
    constants = [name for name in values if name != "i"]
    axes: dict[str, Any] = {"gather_axis": gather_axis, "quantize_axis": quantize_axis, "block_size": 16}
    fixed = model_of("GatherBlockQuantized", values, constants=constants, domain="com.microsoft", opset=21, **axes)
    ours = fixed if constant else model_of("GatherBlockQuantized", values, domain="com.microsoft", opset=21, **axes)
    # onnxruntime takes no 4-bit tensor from outside
    assert_like(on_vulkan(ours, values), by_onnxruntime(fixed, values))


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("zeros", [False, True])
def test_gather_block_quantized_bytes(bits: int, zeros: bool) -> None:
    inputs: dict[str, Array | None] = {
        "x": RNG.integers(0, 256, (6, 64 * bits // 8)).astype(np.uint8),
        "i": RNG.integers(0, 6, (2, 3)).astype(np.int32),
        "s": RNG.uniform(0.1, 1, (6, 4)).astype(np.float32),
        "z": RNG.integers(0, 256, (6, 4 * bits // 8)).astype(np.uint8) if zeros else None,
    }
    check("GatherBlockQuantized", inputs, constants=("x",), bits=bits, block_size=16, quantize_axis=1, **MS)


def _bytes(dtype: Any, *shape: int) -> np.ndarray[Any, Any]:
    info = np.iinfo(dtype)
    return RNG.integers(info.min, info.max, shape, dtype=dtype, endpoint=True)


def test_integer_products_to_float() -> None:
    inputs = {
        "a": _bytes(np.uint8, 4, 9),
        "b": _bytes(np.int8, 9, 6),
        "as": np.array(0.02, np.float32),
        "bs": RNG.uniform(0.01, 0.02, 6).astype(np.float32),
        "az": np.array(120, np.uint8),
        "bz": np.zeros(6, np.int8),
        "c": _normal(6),
    }
    check("MatMulIntegerToFloat", inputs, atol=1e-4, **MS)
    dynamic = {"a": _normal(4, 9), "b": inputs["b"], "bs": inputs["bs"], "bz": inputs["bz"], "c": inputs["c"]}
    check("DynamicQuantizeMatMul", dynamic, atol=1e-3, **MS)


@pytest.mark.parametrize("op_type", ["QLinearAdd", "QLinearMul"])
def test_quantized_arithmetic(op_type: str) -> None:
    inputs = {
        "x": _bytes(np.uint8, 4, 9),
        "xs": np.array(0.02, np.float32),
        "xz": np.array(120, np.uint8),
        "w": _bytes(np.uint8, 9),
        "ws": np.array(0.03, np.float32),
        "wz": np.array(110, np.uint8),
        "zs": np.array(0.05, np.float32),
        "zz": np.array(100, np.uint8),
    }
    model = model_of(op_type, inputs, domain="com.microsoft", opset=21)
    # onnxruntime multiplies by reciprocals here: a tie may go the other way
    difference = on_vulkan(model, inputs)[0].astype(int) - by_onnxruntime(model, inputs)[0]
    assert np.abs(difference).max() <= 1 and (difference != 0).mean() < 0.1


def test_quantized_gemm() -> None:
    inputs = {
        "a": _bytes(np.uint8, 4, 9),
        "as": np.array(0.02, np.float32),
        "az": np.array(120, np.uint8),
        "b": _bytes(np.int8, 6, 9),
        "bs": RNG.uniform(0.01, 0.02, 6).astype(np.float32),
        "bz": np.zeros(6, np.int8),
        "c": RNG.integers(-100, 100, 6).astype(np.int32),
        "ys": np.array(0.05, np.float32),
        "yz": np.array(120, np.uint8),
    }
    check("QGemm", inputs, transB=1, alpha=1.0, **MS)
    for absent in ("yz", "ys"):  # float32 in units of its scale, and without one
        del inputs[absent]
        check("QGemm", inputs, transB=1, alpha=1.0, **MS)
