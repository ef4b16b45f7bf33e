"""Mixtures of experts against onnxruntime's CPU provider, and against numpy for what only other providers have."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ops.cases import Array, check, model_of, on_vulkan
from tests.ops.microsoft import against, sigmoid, silu
from vkep import InferenceSession
from vkep.errors import VkepError
from vkep.ops import mixture_of_experts

pytestmark = pytest.mark.usefixtures("vulkan")
RNG = np.random.default_rng(29)
MS: dict[str, Any] = {"domain": "com.microsoft", "against": "onnxruntime", "opset": 21}
#: tokens (few: the chosen experts are gathered), experts, experts a token
SIZES = [((2, 5), 4, 2), ((1, 2), 8, 3), ((3,), 2, 1), ((1, 1), 4, 4)]


def normal(*shape: int) -> Array:
    return RNG.normal(0, 0.5, shape).astype(np.float32)


def _inputs(tokens: tuple[int, ...], experts: int, wide: int = 1, inner: int = 32, hidden: int = 32) -> dict[str, Any]:
    return {
        "x": normal(*tokens, hidden), "r": 3 * normal(int(np.prod(tokens)), experts), "w1": normal(experts, wide * inner, hidden),
        "b1": normal(experts, wide * inner), "w2": normal(experts, hidden, inner), "b2": normal(experts, hidden),
    }  # fmt: skip


@pytest.mark.parametrize(("tokens", "experts", "k"), SIZES)
@pytest.mark.parametrize("activation", ["relu", "gelu", "silu", "identity", "swiglu"])
@pytest.mark.parametrize("normalize", [0, 1])
def test_experts(tokens: tuple[int, ...], experts: int, k: int, activation: str, normalize: int) -> None:
    gated = activation == "swiglu"
    rest: dict[str, Any] = (
        {"swiglu_fusion": 1, "activation_alpha": 1.7, "activation_beta": 1.0, "swiglu_limit": 1.5} if gated else {}
    )
    inputs = _inputs(tokens, experts, 1 + gated)
    attributes = {"k": k, "activation_type": activation, "normalize_routing_weights": normalize, **rest}
    check("MoE", inputs, rtol=1e-4, atol=1e-4, **attributes, **MS)


@pytest.mark.parametrize(("tokens", "experts", "k"), SIZES)
@pytest.mark.parametrize(
    ("fusion", "activation"), [(0, "swiglu"), (0, "silu"), (2, "swiglu")]
)  # only a gated one is fused
def test_a_third_matrix_or_two_halves(
    tokens: tuple[int, ...], experts: int, k: int, fusion: int, activation: str
) -> None:
    def expected(x: Array, r: Array, w1: Array, b1: Array, w2: Array, b2: Array, w3: Array | None = None) -> Array:
        rows = x.reshape(-1, x.shape[-1])
        scores = np.exp(r - r.max(1, keepdims=True))
        scores /= scores.sum(1, keepdims=True)
        out = np.zeros_like(rows)
        for i, row in enumerate(rows):
            for e in np.argsort(-scores[i])[:k]:
                gate = w1[e] @ row + b1[e]
                gate, up = (gate, w3[e] @ row) if w3 is not None else np.split(gate, 2)
                act = gate * sigmoid(1.3 * gate) * (up + 0.5) if activation == "swiglu" else silu(gate) * up
                out[i] += scores[i, e] * (w2[e] @ act + b2[e])
        return out.reshape(x.shape)

    inputs = _inputs(tokens, experts, 2 if fusion else 1)
    if not fusion:
        inputs["w3"] = normal(experts, 32, 32)
    rest: dict[str, Any] = {"activation_alpha": 1.3, "activation_beta": 0.5} if activation == "swiglu" else {}
    against(expected, "MoE", inputs, atol=1e-4, k=k, swiglu_fusion=fusion, activation_type=activation, **rest)


def _quantized(experts: int, n: int, k: int, bits: int, block: int, zeros: bool) -> tuple[Array, Array, Array | None]:
    blocks = k // block if block else 1
    weights = RNG.integers(0, 256, (experts, n, k * bits // 8), dtype=np.uint8)
    scales = RNG.uniform(0.032, 0.32, (experts, n, blocks) if block else (experts, n)).astype(np.float32) / np.float32(
        1 << bits
    )
    packed = (experts, n, -(-blocks * bits // 8)) if block else (experts, -(-n * bits // 8))
    return weights, scales, RNG.integers(0, 256, packed, dtype=np.uint8) if zeros else None


@pytest.mark.parametrize(("tokens", "experts", "k"), SIZES[:2])
@pytest.mark.parametrize(
    ("bits", "block", "zeros"), [(4, 0, False), (4, 32, False), (4, 32, True), (8, 0, False), (8, 32, True)]
)
@pytest.mark.parametrize("activation", ["silu", "swiglu"])
def test_quantized_experts(
    tokens: tuple[int, ...], experts: int, k: int, bits: int, block: int, zeros: bool, activation: str
) -> None:
    gated = activation == "swiglu"
    plain = _inputs(tokens, experts, 1 + gated, 64, 32)
    w1, s1, z1 = _quantized(experts, 64 * (1 + gated), 32, bits, block, zeros)
    w2, s2, z2 = _quantized(experts, 32, 64, bits, block, zeros)
    inputs: dict[str, Array | None] = {
        "x": plain["x"], "r": plain["r"], "w1": w1, "s1": s1, "b1": plain["b1"], "w2": w2, "s2": s2, "b2": plain["b2"],
        "w3": None, "s3": None, "b3": None, "z1": z1, "z2": z2,
    }  # fmt: skip
    attributes: dict[str, Any] = {"expert_weight_bits": bits, "k": k, "activation_type": activation}
    attributes["normalize_routing_weights"] = 1  # onnxruntime does so in any case
    attributes |= {"block_size": block} if block else {}
    attributes |= {"swiglu_fusion": 1, "activation_alpha": 1.7, "activation_beta": 1.0} if gated else {}
    weights = [n for n, v in inputs.items() if v is not None and n[0] in "wsz"]
    # onnxruntime rounds the activations of 8-bit experts to 8 bits
    loose = 0.02 if bits == 8 and block else 2e-3
    check("QMoE", inputs, constants=weights, rtol=loose, atol=loose, **attributes, **MS)


@pytest.mark.parametrize(("bits", "block", "zeros"), [(4, 0, True), (4, 32, True), (8, 0, False)])
@pytest.mark.parametrize(("tokens", "experts", "k"), SIZES[:2])
def test_weights_stay_packed(
    monkeypatch: pytest.MonkeyPatch,
    tokens: tuple[int, ...],
    experts: int,
    k: int,
    bits: int,
    block: int,
    zeros: bool,
) -> None:
    monkeypatch.setattr(
        mixture_of_experts, "is_cpu", lambda caps: True
    )  # a GPU gathers the weights of few tokens' experts
    monkeypatch.delattr(mixture_of_experts.Matrices, "dense")
    test_quantized_experts(tokens, experts, k, bits, block, zeros, "swiglu")


@pytest.mark.parametrize("tokens", [(9,), (1,)])
def test_routing_by_one_tensor_and_mixing_by_another(tokens: tuple[int, ...]) -> None:
    def expected(x: Array, r: Array, w1: Array, s1: Array, w2: Array, s2: Array, m: Array) -> Array:
        (d1, d2) = ((w.astype(float) - 128) * s[..., None] for w, s in ((w1, s1), (w2, s2)))
        out = np.zeros_like(x)
        for i, row in enumerate(x):
            for e in np.argsort(-r[i])[:2]:
                out[i] += m[i, e] * (d2[e] @ np.maximum(d1[e] @ row, 0))
        return out

    plain = _inputs(tokens, 4)
    (w1, s1, _), (w2, s2, _) = _quantized(4, 32, 32, 8, 0, False), _quantized(4, 32, 32, 8, 0, False)
    inputs: dict[str, Array | None] = {
        "x": plain["x"], "r": plain["r"], "w1": w1, "s1": s1, "b1": None, "w2": w2, "s2": s2, "b2": None,
        **dict.fromkeys(("w3", "s3", "b3", "z1", "z2", "z3")), "m": normal(tokens[0], 4),
    }  # fmt: skip
    against(expected, "QMoE", inputs, expert_weight_bits=8, k=2, atol=1e-4)


@pytest.mark.parametrize("gated", [True, False])
def test_shapes_that_name_rows_and_columns_the_other_way(gated: bool) -> None:
    inputs = _inputs((2, 5), 4, 1 + gated, 16, 32)
    inputs |= {n: inputs[n].reshape(4, inputs[n].shape[2], inputs[n].shape[1]) for n in ("w1", "w2")}
    rest: dict[str, Any] = {"activation_type": "swiglu", "swiglu_fusion": 1} if gated else {}
    check("MoE", inputs, rtol=1e-4, atol=1e-4, k=2, **rest, **MS)


@pytest.mark.parametrize(
    ("changes", "attributes", "told"),
    [
        ({"r": normal(9, 4)}, {}, r"router_probs has shape \[9, 4\], expected \[10, 4\]"),
        ({}, {"k": 5}, "5 experts a token"),
        ({"w2": normal(4, 32, 31)}, {}, r"fc1_bias has shape \[4, 32\], expected \[4, 31\]"),
        ({"b1": normal(3, 32)}, {}, r"fc1_bias has shape \[3, 32\]"),
        ({}, {"activation_type": "tanh"}, "activation_type is 'tanh'"),
        ({}, {"activation_type": "swiglu"}, "without a third matrix"),
    ],
)
def test_refused(changes: dict[str, Array], attributes: dict[str, Any], told: str) -> None:
    inputs = _inputs((2, 5), 4) | changes
    with pytest.raises(VkepError, match=told):
        on_vulkan(model_of("MoE", inputs, domain="com.microsoft", **attributes), inputs)


def test_as_many_tokens_as_a_run_brings() -> None:
    """One session serves one token, whose experts' weights are gathered, and many, which lie in the order of their experts."""
    inputs = _inputs((1,), 8, inner=16)
    model = model_of("MoE", inputs, constants=["w1", "b1", "w2", "b2"], domain="com.microsoft", k=2)
    for value in model.graph.input:
        value.type.tensor_type.shape.dim[0].dim_param = "tokens"
    weights = [inputs[name] for name in ("w1", "b1", "w2", "b2")]
    with InferenceSession(model, fallback="error") as session:
        for tokens in (1, 40, 41, 97, 2):
            x, r = normal(tokens, 32), 3 * normal(tokens, 8)
            [got] = session.run(None, {"x": x, "r": r})
            np.testing.assert_allclose(got, _mixture(x, r, *weights), rtol=1e-4, atol=1e-4)


