"""Norms and softmax of com.microsoft, and ONNX's first ones, against onnxruntime or numpy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tests.ops.cases import Array, assert_like, by_reference, check, model_of, on_vulkan
from tests.ops.microsoft import LOOSE, MS, RNG, Inputs, against, normal, silu
from vkep.errors import VkepError
from vkep.ops import normalization

pytestmark = pytest.mark.usefixtures("vulkan")


@pytest.mark.parametrize("beta", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("outputs", [("y",), ("y", "", "", "sum")])
def test_skip_layer_norm(beta: bool, bias: bool, outputs: tuple[str, ...]) -> None:
    inputs: dict[str, Array | None] = {"x": normal(2, 5, 16), "s": normal(2, 5, 16), "g": normal(16)}
    inputs |= {"b": normal(16) if beta else None, "c": normal(16) if bias else None}
    check("SkipLayerNormalization", inputs, outputs=outputs, atol=1e-4, epsilon=1e-5, **MS)


@pytest.mark.parametrize("bias", [True, False])
def test_skip_rms_norm(bias: bool) -> None:
    inputs = {"x": normal(2, 5, 16), "s": normal(2, 5, 16), "g": normal(16), "b": normal(16) if bias else None}
    check("SkipSimplifiedLayerNormalization", inputs, outputs=("y", "", "", "sum"), atol=1e-4, epsilon=1e-6, **MS)


def test_rms_norm() -> None:
    inputs = {"x": normal(2, 5, 16), "g": normal(16)}
    check("SimplifiedLayerNormalization", inputs, against="onnxruntime", opset=21, atol=1e-4, epsilon=1e-6)


@pytest.mark.parametrize("op_type", ["SimplifiedLayerNormalization", "LayerNormalization"])
@pytest.mark.parametrize("dtypes", [("float16", "float32"), ("float32", "float16")])
def test_the_norms_of_two_types_give_the_scales(op_type: str, dtypes: tuple[str, str]) -> None:
    """As ONNX Runtime's own operators before those of ONNX have it."""
    inputs = {"x": normal(2, 5, 16).astype(dtypes[0]), "g": normal(16).astype(dtypes[1])}
    check(op_type, inputs, against="onnxruntime", opset=12, atol=4e-3, epsilon=1e-5)


@pytest.mark.parametrize(("inner", "shape"), [(1, (2, 1, 1, 6)), (0, (1, 3, 5, 6)), (1, (2, 3, 5, 6)), (0, (5, 6))])
def test_bias_softmax(inner: int, shape: tuple[int, ...]) -> None:
    def expected(x: Array, c: Array) -> Array:
        total = x + c
        e = np.exp(total - total.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)

    against(expected, "BiasSoftmax", {"x": normal(2, 3, 5, 6), "c": normal(*shape)}, axis=3, is_inner_broadcast=inner)


def test_bias_softmax_of_a_bias_that_does_not_fit() -> None:
    inputs = {"x": normal(2, 3, 6), "c": normal(4, 6)}
    with pytest.raises(VkepError, match=r"a bias of shape \[4, 6\]"):
        on_vulkan(model_of("BiasSoftmax", inputs, domain="com.microsoft", axis=2, is_inner_broadcast=0), inputs)


@pytest.mark.parametrize("dtype", LOOSE)
@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("activation", [0, 1])
def test_group_norm(dtype: Any, last: int, activation: int) -> None:
    shape = (2, 5, 3, 8) if last else (2, 8, 5, 3)

    def expected(x: Array, g: Array, o: Array, s: Array | float = 0.0, c: Array | float = 0.0) -> list[Array]:
        x = np.moveaxis(x, -1, 1) if last else x
        s = np.asarray(s)
        s = np.moveaxis(s, -1, 1) if last and s.ndim == 4 else s.reshape(2, 8, 1, 1) if s.ndim == 2 else s
        total = x + s + np.reshape(c, (-1, 1, 1))
        rows = total.reshape(2, 4, -1)
        made = ((rows - rows.mean(-1, keepdims=True)) / np.sqrt(rows.var(-1, keepdims=True) + 1e-3)).reshape(x.shape)
        made = made * g.reshape(-1, 1, 1) + o.reshape(-1, 1, 1)
        made = silu(made) if activation else made
        return [np.moveaxis(t, 1, -1) if last else t for t in (made, total)]

    inputs: Inputs = {"x": normal(*shape, dtype=dtype), "g": normal(8), "o": normal(8)}
    rest: dict[str, Any] = {
        "groups": 4,
        "channels_last": last,
        "activation": activation,
        "epsilon": 1e-3,
        "atol": LOOSE[dtype],
    }
    against(lambda **v: expected(**v)[0], "GroupNorm", inputs, **rest)
    for skip in (shape, (2, 8)):
        more = inputs | {"s": normal(*skip, dtype=dtype), "c": normal(8, dtype=dtype)}
        against(expected, "SkipGroupNorm", more, outputs=("y", "sum"), **rest)


