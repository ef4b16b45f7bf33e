"""Operators on int8 matrices in cuBLASLt's orders, against numpy: ONNX Runtime's CPU provider has no kernels for them."""

from __future__ import annotations

from collections.abc import Mapping
from math import erf
from typing import Any

import numpy as np
import pytest

from tests.ops.cases import Array, model_of, on_vulkan
from vkep.errors import InvalidModelError, UnsupportedModelError

pytestmark = pytest.mark.usefixtures("vulkan")
RNG = np.random.default_rng(59)
COL, ROW = 0, 1


def _place(order: int, rows: int, columns: int, r: int, c: int) -> int:
    """The place of an element of a matrix, by the formulas of cuBLAS's documentation."""
    if order == COL:
        return c * rows + r
    if order == ROW:
        return r * columns + c
    if order == 2:  # COL32
        return c // 32 * 32 * rows + r * 32 + c % 32
    high = 8 if order == 3 else 32
    tile = (c // 32 * (rows // high) + r // high) * high * 32
    if order == 3:  # COL4_4R2_8C
        return tile + r % 2 * 128 + c % 32 // 4 * 16 + r % 8 // 2 * 4 + c % 4
    row = r % 32  # COL32_2R_4R4
    return tile + ((row % 8 // 2 * 4 + row // 8) * 2 + row % 2) * 32 + c % 32


def _ordered(x: Array, order: int) -> Array:
    rows, columns = x.shape[-2:]
    places = np.array([[_place(order, rows, columns, r, c) for c in range(columns)] for r in range(rows)])
    made = np.empty_like(x).reshape(-1, rows * columns)
    made[:, places.ravel()] = x.reshape(-1, rows * columns)
    return made.reshape(x.shape)


def _q(values: Array) -> Array:
    return np.clip(np.rint(values), -128, 127).astype(np.int8)


def _codes(*shape: int) -> Array:
    return RNG.integers(-128, 128, shape).astype(np.int8)


def _scale(value: float) -> Array:
    return np.array(value, np.float32)


def _run(op_type: str, inputs: Mapping[str, Array | None], **attributes: Any) -> Array:
    model = model_of(op_type, inputs, domain="com.microsoft", opset=21, **attributes)
    return on_vulkan(model, {name: value for name, value in inputs.items() if value is not None})[0]


def _rounded(got: Array, real: Array, error: float = 0.001) -> None:
    """Real numbers, known up to an error, rounded to the nearest byte."""
    assert got.dtype == np.int8
    assert got.shape == real.shape
    np.testing.assert_allclose(got.astype(float), np.clip(real, -128, 127), rtol=0, atol=0.5 + error)


@pytest.mark.parametrize("order", range(5))
def test_orders(order: int) -> None:
    scale = _scale(0.5)
    shape = (2, 32, 64) if order > 2 else (2, 5, 64)
    x = (RNG.standard_normal(shape) * 30).astype(np.float16 if order % 2 else np.float32)
    got = _run("QuantizeWithOrder", {"x": x, "scale": scale}, order_input=ROW, order_output=order)
    np.testing.assert_array_equal(got, _ordered(_q(x.astype(np.float32) / scale), order))
    codes = _codes(*shape)
    for to, dtype in ((1, np.float32), (10, np.float16)):
        inputs = {"x": _ordered(codes, order), "scale": scale}
        back = _run("DequantizeWithOrder", inputs, order_input=order, order_output=ROW, to=to)
        assert back.dtype == dtype
        np.testing.assert_array_equal(back, codes * dtype(0.5))


def test_what_is_refused() -> None:
    x, scale = np.zeros((5, 33), np.float32), _scale(1)
    with pytest.raises(InvalidModelError, match="33 columns, expected a multiple of 32"):
        _run("QuantizeWithOrder", {"x": x, "scale": scale}, order_input=ROW, order_output=2)
    with pytest.raises(InvalidModelError, match="the order of a matrix is 5"):
        _run("QuantizeWithOrder", {"x": x, "scale": scale}, order_input=ROW, order_output=5)
    inputs = {"a": _codes(2, 32), "as": scale, "b": _codes(32, 8), "bs": scale, "ys": scale}
    with pytest.raises(UnsupportedModelError, match="order_A is 2; the kernels take 1"):
        _run("QOrderedMatMul", inputs, order_A=2, order_B=3, order_Y=2)


def test_elements_and_rows() -> None:
    x, scale, y_scale = _codes(3, 5, 16), _scale(1 / 32), _scale(1 / 64)
    real = x * np.float64(scale)
    got = _run("QOrderedGelu", {"x": x, "scale": scale, "y_scale": y_scale}, order_X=2, order_Y=2)
    _rounded(got, real * 0.5 * (1 + np.vectorize(erf)(real / np.sqrt(2))) / y_scale)
    for dtype in (np.float32, np.float16):
        gamma, beta = (RNG.standard_normal((2, 16)) + 1).astype(dtype)
        inputs = {"x": x, "scale": scale, "gamma": gamma, "beta": beta, "y_scale": _scale(1 / 30)}
        got = _run("QOrderedLayerNormalization", inputs, epsilon=1e-5)
        normal = (real - real.mean(-1, keepdims=True)) / np.sqrt(real.var(-1, keepdims=True) + 1e-5)
        _rounded(got, (normal * gamma + beta) * 30)


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("batches", [(), (2, 1), (2, 2)])
def test_products(several: bool, batches: tuple[int, ...]) -> None:
    m, n, k = 4, 6, 32
    a, y = _codes(*batches[:1], m, k), _codes(*batches[1:], k, n)
    factor = np.linspace(0.01, 0.02, n, dtype=np.float32) if several else _scale(0.015)
    c, bias = _codes(*batches[1:], m, n), RNG.standard_normal(n).astype(np.float32) * 20
    inputs = {
        "a": a, "as": _scale(0.02), "b": _ordered(y, COL), "bs": factor, "ys": _scale(0.3),
        "bias": bias if several else None, "c": c, "cs": _scale(0.2),
    }  # fmt: skip
    got = _run("QOrderedMatMul", inputs, order_A=ROW, order_B=COL, order_Y=ROW)
    product = a.astype(np.int32) @ y.astype(np.int32)
    _rounded(got, (product * (0.02 * factor) + (bias if several else 0) + c * 0.2) / 0.3)


def test_attention() -> None:
    batch, length, hidden, heads = 2, 5, 32, 2
    x, weights = _codes(batch, length, hidden), [_codes(hidden, hidden) for _ in range(3)]
    biases = [RNG.standard_normal(hidden).astype(np.float32) for _ in range(3)]
    mask = np.array([[1, 1, 1, 0, 0], [1, 0, 1, 1, 1]], np.int32)
    s, sw, of_scores, of_shares, of_y = 1 / 64, 1 / 64, 1 / 8, 1 / 127, 1 / 16
    inputs = {
        "x": x, "s": _scale(s), **{f"s{n}": _scale(1 / 16) for n in "qkv"},
        **{f"w{n}": _ordered(w, COL) for n, w in zip("qkv", weights, strict=True)}, **{f"sw{n}": _scale(sw) for n in "qkv"},
        **{f"b{n}": b for n, b in zip("qkv", biases, strict=True)},
        "qk": _scale(of_scores), "p": _scale(of_shares), "ys": _scale(of_y), "mask": mask,
    }  # fmt: skip
    attributes = {"num_heads": heads, "order_input": ROW, "order_weight": COL, "order_output": ROW}
    got = _run("QOrderedAttention", inputs, qkv_hidden_sizes=[hidden] * 3, **attributes)
    parts = [_q((x.astype(int) @ w.astype(int) * s * sw + b) * 16) for w, b in zip(weights, biases, strict=True)]
    q, k, v = (p.astype(int).reshape(batch, length, heads, -1).transpose(0, 2, 1, 3) for p in parts)
    scores = _q(q @ k.transpose(0, 1, 3, 2) / 256 / of_scores)
    raised = np.exp(scores * of_scores / 4.0) * mask[:, None, None]
    shares = _q(raised / raised.sum(-1, keepdims=True) / of_shares).astype(int)
    real = (shares @ v * of_shares / 16 / of_y).transpose(0, 2, 1, 3).reshape(batch, length, hidden)
    _rounded(got, real)


def test_longformer_attention() -> None:
    length, hidden, heads, window = 12, 16, 2, 2
    x, flags = _codes(1, length, hidden), np.zeros((1, length), np.int32)
    flags[0, 3] = 1
    mask = np.where(np.arange(length) > 9, -1, 0).astype(np.float16)[None]
    weights = [_codes(hidden, 3 * hidden) for _ in range(2)]
    biases = [RNG.standard_normal(3 * hidden).astype(np.float32) for _ in range(2)]
    one, s = _scale(1), _scale(1 / 128)
    inputs = {
        "x": x, "s": s, "w": _ordered(weights[0], COL), "ws": s, "b": biases[0], "bs": one, "qkv": _scale(1 / 32),
        "mask": mask, "gw": _ordered(weights[1], COL), "gws": s, "gb": biases[1], "gs": _scale(1 / 32), "flags": flags,
        "ys": _scale(1 / 64),
    }  # fmt: skip
    orders = {"order_input": ROW, "order_output": ROW, "order_weight": COL, "order_global_weight": COL}
    got = _run("QOrderedLongformerAttention", inputs, num_heads=heads, window=window, **orders)
    wanted = np.zeros((length, hidden))
    at = np.arange(length)
    near, kept = np.abs(at[:, None] - at) <= window, mask[0] >= 0
    for rows, weight, bias in zip((flags[0] == 0, flags[0] == 1), weights, biases, strict=True):
        whole = _q(x[0].astype(int) @ weight.astype(int) / 128**2 * 32 + bias) / 32
        q, k, v = whole.reshape(length, 3, heads, -1).transpose(1, 2, 0, 3)
        seen = kept if weight is weights[1] else (near | (flags[0] == 1)) & kept
        raised = np.exp(q @ k.transpose(0, 2, 1) / np.sqrt(hidden / heads)) * seen
        made = (raised / raised.sum(-1, keepdims=True) @ v).transpose(1, 0, 2).reshape(length, hidden)
        wanted[rows] = made[rows]
    _rounded(got, np.where(kept[:, None], wanted, 0)[None] * 64, error=0.1)  # as its mask, it computes in float16
