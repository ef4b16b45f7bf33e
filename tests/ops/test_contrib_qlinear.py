"""Quantized convolutions, reductions, embeddings and products of small floats, against onnxruntime or numpy."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto

from tests.ops.cases import Array, check
from tests.ops.test_contrib_fused import against, gelu

pytestmark = pytest.mark.usefixtures("vulkan")
RNG = np.random.default_rng(37)
MS: dict[str, Any] = {"domain": "com.microsoft", "against": "onnxruntime", "opset": 21}


def normal(*shape: int) -> Array:
    return RNG.normal(0, 0.5, shape).astype(np.float32)


def codes(dtype: Any, *shape: int) -> Array:
    info = np.iinfo(dtype)
    return RNG.integers(info.min, info.max, shape, dtype=dtype, endpoint=True)


def scale(value: float) -> Array:
    return np.array(value, np.float32)


@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("columns", [True, False])
def test_convolution(last: int, columns: bool) -> None:
    shape, many = ((2, 6, 5, 4) if last else (2, 4, 6, 5)), (6,) if columns else ()
    inputs = {
        "x": codes(np.uint8, *shape), "xs": scale(0.02), "xz": np.array(120, np.uint8), "w": codes(np.int8, 6, 2, 3, 3),
        "ws": RNG.uniform(0.01, 0.02, many).astype(np.float32), "wz": np.zeros(many, np.int8), "ys": scale(0.3),
        "yz": np.array(128, np.uint8), "b": RNG.integers(-900, 900, 6).astype(np.int32),
    }  # fmt: skip
    constants = [n for n in inputs if n != "x"]
    check("QLinearConv", inputs, constants=constants, group=2, pads=[1, 0, 1, 1], channels_last=last, **MS)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_integers(dtype: Any) -> None:
    x, y = codes(dtype, 3, 4, 5), codes(dtype, 4, 1)
    zero = np.array(7, dtype)
    against(lambda x, z, v: (x.astype(int) - 7) * v.astype(int), "MulInteger", {"x": x, "z": zero, "v": y})
    for axes, keep in (([1], 1), ([0, 2], 0)):
        against(
            lambda x, axes=axes, keep=keep: x.astype(int).sum(tuple(axes), keepdims=bool(keep)), "ReduceSumInteger",
            {"x": x}, axes=axes, keepdims=keep,
        )  # fmt: skip

        def mean(x: Array, axes: Any = axes, keep: int = keep, **_: Array) -> Array:
            real = ((x.astype(int) - 7) * 0.1).mean(tuple(axes), keepdims=bool(keep))
            info = np.iinfo(dtype)
            return np.clip(np.round(real / 0.0473) + 9, info.min, info.max)

        inputs = {"x": x, "s": scale(0.1), "z": zero, "ys": scale(0.0473), "yz": np.array(9, dtype)}
        against(mean, "QLinearReduceMean", inputs, axes=axes, keepdims=keep, atol=1)


@pytest.mark.parametrize("segments", [True, False])
@pytest.mark.parametrize("masked", [True, False])
def test_embedding(segments: bool, masked: bool) -> None:
    inputs: dict[str, Array | None] = {
        "i": RNG.integers(0, 9, (2, 4)).astype(np.int32), "g": RNG.integers(0, 2, (2, 4)).astype(np.int32),
        "w": codes(np.uint8, 9, 8), "p": codes(np.uint8, 6, 8), "t": codes(np.uint8, 2, 8),
        "gamma": codes(np.uint8, 8), "beta": codes(np.uint8, 8),
        "m": np.array([[1, 1, 0, 0], [1, 1, 1, 0]], np.int32) if masked else None,
        "ws": scale(0.01), "ps": scale(0.02), "ts": scale(0.03), "gs": scale(0.01), "bs": scale(0.02),
        "wz": np.array(120, np.uint8), "pz": np.array(130, np.uint8), "tz": np.array(7, np.uint8),
        "gz": np.array(5, np.uint8), "bz": np.array(100, np.uint8),
    }  # fmt: skip
    if not segments:
        inputs |= dict.fromkeys(("g", "t", "ts", "tz"))
    constants = [n for n, v in inputs.items() if v is not None and n not in ("i", "g", "m")]
    check("QEmbedLayerNormalization", inputs, outputs=("y", "n"), constants=constants, epsilon=1e-5, atol=1e-4, **MS)


@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize(("n", "k", "block"), [(8, 32, 16), (7, 33, 64), (16, 64, 256)])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
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


@pytest.mark.parametrize("activation", ["NONE", "RELU", "GELU"])
def test_products_of_8_bit_floats(activation: str) -> None:
    x, y = normal(3, 16).astype(ml_dtypes.float8_e4m3fn), normal(5, 16).astype(ml_dtypes.float8_e5m2)
    c = normal(5)
    total = 0.5 * 2 * 3 * (x.astype(float) @ y.astype(float).T) + 0.25 * c
    made = {"NONE": total, "RELU": np.maximum(total, 0), "GELU": gelu(total)}[activation]
    inputs = {"x": x, "v": y, "c": c, "xs": scale(2), "vs": scale(3)}
    against(
        lambda **_: made,
        "GemmFloat8",
        inputs,
        alpha=0.5,
        beta=0.25,
        transB=1,
        activation=activation,
        dtype=TensorProto.FLOAT,
    )