@pytest.mark.parametrize(
    ("shape", "branches", "scale"), [((3, 2, 8), 0, (2, 8)), ((3, 16), 2, (16,)), ((3, 16), 4, (4,)), ((5, 8), 2, None)]
)
def test_branchwise_rms_norm(shape: tuple[int, ...], branches: int, scale: tuple[int, ...] | None) -> None:
    inputs: Inputs = {"x": normal(*shape), "s": None if scale is None else normal(*scale)}
    rest: dict[str, Any] = {"num_branches": branches} if branches else {}
    check("BranchwiseRMSNorm", inputs, epsilon=1e-4, **rest, **MS)


@pytest.mark.parametrize("activation", ["silu", "sigmoid"])
def test_gated_rms_norm(activation: str) -> None:
    inputs = {"x": normal(2, 3, 12), "s": normal(4), "g": normal(2, 3, 12)}
    check("GatedRMSNorm", inputs, activation=activation, epsilon=1e-4, **MS)


@pytest.mark.parametrize("across", [0, 1, 8])
@pytest.mark.parametrize("variance", [0, 1, -1])
def test_the_first_normalization_of_mean_and_variance(across: int, variance: int) -> None:
    attributes: dict[str, Any] = {
        "across_channels": across,
        "normalize_variance": variance,
        "against": "onnxruntime",
        "opset": 8,
    }
    check("MeanVarianceNormalization", {"x": normal(2, 3, 4, 5)}, **attributes)


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-12), (np.float32, 1e-6), (np.float16, 1e-3)])
def test_lp_normalization(p: int, dtype: Any, tolerance: float) -> None:
    x = RNG.normal(0, 1, (3, 400, 5)).astype(dtype)
    x[1] = 0
    x[0] = 400 if p == 1 else 4000  # whose sum is beyond float16
    norm = np.linalg.norm(x.astype(np.float64), p, axis=1, keepdims=True)
    got = on_vulkan(model_of("LpNormalization", {"x": x}, axis=1, p=p), {"x": x})
    assert_like(got, [(x / np.where(norm == 0, 1, norm)).astype(dtype)], tolerance, tolerance)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize(
    ("op_type", "shape", "attributes"),
    [
        ("InstanceNormalization", (2, 3, 40, 9), {}),
        ("InstanceNormalization", (1, 4, 1001), {}),
        ("GroupNormalization", (2, 12, 5, 7), {"num_groups": 4}),
        ("GroupNormalization", (1, 6, 300), {"num_groups": 2, "epsilon": 0.1}),
        ("LayerNormalization", (2, 3, 130), {"axis": -2}),
        ("RMSNormalization", (2, 515), {"axis": -1}),
    ],
    ids=str,
)
def test_norms_of_few_long_rows(
    monkeypatch: pytest.MonkeyPatch, op_type: str, shape: tuple[int, ...], attributes: dict[str, Any], dtype: type
) -> None:
    """As on a GPU: their statistics first, then an operation on each element, which others may join."""
    asked: list[tuple[int, int]] = []

    def gains(rows: int, axis: int, *_: object) -> bool:
        asked.append((rows, axis))
        return True

    monkeypatch.setattr(normalization, "gains_by_moments", gains)
    monkeypatch.setattr(normalization, "gains_by_factors", gains)
    rng = np.random.default_rng(5)
    row = shape[1:2] if op_type.startswith(("Instance", "Group")) else shape[attributes["axis"] :]
    values = {"x": rng.normal(3, 2, shape), "scale": rng.normal(1, 0.3, row), "bias": rng.normal(0, 1, row)}
    if op_type == "RMSNormalization":
        del values["bias"]
    given: dict[str, Any] = {name: value.astype(dtype) for name, value in values.items()}
    got = on_vulkan(model_of(op_type, given, **attributes), given)
    assert math.prod(asked[0]) == math.prod(shape)
    wide = {name: value.astype(np.float32) for name, value in given.items()}
    tolerance = 1e-5 if dtype is np.float32 else 4e-3
    expected = by_reference(model_of(op_type, wide, **attributes), wide)
    assert_like([y.astype(np.float32) for y in got], expected, tolerance, tolerance)
