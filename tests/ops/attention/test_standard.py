"""Attention of ONNX and of ONNX Runtime, against the reference and onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ops.cases import assert_like, by_onnxruntime, check, model_of, on_vulkan
from vkep.kernels.attention import attention
from vkep.kernels.attention import split as attention_split
from vkep.ops.attention import sdpa

RNG = np.random.default_rng(9)
MS: dict[str, Any] = {"domain": "com.microsoft", "against": "onnxruntime", "opset": 21, "atol": 1e-4, "rtol": 1e-4}


def _normal(*shape: int, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    return RNG.normal(0, 1, shape).astype(dtype)


@pytest.fixture(params=["whole", "in blocks", "fused"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every case also with two queries at a time, as where the scores are large, and by the kernel that GPUs have for it."""
    if request.param == "in blocks":
        monkeypatch.setattr(sdpa, "_block", lambda *args: 2)
    if request.param == "fused":
        for module in (attention, attention_split):
            monkeypatch.setattr(module, "is_cpu", lambda caps: False)
        monkeypatch.setattr(attention_split, "_BLOCKS", (4,))  # several workgroups of keys
        monkeypatch.setattr(attention, "MIN_QUERIES", 1)
        monkeypatch.setattr(sdpa, "MASK_PART", 1)
    return str(request.param)


# ---- ONNX Attention


@pytest.mark.parametrize("heads", [(4, 4), (6, 2), (3, 1)])
@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("masked", [None, "float", "bool", "heads"])
@pytest.mark.parametrize("past", [0, 5])
def test_attention(heads: tuple[int, int], causal: int, masked: str | None, past: int) -> None:
    batch, queries, keys, size = 2, 4, 7, 8
    total = keys + past
    mask: Any = None
    if masked == "bool":
        mask = RNG.random((batch, 1, queries, total)) > 0.3
    elif masked == "heads":
        mask = _normal(batch, heads[0], queries, total)
    elif masked:
        mask = _normal(queries, total)
    inputs = {
        "q": _normal(batch, heads[0], queries, size),
        "k": _normal(batch, heads[1], keys, size),
        "v": _normal(batch, heads[1], keys, 5),
        "m": mask,
        "pk": _normal(batch, heads[1], past, size) if past else None,
        "pv": _normal(batch, heads[1], past, 5) if past else None,
    }
    outputs = ("y", "pk2", "pv2") if past else ("y",)
    check("Attention", inputs, outputs=outputs, opset=24, is_causal=causal, atol=1e-5)


@pytest.mark.parametrize("mode", [0, 1, 2, 3])
def test_scores_output(mode: int) -> None:
    inputs = {"q": _normal(2, 4, 3, 8), "k": _normal(2, 2, 6, 8), "v": _normal(2, 2, 6, 8), "m": _normal(3, 6)}
    # the reference's mode 0 has the soft cap in it, against the specification
    softcap = 2.0 if mode else 0.0
    attributes: dict[str, Any] = {"qk_matmul_output_mode": mode, "softcap": softcap}
    check("Attention", inputs, outputs=("y", "", "", "s"), opset=24, atol=1e-5, **attributes)


@pytest.mark.parametrize("causal", [0, 1])
def test_without_keys_there_is_nothing_to_see(causal: int) -> None:
    inputs = {"q": _normal(1, 2, 3, 4), "k": _normal(1, 2, 0, 4), "v": _normal(1, 2, 0, 5)}
    [y] = on_vulkan(model_of("Attention", inputs, opset=24, is_causal=causal), inputs)
    np.testing.assert_array_equal(y, np.zeros((1, 2, 3, 5), np.float32))


