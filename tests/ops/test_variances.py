"""Norms and other operators of many elements in every floating-point type, against float64: data whose squares overflow float16,
data far from 0, whose variance is lost in E[x**2] - E[x]**2, and function bodies, which have neither kernel nor wide sums."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from ml_dtypes import finfo

from tests.ops.cases import Array, model_of, on_vulkan
from tests.ops.special_values import FLOATS

pytestmark = pytest.mark.usefixtures("vulkan")
SHAPE = (2, 6, 8, 8)
MICROSOFT = "com.microsoft"


def _normal(x: Array, axes: tuple[int, ...], epsilon: float = 1e-5) -> Array:
    apart = x - x.mean(axes, keepdims=True)
    return np.asarray(apart / np.sqrt((apart * apart).mean(axes, keepdims=True) + epsilon))


def _grouped(x: Array) -> Array:
    return _normal(x.reshape(2, 3, -1), (2,)).reshape(x.shape)


def _mean_variance(x: Array, axes: tuple[int, ...] = (0, 2, 3)) -> Array:
    return np.asarray((x - x.mean(axes, keepdims=True)) / (x.std(axes, keepdims=True) + 1e-9))


def _rms(x: Array) -> Array:
    return np.asarray(x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5))


#: operator: opset, attributes, further inputs (ones and zeros, by shape), and the exact first result
NORMS: dict[str, tuple[str, int, dict[str, Any], list[tuple[int, ...]], Callable[[Array], Array]]] = {
    "mean and variance 9": ("MeanVarianceNormalization", 9, {}, [], _mean_variance),
    "mean and variance 13": (
        "MeanVarianceNormalization",
        13,
        {"axes": [1, -1]},
        [],
        lambda x: _mean_variance(x, (1, 3)),
    ),
    "group": ("GroupNormalization", 21, {"num_groups": 3}, [(6,), (6,)], _grouped),
    "instance": ("InstanceNormalization", 22, {}, [(6,), (6,)], lambda x: _normal(x, (2, 3))),
    "layer": ("LayerNormalization", 17, {"axis": 2}, [(8, 8), (8, 8)], lambda x: _normal(x, (2, 3))),
    "layer, float64": (
        "LayerNormalization",
        17,
        {"axis": -1, "stash_type": 11},
        [(8,), (8,)],
        lambda x: _normal(x, (3,)),
    ),
    "batch": (
        "BatchNormalization",
        15,
        {"training_mode": 1},
        [(6,), (6,), (6,), (6,)],
        lambda x: _normal(x, (0, 2, 3)),
    ),
    "rms": ("RMSNormalization", 23, {}, [(8,)], _rms),
    "lp": ("LpNormalization", 22, {"axis": -1}, [], lambda x: x / np.sqrt((x * x).sum(-1, keepdims=True))),
}


def _factors(shapes: list[tuple[int, ...]], dtype: Any) -> dict[str, Array]:
    return {f"p{k}": np.full(shape, (k + 1) % 2, dtype) for k, shape in enumerate(shapes)}


@pytest.mark.parametrize("data", ["large", "far from 0"])
@pytest.mark.parametrize("kind", FLOATS)
@pytest.mark.parametrize("norm", NORMS)
def test_norms_as_in_float64(norm: str, kind: str, data: str) -> None:
    op_type, opset, attributes, shapes, exact = NORMS[norm]
    drawn = np.random.default_rng(5).standard_normal(SHAPE)
    far = 100.0 if kind == "bfloat16" else 1000.0
    dtype = FLOATS[kind]
    x = (drawn * 300 if data == "large" else drawn * 4 + far).astype(dtype)
    values = {"x": x, **_factors(shapes, dtype)}
    outputs = ("out", "", "") if op_type == "BatchNormalization" else ("out",)
    got = on_vulkan(model_of(op_type, values, outputs=outputs, opset=opset, **attributes), values)[0]
    assert got.dtype == dtype
    eps = float(finfo(dtype).eps)
    # the mean of numbers near 1000 is rounded to float32
    error = {"float32": 3e-4, "float64": 1e-10}.get(kind, 3e-4 + 2 * eps)
    np.testing.assert_allclose(got.astype(np.float64), exact(x.astype(np.float64)), error, error)


@pytest.mark.parametrize("kind", FLOATS)
@pytest.mark.parametrize("op_type", ["SkipLayerNormalization", "SkipSimplifiedLayerNormalization", "GroupNorm"])
def test_norms_of_onnxruntime(op_type: str, kind: str) -> None:
    if kind in ("float64", "bfloat16"):
        pytest.skip("no type of the operator")
    drawn = np.random.default_rng(6).standard_normal((2, 8, 32))
    x = (drawn * 300).astype(FLOATS[kind])
    if op_type == "GroupNorm":  # channels last
        values = {"x": x.reshape(2, 4, 2, 32), "gamma": np.ones(32, np.float32), "beta": np.zeros(32, np.float32)}
        attributes: dict[str, Any] = {"groups": 4, "activation": 0, "epsilon": 1e-5, "channels_last": 1}
        wide = values["x"].astype(np.float64).reshape(2, 8, 4, 8)
        exact = _normal(wide, (1, 3)).reshape(values["x"].shape)
    else:
        values = {"x": x, "skip": x.copy(), "gamma": np.ones(32, x.dtype)}
        attributes = {"epsilon": 1e-5}
        total = 2 * x.astype(np.float64)
        exact = _normal(total, (-1,)) if op_type == "SkipLayerNormalization" else _rms(total)
    got = on_vulkan(model_of(op_type, values, outputs=("out",), domain=MICROSOFT, **attributes), values)[0]
    eps = float(finfo(x.dtype).eps)
    np.testing.assert_allclose(got.astype(np.float64), exact, 2 * eps + 1e-5, 2 * eps + 1e-5)


def test_statistics_have_the_type_of_the_stash() -> None:
    x = np.random.default_rng(7).standard_normal((3, 40)) + 500
    for kind, stash, tolerance in (
        ("float64", 11, 1e-12),
        ("float32", 11, 1e-12),
        ("float32", 1, 1e-4),
        ("float64", 1, 1e-6),
    ):
        values = {"x": x.astype(FLOATS[kind]), "scale": np.ones(40, FLOATS[kind])}
        model = model_of("LayerNormalization", values, outputs=("y", "mean", "factor"), opset=17, stash_type=stash)
        _, mean, factor = on_vulkan(model, values)
        assert mean.dtype == factor.dtype == (np.float64 if stash == 11 else np.float32)
        wide = values["x"].astype(np.float64)
        np.testing.assert_allclose(mean[:, 0], wide.mean(1), tolerance)
        np.testing.assert_allclose(factor[:, 0], 1 / np.sqrt(wide.var(1) + 1e-5), max(tolerance, 1e-12))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("op_type", ["NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"])
@pytest.mark.parametrize("kind", FLOATS)
def test_losses_of_more_elements_than_float16_can_count(kind: str, op_type: str, reduction: str) -> None:
    """Function bodies: the weights of 70,000 elements have a sum of 140,000, beyond float16."""
    rng = np.random.default_rng(8)
    x = (-0.01 * rng.random((70_000, 3))).astype(FLOATS[kind])
    values = {"x": x, "t": rng.integers(0, 3, 70_000), "w": np.array([1, 2, 3]).astype(FLOATS[kind])}
    got = on_vulkan(model_of(op_type, values, outputs=("out",), opset=22, reduction=reduction), values)[0]
    wide, weights = x.astype(np.float64), np.array([1, 2, 3])[values["t"]]
    if op_type == "SoftmaxCrossEntropyLoss":
        wide = wide - np.log(np.exp(wide).sum(1, keepdims=True))
    loss = -wide[np.arange(70_000), values["t"]] * weights
    exact = {"none": loss, "sum": loss.sum(), "mean": loss.sum() / weights.sum()}[reduction]
    assert got.dtype == FLOATS[kind]
    with np.errstate(over="ignore"):
        wanted = np.asarray(exact).astype(FLOATS[kind]).astype(np.float64)
    np.testing.assert_allclose(got.astype(np.float64), wanted, 2 * float(finfo(x.dtype).eps) + 1e-5)
