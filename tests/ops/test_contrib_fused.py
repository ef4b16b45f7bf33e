"""ONNX Runtime's fused operators: against its CPU provider where that has them, else against what their schemas say."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from tests.ops.cases import Array, assert_like, check, model_of, on_vulkan
from vkep.errors import VkepError

pytestmark = pytest.mark.usefixtures("vulkan")
RNG = np.random.default_rng(23)
MS: dict[str, Any] = {"domain": "com.microsoft", "against": "onnxruntime", "opset": 21}
Inputs = dict[str, Array | None]


def normal(*shape: int, dtype: Any = np.float32) -> Array:
    return RNG.normal(0, 1, shape).astype(dtype)


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


FLOATS = [np.float32, np.float16]
LOOSE = {np.float32: 2e-5, np.float16: 2e-2}


@pytest.mark.parametrize("dtype", FLOATS)
def test_sums(dtype: Any) -> None:
    x, c = normal(2, 5, 8, dtype=dtype), normal(8, dtype=dtype)
    against(lambda x, c, s: x + c + s, "BiasAdd", {"x": x, "c": c, "s": x[::-1].copy()}, atol=LOOSE[dtype])
    split = lambda x, c: (x + c)[..., :4] * gelu((x + c)[..., 4:])  # noqa: E731
    against(split, "BiasSplitGelu", {"x": x, "c": c}, atol=LOOSE[dtype])


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


@pytest.mark.parametrize("op_type", ["BitmaskDropout", "BitmaskBiasDropout"])
@pytest.mark.parametrize("training", [False, True])
def test_bitmask_dropout(op_type: str, training: bool) -> None:
    x = normal(7, 11)
    inputs: Inputs = {"x": x}
    if op_type == "BitmaskBiasDropout":
        inputs |= {"c": normal(11), "r": normal(7, 11)}
    rates = {"ratio": np.array(0.25, np.float32), "training": np.array(training)}
    given = inputs | rates
    model = model_of(op_type, given, outputs=("y", "mask"), constants=tuple(rates), domain="com.microsoft", seed=3)
    y, mask = on_vulkan(model, given)
    assert mask.dtype == np.uint32
    assert mask.shape == (3,)
    kept = np.unpackbits(mask.view(np.uint8), bitorder="little")[:77].reshape(7, 11).astype(bool)
    assert kept.all() if not training else 30 < kept.sum() < 77
    total = x + given["c"] if "c" in given else x
    total = np.where(kept, total / (0.75 if training else 1), 0)
    np.testing.assert_allclose(y, total + given["r"] if "r" in given else total, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shapes", [((3, 4, 2), (3, 4, 2)), ((3, 1, 2), (4, 2))])
def test_complex_products(shapes: Any) -> None:
    def expected(conj: bool, x: Array, y: Array) -> Array:
        u, v = (t[..., 0] + 1j * t[..., 1] for t in (x, y))
        made = u * (v.conj() if conj else v)
        return np.stack([made.real, made.imag], -1)

    inputs: Inputs = dict(zip("xv", (normal(*s) for s in shapes), strict=True))
    against(lambda x, v: expected(False, x, v), "ComplexMul", inputs)
    against(lambda x, v: expected(True, x, v), "ComplexMulConj", inputs)


@pytest.mark.parametrize(("shape", "ndim"), [((3, 16), 1), ((2, 6, 10), 2), ((1, 4, 6, 8), 3)])
def test_fourier(shape: tuple[int, ...], ndim: int) -> None:
    x, axes = normal(*shape), tuple(range(-ndim, 0))
    spectrum = np.fft.rfftn(x, axes=axes)
    parts = np.stack([spectrum.real, spectrum.imag], -1).astype(np.float32)
    against(lambda x: parts, "Rfft", {"x": x}, signal_ndim=ndim, atol=1e-4)
    against(lambda x: np.fft.irfftn(spectrum, axes=axes), "Irfft", {"x": parts}, signal_ndim=ndim, atol=1e-4)


@pytest.mark.parametrize("dtype", FLOATS)
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


# ---- hyper-connections


@pytest.mark.parametrize("flat", [True, False])
@pytest.mark.parametrize("gates", [(3,), (3, 1), (3, 8)])
def test_hyper_connections(flat: bool, gates: tuple[int, ...]) -> None:
    streams: Array = normal(2, 4, 24) if flat else normal(2, 4, 3, 8)
    rest: dict[str, Any] = {"num_branches": 3} if flat else {}
    check("HyperConnectionPreMix", {"x": streams, "m": normal(2, 4, *gates)}, reduction_scale=0.5, **rest, **MS)
    for mixed in (True, False):
        inputs: Inputs = {"x": streams, "o": normal(2, 4, 8), "m": normal(2, 4, *gates)}
        inputs["s"] = normal(2, 4, 3, 3) if mixed else None
        check("HyperConnectionPostMix", inputs, **rest, **MS)


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


# ---- convolutions


def test_channels_last() -> None:
    x, w, c = normal(2, 7, 6, 4), normal(6, 3, 3, 2), normal(6)
    inputs = {"x": x.transpose(0, 3, 1, 2).copy(), "w": w.transpose(0, 3, 1, 2).copy(), "c": c}
    rest: dict[str, Any] = {"pads": [1, 0, 1, 2], "strides": [2, 1], "group": 2}
    (expected,) = on_vulkan(model_of("Conv", inputs, **rest), inputs)
    against(lambda **_: expected.transpose(0, 2, 3, 1), "NhwcConv", {"x": x, "w": w, "c": c}, **rest)
    z = normal(*expected.transpose(0, 2, 3, 1).shape)
    fused: Inputs = {"x": x, "w": inputs["w"], "c": c, "z": z}
    against(
        lambda **_: np.maximum(expected.transpose(0, 2, 3, 1) + z, 0), "NhwcFusedConv", fused, activation="Relu", **rest
    )


@pytest.mark.parametrize("constant", [True, False])
def test_transposed_convolution_with_dynamic_pads(constant: bool) -> None:
    inputs: Inputs = {"x": normal(1, 2, 4, 5), "w": normal(2, 3, 3, 3), "p": np.array([1, 0, 1, 2]), "c": normal(3)}
    check("ConvTransposeWithDynamicPads", inputs, constants=["p"] if constant else [], strides=[2, 2], **MS)


@pytest.mark.parametrize(("window", "dilation"), [(4, 1), (3, 2), (1, 1)])
@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("activation", ["none", "silu"])
def test_causal_convolution(window: int, dilation: int, last: int, activation: str) -> None:
    reach = (window - 1) * dilation
    for length, state in ((5, True), (1, True), (6, False)):
        shape, past = ((2, length, 3), (2, reach, 3)) if last else ((2, 3, length), (2, 3, reach))
        inputs: Inputs = {
            "x": normal(*shape),
            "w": normal(3, 1, window),
            "c": normal(3),
            "p": normal(*past) if state else None,
        }
        rest: dict[str, Any] = {"activation": activation, "dilation": dilation, "channels_last": last}
        check("CausalConvWithState", inputs, outputs=("y", "present"), atol=1e-5, **rest, **MS)


def test_words() -> None:
    words = np.array([[3, 1, 4, 1, 5, 0], [2, 7, 0, 0, 0, 0], [9, 9, 9, 9, 9, 9], [1, 0, 5, 0, 0, 0]], np.int32)
    inputs = {"s": words, "w": normal(4, 1, 3, 5), "b": normal(4), "c": normal(8, 5)}
    check("WordConvEmbedding", inputs, **MS)


# ---- positions and tokens


def test_gemma_rotary_embedding() -> None:
    def expected(e: Array, q: Array, p: Array, k: Array, r: Array) -> list[Array]:
        cos, sin = np.cos(e)[:, None], np.sin(e)[:, None]
        return [q * cos + p * sin, k * cos + r * sin]

    half = {n: normal(2, 3, 5, 8, dtype=np.float16) for n in "qpkr"}
    against(expected, "GemmaRotaryEmbedding", {"e": 4 * normal(2, 5, 8), **half}, outputs=("y", "z"), atol=5e-3)


@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("flat", [True, False])
def test_m_rotary_embedding(layout: int, interleaved: int, flat: bool) -> None:
    shape = (2, 5, 48) if flat else (2, 3, 5, 16)
    inputs = {
        "x": normal(*shape), "p": RNG.integers(0, 20, (3, 2, 5)), "c": normal(20, 8), "s": normal(20, 8),
    }  # fmt: skip
    rest: dict[str, Any] = {"num_heads": 3} if flat else {}
    check(
        "MRotaryEmbedding", inputs, mrope_section=[4, 2, 2], mrope_layout=layout, interleaved=interleaved, **rest, **MS
    )


@pytest.mark.parametrize("both", [0, 1])
def test_relative_position_bias(both: int) -> None:
    """T5's bucket of every distance, as in its paper's code."""

    def bucket(distance: int, buckets: int, furthest: int) -> int:
        first = 0
        if both:
            buckets //= 2
            first, distance = buckets * (distance > 0), abs(distance)
        else:
            distance = max(-distance, 0)
        exact = buckets // 2
        if distance < exact:
            return first + distance
        wide = exact + int(math.log(distance / exact) / math.log(furthest / exact) * (buckets - exact))
        return first + min(wide, buckets - 1)

    table = normal(32, 2)
    for length in (40, 7):
        at = np.array([[bucket(k - q, 32, 128) for k in range(length)] for q in range(length)])
        lengths = {"q": np.array(length), "k": np.array(length)}
        against(
            lambda t, at=at, **_: t[at].transpose(2, 0, 1)[None], "RelativePositionBias", {"t": table, **lengths},
            constants=["q", "k"], max_distance=128, is_bidirectional=both,
        )  # fmt: skip


def test_gated_relative_position_bias() -> None:
    def expected(q: Array, c: Array, r: Array, w: Array, d: Array, e: Array) -> Array:
        heads = (q + c).reshape(2, 5, 3, 4).transpose(0, 2, 1, 3)
        u, g = np.split(sigmoid((heads @ w + d).reshape(2, 3, 5, 2, 4).sum(-1)), 2, -1)
        return (u * (g * e - 1) + 2) * r

    inputs: Inputs = {
        "q": normal(2, 5, 12), "c": normal(12), "r": normal(1, 3, 5, 5), "w": normal(4, 8), "d": normal(8),
        "e": normal(1, 3, 1, 1),
    }  # fmt: skip
    against(expected, "GatedRelativePositionBias", inputs, num_heads=3)


@pytest.mark.parametrize("size", [1, 2, 3, 9])
def test_ngram_repeat_block(size: int) -> None:
    ids = np.array([[1, 2, 3, 1, 2, 4, 1, 2], [5, 5, 5, 5, 5, 5, 5, 5], [0, 1, 2, 3, 4, 5, 6, 7]])
    check("NGramRepeatBlock", {"ids": ids, "scores": normal(3, 9)}, ngram_size=size, **MS)


def test_is_all_finite() -> None:
    for bad, only, fine in (
        (None, "", True),
        (np.inf, "", False),
        (np.nan, "isinf_only", True),
        (-np.inf, "isinf_only", False),
        (np.nan, "isnan_only", False),
        (np.inf, "isnan_only", True),
    ):
        x = normal(40, 30)
        if bad is not None:
            x[31, 17] = bad
        inputs: Inputs = {"x": x, "v": normal(3), "z": normal(dtype=np.float16)}
        rest: dict[str, Any] = {only: 1} if only else {}
        against(lambda fine=fine, **_: np.array(fine), "IsAllFinite", inputs, **rest)


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64, np.uint64, np.float32, np.float64])
@pytest.mark.parametrize("positive", [0, 1, 2])
def test_murmur_hash(dtype: Any, positive: int) -> None:
    x = RNG.integers(0, 1 << 63, 50).astype(dtype) if np.dtype(dtype).kind in "iu" else normal(50, dtype=dtype)
    check("MurmurHash3", {"x": x}, positive=positive, seed=42, **MS)


def test_echo_and_old_product() -> None:
    check("SampleOp", {"x": normal(3, 4)}, **MS)
    check("TransposeMatMul", {"x": normal(2, 4, 3), "v": normal(2, 5, 4)}, transA=1, transB=1, alpha=0.5, **MS)