def test_rows_that_see_nothing_are_zero() -> None:
    mask = np.ones((3, 6), np.bool_)
    mask[1] = False
    inputs = {"q": _normal(1, 2, 3, 4), "k": _normal(1, 2, 6, 4), "v": _normal(1, 2, 6, 4), "m": mask}
    [y] = on_vulkan(model_of("Attention", inputs, opset=24), inputs)
    assert not y[:, :, 1].any() and y[:, :, 0].all()


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("width", [8, 4])
@pytest.mark.parametrize("flat", [False, True])
def test_rotary(interleaved: int, width: int, flat: bool) -> None:
    x = _normal(2, 5, 24) if flat else _normal(2, 3, 5, 8)
    positions = RNG.integers(0, 9, (2, 5))
    inputs = {"x": x, "c": _normal(9, width // 2), "s": _normal(9, width // 2), "p": positions}
    extra: dict[str, Any] = {"num_heads": 3} if flat else {}
    dim: dict[str, Any] = {"rotary_embedding_dim": width} if width < 8 else {}
    check("RotaryEmbedding", inputs, interleaved=interleaved, **dim, **extra)


# ---- com.microsoft


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("padding", [None, "keys", "lengths"])
def test_multi_head_attention(bias: bool, causal: int, padding: str | None) -> None:
    batch, length, width = 2, 5, 12
    masks = {None: None, "keys": np.array([[1, 1, 1, 0, 0], [1] * 5], np.int32), "lengths": np.array([3, 5], np.int32)}
    inputs = {
        "q": _normal(batch, length, width),
        "k": _normal(batch, length, width),
        "v": _normal(batch, length, width),
        "b": _normal(3 * width) if bias else None,
        "m": masks[padding],
    }
    check("MultiHeadAttention", inputs, num_heads=3, unidirectional=causal, **MS)


def test_a_padding_mask_hides_keys_below_zero_too() -> None:
    rng = np.random.default_rng(5)
    rows = {n: rng.normal(size=(2, 4, 8)).astype(np.float32) for n in "qkv"}
    mask = np.array([[1, -1, 0, 2], [1, 1, -7, 1]], np.int32)
    check("MultiHeadAttention", {**rows, "bias": None, "mask": mask}, num_heads=2, **MS)


def test_multi_head_attention_with_past_and_bias() -> None:
    inputs = {
        "q": _normal(2, 3, 8),
        "k": _normal(2, 3, 8),
        "v": _normal(2, 3, 8),
        "b": None,
        "m": None,
        "ab": _normal(2, 2, 3, 7),
        "pk": _normal(2, 2, 4, 4),
        "pv": _normal(2, 2, 4, 4),
    }
    check("MultiHeadAttention", inputs, outputs=("y", "nk", "nv"), num_heads=2, **MS)


def test_packed_multi_head_attention() -> None:
    packed = _normal(2, 5, 3, 3, 4)
    [y] = on_vulkan(model_of("MultiHeadAttention", {"q": packed}, domain="com.microsoft", num_heads=3), {"q": packed})
    parts = {n: np.ascontiguousarray(packed[:, :, :, i]).reshape(2, 5, 12) for i, n in enumerate("qkv")}
    model = model_of("MultiHeadAttention", parts, domain="com.microsoft", num_heads=3, opset=21)
    assert_like([y], by_onnxruntime(model, parts), atol=1e-4)


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("mask", [False, True])
def test_microsoft_attention(causal: int, mask: bool) -> None:
    inputs = {
        "x": _normal(2, 5, 8),
        "w": _normal(8, 24),
        "b": _normal(24),
        "m": np.array([[1, 1, 1, 0, 0], [1] * 5], np.int32) if mask else None,
    }
    check("Attention", inputs, constants=("w", "b"), num_heads=2, unidirectional=causal, **MS)


def _tables(rows: int, half: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    angle = np.outer(np.arange(rows), 1.0 / 100.0 ** (np.arange(half) / half))
    return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)


@pytest.mark.parametrize("rotary", [0, 1])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("stage", ["prompt", "ragged prompt", "decode", "ragged decode", "chunk"])
@pytest.mark.parametrize("extra", [{}, {"local_window_size": 3}, {"softcap": 1.5, "smooth_softmax": 1}])
def test_group_query_attention(rotary: int, packed: bool, stage: str, extra: dict[str, Any]) -> None:
    batch, heads, kv_heads, size = 2, 4, 2, 16
    length = {"prompt": 6, "ragged prompt": 6, "chunk": 3}.get(stage, 1)
    past = 0 if "prompt" in stage else 5
    lengths = {"ragged prompt": [4, 6], "ragged decode": [4, 6]}.get(stage, [past + length] * 2)
    if stage == "chunk":
        batch, lengths = 1, lengths[:1]
    total = max(lengths)
    q, k, v = (_normal(batch, length, n * size) for n in (heads, kv_heads, kv_heads))
    cos, sin = _tables(32, size // 2)
    inputs: dict[str, Any] = {
        "q": np.concatenate([q, k, v], -1) if packed else q,
        "k": None if packed else k,
        "v": None if packed else v,
        "pk": _normal(batch, kv_heads, past, size) if past else None,
        "pv": _normal(batch, kv_heads, past, size) if past else None,
        "len": np.array(lengths, np.int32) - 1,
        "total": np.array(total, np.int32),
        "cos": cos if rotary else None,
        "sin": sin if rotary else None,
    }
    values = {name: v for name, v in inputs.items() if v is not None}
    attributes: dict[str, Any] = {"num_heads": heads, "kv_num_heads": kv_heads, "do_rotary": rotary, **extra}
    model = model_of(
        "GroupQueryAttention",
        inputs,
        outputs=("y", "nk", "nv"),
        constants=("total",),
        domain="com.microsoft",
        opset=21,
        **attributes,
    )
    got, expected = on_vulkan(model, values), by_onnxruntime(model, values)
    for b in range(batch):  # beyond a sequence's end results are not defined
        rows = slice(0, lengths[b]) if "prompt" in stage else slice(None)
        assert_like([got[0][b, rows]], [expected[0][b, rows]], atol=1e-4, rtol=1e-4)
        for ours, theirs in zip(got[1:], expected[1:], strict=True):
            assert ours.shape == theirs.shape
            assert_like([ours[b, :, : lengths[b]]], [theirs[b, :, : lengths[b]]], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("positions", ["first", "each"])
def test_microsoft_rotary(interleaved: int, positions: str) -> None:
    cos, sin = _tables(16, 4)
    ids = np.array([3], np.int64) if positions == "first" else RNG.integers(0, 16, (2, 5))
    check("RotaryEmbedding", {"x": _normal(2, 5, 24), "p": ids, "c": cos, "s": sin}, interleaved=interleaved, **MS)
