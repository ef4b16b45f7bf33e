"""Activations, their biases, and gates of com.microsoft, against onnxruntime or numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ops.cases import Array, check
from tests.ops.microsoft import LOOSE, MS, Inputs, against, gelu, normal, sigmoid

pytestmark = pytest.mark.usefixtures("vulkan")


@pytest.mark.parametrize("op_type", ["Gelu", "FastGelu", "QuickGelu"])
def test_activations(op_type: str) -> None:
    check(op_type, {"x": 3 * normal(4, 33)}, atol=1e-4, **MS)


@pytest.mark.parametrize("op_type", ["BiasGelu", "FastGelu"])
def test_biased_activations(op_type: str) -> None:
    check(op_type, {"x": normal(2, 5, 16), "b": normal(16)}, atol=1e-4, **MS)


@pytest.mark.parametrize("dtype", LOOSE)
def test_sums(dtype: Any) -> None:
    x, c = normal(2, 5, 8, dtype=dtype), normal(8, dtype=dtype)
    against(lambda x, c, s: x + c + s, "BiasAdd", {"x": x, "c": c, "s": x[::-1].copy()}, atol=LOOSE[dtype])
    split = lambda x, c: (x + c)[..., :4] * gelu((x + c)[..., 4:])  # noqa: E731
    against(split, "BiasSplitGelu", {"x": x, "c": c}, atol=LOOSE[dtype])


@pytest.mark.parametrize("scale", [None, 1.7])
def test_scaled_silu(scale: float | None) -> None:
    inputs: Inputs = {"x": normal(3, 7), "s": None if scale is None else np.array(scale, np.float32)}
    check("ScaledSiLU", inputs, alpha=0.6, **MS)


@pytest.mark.parametrize("limit", [0.0, 0.7])
@pytest.mark.parametrize("apart", [True, False])
def test_swiglu(limit: float, apart: bool) -> None:
    def expected(g: Array, u: Array | None = None) -> Array:
        g, u = (g, u) if u is not None else np.split(g, 2, -1)
        if limit:
            g, u = np.minimum(g, limit), np.clip(u, -limit, limit)
        return g * sigmoid(1.702 * g) * (u + 1)

    inputs: Inputs = {"g": normal(3, 8), "u": normal(3, 8)} if apart else {"g": normal(3, 16)}
    against(expected, "SwiGLU", inputs, activation_alpha=1.702, activation_beta=1.0, limit=limit)


def test_gates() -> None:
    check("GatedAdd", {"x": normal(2, 3, 5), "v": normal(2, 3, 5), "g": normal(2, 3, 1)}, **MS)
    inputs: Inputs = {"a": 3 * normal(2, 4, 3), "t": normal(3), "s": -(normal(3) ** 2), "b": normal(2, 4, 3)}
    check("LinearAttentionGate", inputs, outputs=("decay", "beta"), **MS)


@pytest.mark.parametrize("normed", [True, False])
def test_engram_gate(normed: bool) -> None:
    inputs: Inputs = {
        "k": normal(2, 4, 3, 8),
        "q": normal(2, 4, 3, 8),
        "v": normal(2, 4, 8),
        "ks": normal(3, 8),
        "qs": normal(3, 8),
    }
    inputs["c"] = normal(3, 8) if normed else None
    check("EngramGate", inputs, outputs=("y", "z") if normed else ("y",), epsilon=1e-4, **MS)
