"""Recurrences of com.microsoft against onnxruntime's CPU provider."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ops.cases import Array, by_onnxruntime, check, model_of, on_vulkan
from vkep.errors import VkepError

pytestmark = pytest.mark.usefixtures("vulkan")
RNG = np.random.default_rng(41)
MS: dict[str, Any] = {"domain": "com.microsoft", "against": "onnxruntime", "opset": 21}


def normal(*shape: int) -> Array:
    return RNG.normal(0, 0.5, shape).astype(np.float32)


def _inputs(steps: int, heads: tuple[int, int], rule: str, per_row: bool, shared: bool, past: bool) -> dict[str, Any]:
    (q, kv), size, wide = heads, 6, 5
    return {
        "q": normal(2, steps, q * size), "k": normal(2, steps, kv * size), "v": normal(2, steps, kv * wide),
        "s": normal(2, kv, size, wide) if past else None,
        "g": -np.abs(normal(2, steps, kv * size if per_row else kv)) if "gated" in rule else None,
        "b": np.abs(normal(2, steps, 1 if shared else kv)) if "delta" in rule else None,
    }  # fmt: skip


@pytest.mark.parametrize("rule", ["linear", "gated", "delta", "gated_delta"])
@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (2, 4)])
@pytest.mark.parametrize(
    ("steps", "past", "per_row", "shared"), [(7, True, False, False), (1, True, True, True), (5, False, True, False)]
)
def test_linear_attention(
    rule: str, heads: tuple[int, int], steps: int, past: bool, per_row: bool, shared: bool
) -> None:
    inputs = _inputs(steps, heads, rule, per_row, shared, past)
    attributes: dict[str, Any] = {"q_num_heads": heads[0], "kv_num_heads": heads[1], "update_rule": rule}
    check("LinearAttention", inputs, outputs=("y", "next"), rtol=1e-4, atol=1e-5, **attributes, **MS)


def test_linear_attention_in_float16() -> None:
    wide = _inputs(4, (4, 2), "gated_delta", False, False, True)
    half = {n: v.astype(np.float16) for n, v in wide.items()}
    rest: dict[str, Any] = {
        "outputs": ("y", "next"),
        "domain": "com.microsoft",
        "opset": 21,
        "q_num_heads": 4,
        "kv_num_heads": 2,
    }
    got = on_vulkan(model_of("LinearAttention", half, **rest), half)
    rounded = {n: v.astype(np.float32) for n, v in half.items()}
    for one, other in zip(got, by_onnxruntime(model_of("LinearAttention", rounded, **rest), rounded), strict=True):
        assert one.dtype == np.float16
        np.testing.assert_allclose(one, other, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize(
    ("changes", "attributes", "told"),
    [
        ({"g": None}, {}, "decay is missing"),
        ({"b": normal(2, 3, 3)}, {}, r"beta has shape \[2, 3, 3\]"),
        ({"s": normal(2, 2, 5, 6)}, {}, r"past_state has shape"),
        ({}, {"kv_num_heads": 3}, "do not divide"),
        ({}, {"update_rule": "none"}, "update_rule is 'none'"),
    ],
)
def test_refused(changes: dict[str, Any], attributes: dict[str, Any], told: str) -> None:
    inputs = _inputs(3, (4, 2), "gated_delta", False, False, True) | changes
    rest: dict[str, Any] = {"q_num_heads": 4, "kv_num_heads": 2, **attributes}
    given = {n: v for n, v in inputs.items() if v is not None}
    with pytest.raises(VkepError, match=told):
        on_vulkan(model_of("LinearAttention", inputs, outputs=("y", "n"), domain="com.microsoft", **rest), given)


def _delta_inputs(tokens: int, heads: tuple[int, int], options: str) -> dict[str, Array | None]:
    """By letters: s(tarts), d(ecay a row), g(ate parameters), p(acked queries, keys and values)."""
    (q, v), size, wide = heads, 6, 5
    batch = 3 if "s" in options else 2
    keys, values = normal(tokens, q, size), normal(tokens, v, wide)
    keys /= np.linalg.norm(keys, axis=-1, keepdims=True)
    queries = normal(tokens, q, size)
    if "p" in options:
        queries = np.concatenate([t.reshape(tokens, -1) for t in (queries, keys, values)], -1)
    return {
        "q": queries,
        "k": None if "p" in options else keys,
        "v": None if "p" in options else values,
        "starts": np.array([0, 1, 5, tokens], np.int32) if "s" in options else None,
        "decay": -np.abs(normal(tokens, v, size) if "d" in options else normal(tokens, v)),
        "beta": np.abs(normal(tokens, v)),
        "first": normal(batch, v, wide, size),
        "a_log": normal(v) if "g" in options else None,
        "bias": normal(v) if "g" in options else None,
    }


@pytest.mark.parametrize("heads", [(2, 2), (2, 4)])
@pytest.mark.parametrize(
    ("options", "attributes"),
    [
        ("", {}),
        ("s", {"qk_l2_norm": 1}),
        ("dp", {"scale": 0.3}),
        ("sg", {"gate_activation": "softplus", "beta_activation": "sigmoid"}),
        ("dg", {"gate_activation": "sigmoid", "gate_lower_bound": -2.0}),
        ("", {"update_rule": "gated"}),
        ("", {"update_rule": "linear"}),
    ],
)
def test_gated_delta_net(heads: tuple[int, int], options: str, attributes: dict[str, Any]) -> None:
    inputs = _delta_inputs(8, heads, options)
    if attributes.get("update_rule") == "linear":
        inputs["decay"] = inputs["beta"] = None
    elif attributes.get("update_rule") == "gated":
        inputs["beta"] = None
    last = max(k for k, value in enumerate(inputs.values()) if value is not None)
    inputs = dict(list(inputs.items())[: last + 1])
    check("GatedDeltaNet", inputs, outputs=("y", "next"), rtol=1e-4, atol=1e-5, **attributes, **MS)
