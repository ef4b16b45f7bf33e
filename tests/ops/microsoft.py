"""Calls of ONNX Runtime's operators, beside its CPU provider or, where that has none, numpy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tests.ops.cases import Array, assert_like, model_of, on_vulkan

RNG = np.random.default_rng(23)
Inputs = dict[str, Array | None]
MS: dict[str, Any] = {"domain": "com.microsoft", "against": "onnxruntime", "opset": 21}


def normal(*shape: int, dtype: Any = np.float32) -> Array:
    return RNG.normal(0, 1, shape).astype(dtype)


def codes(dtype: Any, *shape: int) -> Array:
    info = np.iinfo(dtype)
    return RNG.integers(info.min, info.max, shape, dtype=dtype, endpoint=True)


def scale(value: float) -> Array:
    return np.array(value, np.float32)


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def silu(x: Array) -> Array:
    return x * sigmoid(x)


def gelu(x: Array) -> Array:
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / np.sqrt(2)))


def against(
    expected: Callable[..., Any],
    op_type: str,
    inputs: Mapping[str, Array | None],
    *,
    outputs: tuple[str, ...] = ("y",),
    atol: float = 1e-5,
    **rest: Any,
) -> None:
    """Hold a node against numpy, in float64; ``expected`` gets the inputs by name."""
    model = model_of(op_type, inputs, outputs=outputs, domain="com.microsoft", opset=21, **rest)
    given = {name: value for name, value in inputs.items() if value is not None}
    got = on_vulkan(model, given)
    wide = {n: v.astype(np.float64) if v.dtype.kind == "f" else v for n, v in given.items()}
    wanted = expected(**wide)
    assert_like(
        got,
        [
            np.asarray(w).astype(g.dtype)
            for w, g in zip(wanted if isinstance(wanted, list) else [wanted], got, strict=True)
        ],
        atol=atol,
    )


LOOSE = {np.float32: 2e-5, np.float16: 2e-2}