def _mixture(x: Array, r: Array, w1: Array, b1: Array, w2: Array, b2: Array) -> Array:
    scores = np.exp(r - r.max(1, keepdims=True))
    scores /= scores.sum(1, keepdims=True)
    out = np.zeros_like(x)
    for i, row in enumerate(x):
        for e in np.argsort(-scores[i])[:2]:
            out[i] += scores[i, e] * (w2[e] @ np.maximum(w1[e] @ row + b1[e], 0) + b2[e])
    return out


@pytest.mark.parametrize(("groups", "kept", "summed", "k"), [(1, 1, 2, 3), (4, 2, 2, 3), (4, 3, 9, 1), (2, 1, 1, 4)])
def test_routing_by_groups(groups: int, kept: int, summed: int, k: int) -> None:
    inputs = {"logits": normal(3, 5, 8), "bias": normal(8)}
    attributes: dict[str, Any] = {
        "n_group": groups,
        "topk_group": kept,
        "group_topk": summed,
        "top_k": k,
        "router_sentinel": -7.5,
    }
    check("MoEGroupRouter", inputs, **attributes, **MS)


def test_all_scores_of_a_router() -> None:
    inputs = {"x": normal(5, 256), "bias": normal(8), "w": normal(8, 256)}
    check("MoEGroupRouter", inputs, outputs=("", "scores", "weights"), top_k=2, rtol=1e-4, **MS)
