"""Fused products by weights of few bits, against the nodes that they stand for in onnxruntime's CPU provider."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import helper

from tests.ops.cases import Array, assert_like, by_onnxruntime, check, graph_of, model_of, on_vulkan
from tests.ops.microsoft import MS, RNG, against, codes, normal

pytestmark = pytest.mark.usefixtures("vulkan")
K, BLOCK = 64, 32
DOMAIN = "com.microsoft"


def _weights(name: str, n: int, bias: bool) -> dict[str, Array | None]:
    return {
        f"{name}_w": RNG.integers(0, 256, (n, K // BLOCK, BLOCK // 2), dtype=np.uint8),
        f"{name}_s": RNG.uniform(0.01, 0.1, (n, K // BLOCK)).astype(np.float32),
        f"{name}_b": normal(n) if bias else None,
    }


def _product(x: str, name: str, n: int, bias: bool) -> Any:
    inputs = [x, f"{name}_w", f"{name}_s", "", "", f"{name}_b" if bias else ""]
    return helper.make_node("MatMulNBits", inputs, [name], domain=DOMAIN, K=K, N=n, bits=4, block_size=BLOCK)


def _norm(norm: str) -> list[Any]:
    if norm == "skip":
        names = ["normed", "", "", "sum"]
        return [
            helper.make_node(
                "SkipSimplifiedLayerNormalization", ["x", "skip", "scale"], names, domain=DOMAIN, epsilon=1e-5
            )
        ]
    return [helper.make_node("SimplifiedLayerNormalization", ["x", "scale"], ["normed"], epsilon=1e-5)] if norm else []


def _inputs(norm: str, parts: dict[str, int], bias: bool) -> dict[str, Array | None]:
    inputs: dict[str, Array | None] = {
        "x": normal(2, 3, K),
        "skip": normal(2, 3, K) if norm == "skip" else None,
        "scale": normal(K) if norm else None,
    }
    for name, n in parts.items():
        inputs |= _weights(name, n, bias)
    return inputs


def _check(
    op_type: str, norm: str, inputs: dict[str, Array | None], nodes: list[Any], made: list[str], **rest: Any
) -> None:
    given = {name: value for name, value in inputs.items() if value is not None}
    constants = [name for name in given if name not in ("x", "skip")]
    outputs = [*made, *(["sum"] if norm == "skip" else [])]
    fused = model_of(
        op_type, inputs, outputs=outputs, constants=constants, domain=DOMAIN, opset=21, K=K, bits=4, block_size=BLOCK,
        epsilon=1e-5, **rest,
    )  # fmt: skip
    apart = graph_of([*_norm(norm), *nodes], given, outputs, constants, 21, DOMAIN)
    assert_like(on_vulkan(fused, given), by_onnxruntime(apart, given), 1e-3, 1e-3)


@pytest.mark.parametrize("norm", ["", "plain", "skip"])
@pytest.mark.parametrize("bias", [False, True])
def test_gated_products(norm: str, bias: bool) -> None:
    x = "normed" if norm else "x"
    nodes = [
        *(_product(x, name, 32, bias) for name in ("gate", "up")),
        helper.make_node("Sigmoid", ["gate"], ["opened"]),
        helper.make_node("Mul", ["gate", "opened"], ["silu"]),
        helper.make_node("Mul", ["silu", "up"], ["y"]),
    ]
    _check("MatMulNBitsMlp", norm, _inputs(norm, {"gate": 32, "up": 32}, bias), nodes, ["y"], N=32, activation="silu")


@pytest.mark.parametrize("norm", ["plain", "skip"])
@pytest.mark.parametrize("bias", [False, True])
def test_queries_keys_and_values(norm: str, bias: bool) -> None:
    parts = {"q": 48, "k": 16, "v": 16}
    nodes = [_product("normed", name, n, bias) for name, n in parts.items()]
    _check("MatMulNBitsQkv", norm, _inputs(norm, parts, bias), nodes, [*parts], Nq=48, Nkv=16)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("rows", [1, 3, 40])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("depth", [64, 80])
def test_matmul_nbits(bits: int, rows: int, zeros: bool, depth: int) -> None:
    n, block = 24, 32
    blocks = -(-depth // block)
    inputs: dict[str, Any] = {
        "a": normal(2, rows, depth) if rows == 3 else normal(rows, depth),
        "b": RNG.integers(0, 256, (n, blocks, block * bits // 8)).astype(np.uint8),
        "s": RNG.uniform(0.01, 0.1, (n, blocks)).astype(np.float32),
        "z": RNG.integers(0, 256, (n, -(-blocks * bits // 8))).astype(np.uint8) if zeros else None,
    }
    constants = ("b", "s", "z") if zeros else ("b", "s")
    attributes: dict[str, Any] = {"K": depth, "N": n, "bits": bits, "block_size": block}
    check("MatMulNBits", inputs, constants=constants, atol=2e-4, rtol=1e-4, **attributes, **MS)


def test_matmul_nbits_with_bias_and_float_zero_points() -> None:
    inputs: dict[str, Array | None] = {
        "a": normal(2, 64),
        "b": RNG.integers(0, 256, (16, 2, 16)).astype(np.uint8),
        "s": RNG.uniform(0.01, 0.1, (16, 2)).astype(np.float32),
        "z": RNG.uniform(0, 15, (16, 2)).astype(np.float32),
        "g": None,
        "c": normal(16),
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


@pytest.mark.parametrize(("n", "k", "block"), [(8, 32, 16), (7, 33, 64), (16, 64, 256)])
@pytest.mark.parametrize(("kind", "dtype"), [(0, np.float32), (0, np.float16), (1, np.float32)])
def test_weights_of_4_bit_floats(kind: int, n: int, k: int, block: int, dtype: Any) -> None:
    count = -(-n * k // 2)
    inputs = {
        "a": normal(3, k).astype(dtype),
        "w": codes(np.uint8, count),
        "m": np.abs(normal(-(-n * k // block))).astype(dtype),
    }
    if n * k % 2 or dtype == np.float16:  # onnxruntime's CPU provider takes whole bytes, and float32
        if kind:
            return
        half = [0, 1 / 192, 2 / 3, 1, 1 / 3, 1 / 2, 1 / 6, 1 / 4]
        table = np.array([*half, *(-v for v in half)])

        def expected(a: Array, w: Array, m: Array) -> Array:
            flat = table[np.stack([w >> 4, w & 15], -1).ravel()[: n * k]] * np.repeat(m, block)[: n * k]
            return a @ flat.reshape(n, k).T

        loose = 2e-2 if dtype == np.float16 else 1e-5
        against(expected, "MatMulBnb4", inputs, K=k, N=n, block_size=block, quant_type=kind, atol=loose)
    else:
        check("MatMulBnb4", inputs, constants=["w", "m"], K=k, N=n, block_size=block, quant_type=kind, **MS)
