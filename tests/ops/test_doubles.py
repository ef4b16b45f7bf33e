"""Functions in double precision against numpy, and scipy's error function by the mathematics of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.ops.cases import Array, check, model_of, on_vulkan

pytestmark = pytest.mark.usefixtures("vulkan")
RNG = np.random.default_rng(79)
EDGES = [0.0, -0.0, 1.0, -1.0, 1e-300, -1e-20, 0.5, 1e9, -1e9, np.inf, -np.inf, np.nan]
FUNCTIONS: dict[str, tuple[Callable[[Array], Array], float]] = {
    "Acos": (np.arccos, 1), "Acosh": (np.arccosh, 1e4), "Asin": (np.arcsin, 1), "Asinh": (np.arcsinh, 1e4),
    "Atan": (np.arctan, 1e3), "Atanh": (np.arctanh, 1), "Cos": (np.cos, 1e4), "Cosh": (np.cosh, 30), "Exp": (np.exp, 700),
    "Erf": (np.vectorize(math.erf), 7), "Log": (np.log, 1e3), "Sin": (np.sin, 1e4), "Sinh": (np.sinh, 30),
    "Sigmoid": (lambda x: 1 / (1 + np.exp(-x)), 50), "Tan": (np.tan, 1e4), "Tanh": (np.tanh, 20),
    "Softplus": (lambda x: np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))), 50),
    "Mish": (lambda x: x * np.tanh(np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))), 20),
    "Swish": (lambda x: x / (1 + np.exp(-x)), 20),
    "Gelu": (lambda x: 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))), 6),
}  # fmt: skip
#: where a zero that is not at 0 leaves the rounding of its argument
ATOL = {**dict.fromkeys(("Acos", "Acosh", "Log", "Sin", "Cos", "Tan"), 4e-16), "Gelu": 4e-15, "Mish": 4e-16}
ANGLES = ("Sin", "Cos", "Tan")


def _check(op_type: str, inputs: dict[str, Array], expected: Array, atol: float) -> None:
    [got] = on_vulkan(model_of(op_type, inputs, opset=24), inputs)
    assert got.dtype == np.float64
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(got, expected, rtol=4e-15, atol=atol)


@pytest.mark.parametrize("op_type", FUNCTIONS)
def test_of_one_input(op_type: str) -> None:
    function, reach = FUNCTIONS[op_type]
    x = np.concatenate([RNG.uniform(-reach, reach, 300), RNG.uniform(-1, 1, 200), RNG.normal(0, 1e-5, 50), EDGES])
    if op_type in ANGLES:
        x = x[~(np.abs(x) == 1e9)]
    if op_type in ("Gelu", "Mish", "Swish"):  # 0 times infinity
        x = x[np.isfinite(x) & (np.abs(x) < 1e9)]
    with np.errstate(all="ignore"):
        expected = function(x)
    _check(op_type, {"x": x}, expected, ATOL.get(op_type, 0.0))


def test_powers() -> None:
    x = np.concatenate([RNG.uniform(-5, 5, 300), RNG.uniform(0, 1, 100)])
    y = np.concatenate([RNG.integers(-9, 9, 300).astype(float), RNG.uniform(-5, 5, 100)])
    edges = np.array([0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5, 3.0, np.inf, -np.inf, np.nan])
    pairs = np.stack(np.meshgrid(edges, edges), -1).reshape(-1, 2)
    x, y = np.concatenate([x, pairs[:, 0]]), np.concatenate([y, pairs[:, 1]])
    with np.errstate(all="ignore"):
        expected = x**y
    inputs = {"x": x, "power": y}
    [got] = on_vulkan(model_of("Pow", inputs), inputs)
    np.testing.assert_allclose(np.abs(got), np.abs(expected), rtol=2e-14)
    kept = ~np.isnan(expected) & (expected != 0)
    np.testing.assert_array_equal(np.signbit(got[kept]), np.signbit(expected[kept]))


@pytest.mark.parametrize("op_type", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize(("opset", "axis"), [(11, 1), (13, 1), (13, -1)])
def test_softmax(op_type: str, opset: int, axis: int) -> None:
    inputs = {"x": RNG.normal(0, 30, (2, 5, 7))}
    axes = (1, 2) if opset < 13 else (axis,)  # before version 13 all axes from that on
    below = inputs["x"] - inputs["x"].max(axes, keepdims=True)
    total = np.exp(below).sum(axes, keepdims=True)
    expected = np.exp(below) / total if op_type == "Softmax" else below - np.log(total)
    [got] = on_vulkan(model_of(op_type, inputs, opset=opset, axis=axis), inputs)
    np.testing.assert_allclose(got, expected, rtol=1e-14, atol=1e-15)


@pytest.mark.parametrize("constant", [False, True])
def test_batch_norm(constant: bool) -> None:
    inputs = {"x": RNG.normal(0, 1, (2, 3, 4)), **{n: RNG.uniform(0.5, 2, 3) for n in ("s", "b", "m", "v")}}
    check("BatchNormalization", inputs, constants=list("sbmv") if constant else [], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_batch_norm_of_every_element(dtype: Any) -> None:
    """Before version 9 statistics may be those of an element."""
    inputs = {"x": RNG.normal(0, 1, (2, 3, 4)), **{n: RNG.uniform(0.5, 2, (3, 4)) for n in ("s", "b", "m", "v")}}
    inputs = {name: value.astype(dtype) for name, value in inputs.items()}
    x, s, b, m, v = inputs.values()
    [got] = on_vulkan(model_of("BatchNormalization", inputs, opset=7, spatial=0), inputs)
    np.testing.assert_allclose(got, (x - m) / np.sqrt(v + 1e-5) * s + b, rtol=1e-5, atol=1e-5)
