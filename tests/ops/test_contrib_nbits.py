"""Fused products by weights of few bits, against the nodes that they stand for in onnxruntime's CPU provider."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

from tests.ops.cases import Array, assert_like, by_onnxruntime, graph_of, model_of, on_vulkan

pytestmark = pytest.mark.usefixtures("vulkan")
RNG = np.random.default_rng(71)
K, BLOCK = 64, 32
MS = "com.microsoft"


def normal(*shape: int) -> Array:
    return RNG.normal(0, 1, shape).astype(np.float32)


def _weights(name: str, n: int, bias: bool) -> dict[str, Array | None]:
    return {
        f"{name}_w": RNG.integers(0, 256, (n, K // BLOCK, BLOCK // 2), dtype=np.uint8),
        f"{name}_s": RNG.uniform(0.01, 0.1, (n, K // BLOCK)).astype(np.float32),
        f"{name}_b": normal(n) if bias else None,
    }


def _product(x: str, name: str, n: int, bias: bool) -> Any:
    inputs = [x, f"{name}_w", f"{name}_s", "", "", f"{name}_b" if bias else ""]
    return helper.make_node("MatMulNBits", inputs, [name], domain=MS, K=K, N=n, bits=4, block_size=BLOCK)


def _norm(norm: str) -> list[Any]:
    if norm == "skip":
        names = ["normed", "", "", "sum"]
        return [
            helper.make_node("SkipSimplifiedLayerNormalization", ["x", "skip", "scale"], names, domain=MS, epsilon=1e-5)
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
        op_type, inputs, outputs=outputs, constants=constants, domain=MS, opset=21, K=K, bits=4, block_size=BLOCK,
        epsilon=1e-5, **rest,
    )  # fmt: skip
    apart = graph_of([*_norm(norm), *nodes], given, outputs, constants, 21, MS)
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
