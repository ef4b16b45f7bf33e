"""Attention's masks and quantized form, packed sequences, and one token at a time, against onnxruntime or numpy."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from tests.ops.cases import Array, by_onnxruntime, check, model_of, on_vulkan
from tests.ops.microsoft import against
from vkep import InferenceSession, InvalidInputError

pytestmark = pytest.mark.usefixtures("vulkan")
RNG = np.random.default_rng(31)
MS: dict[str, Any] = {"domain": "com.microsoft", "against": "onnxruntime", "opset": 21}
#: name: the mask's values, for two sequences of five keys
MASKS: dict[str, Any] = {
    "none": None,
    "lengths": [3, 5],
    "ends and starts": [3, 5, 1, 2],
    "keys": [[1, 1, 0, 1, 0], [0, 1, 1, 1, 1]],
    "queries and keys": RNG.integers(0, 2, (2, 5, 5)) | np.eye(5, dtype=int),
    "nothing": [[1], [1]],
}


def normal(*shape: int) -> Array:
    return RNG.normal(0, 0.5, shape).astype(np.float32)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("causal", [0, 1])
def test_masks(kind: str, causal: int) -> None:
    mask = MASKS[kind]
    inputs = {
        "x": normal(2, 5, 8),
        "w": normal(8, 24),
        "b": normal(24),
        "m": None if mask is None else np.array(mask, np.int32),
    }
    check("Attention", inputs, num_heads=2, unidirectional=causal, **MS)


def test_a_mask_of_four_axes() -> None:
    """The CPU provider has none: rows and columns of the last queries and all keys are those of a mask of three axes."""
    inputs = {"x": normal(2, 3, 8), "w": normal(8, 24), "b": normal(24), "p": normal(2, 2, 2, 2, 4)}
    wide = (RNG.integers(0, 2, (2, 1, 7, 7)) | np.eye(7, dtype=int)).astype(np.int32)
    results = []
    for mask in (wide, wide[:, 0, 2:5, :5].copy()):
        given = {"x": inputs["x"], "w": inputs["w"], "b": inputs["b"], "m": mask, "p": inputs["p"]}
        model = model_of("Attention", given, outputs=("y", "next"), domain="com.microsoft", num_heads=2)
        results.append(on_vulkan(model, given))
    expected = by_onnxruntime(model, given)
    for one, other, theirs in zip(*results, expected, strict=True):
        np.testing.assert_array_equal(one, other)
        np.testing.assert_allclose(one, theirs, atol=1e-5)


def test_a_negative_length_is_refused() -> None:
    inputs = {"x": normal(2, 5, 8), "w": normal(8, 24), "b": normal(24), "m": np.array([3, -1], np.int32)}
    with pytest.raises(InvalidInputError, match="mask_index is outside"):
        on_vulkan(model_of("Attention", inputs, domain="com.microsoft", num_heads=2), inputs)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("columns", [True, False])
@pytest.mark.parametrize("past", [True, False])
def test_quantized(dtype: Any, columns: bool, past: bool) -> None:
    info, many = np.iinfo(dtype), (48,) if columns else ()
    inputs: dict[str, Array | None] = {
        "x": RNG.integers(0, 256, (2, 5, 16), dtype=np.uint8),
        "w": RNG.integers(info.min, info.max, (16, 48), dtype=dtype),
        "b": normal(48),
        "xs": np.array(0.01, np.float32),
        "ws": RNG.uniform(0.002, 0.004, many).astype(np.float32),
        "m": None if past else np.array([4, 5], np.int32),
        "xz": np.array(120, np.uint8),
        "wz": RNG.integers(-3, 3, many).astype(dtype) if dtype is np.int8 else np.full(many, 128, dtype),
        "p": normal(2, 2, 4, 3, 4) if past else None,
    }
    constants = ["w", "ws", "wz", "xs", "xz"]
    check(
        "QAttention",
        inputs,
        outputs=("y", "next"),
        constants=constants,
        num_heads=4,
        unidirectional=int(past),
        atol=1e-4,
        **MS,
    )


# ---- packed sequences

LENGTHS = np.array([3, 1, 5, 0])
REAL = np.arange(5) < LENGTHS[:, None]
OFFSETS = np.concatenate([np.flatnonzero(REAL), np.flatnonzero(~REAL)]).astype(np.int32).reshape(4, 5)
ENDS = np.concatenate([[0], np.cumsum(LENGTHS)]).astype(np.int32)


def _attention(q: Array, k: Array, v: Array, heads: int, bias: Array | None, scale: float) -> Array:
    """Each sequence on its own: [tokens, features]."""
    made = []
    for i, (first, end) in enumerate(itertools.pairwise(ENDS)):
        parts = [t[first:end].reshape(end - first, heads, t.shape[1] // heads).transpose(1, 0, 2) for t in (q, k, v)]
        scores = parts[0] @ parts[1].transpose(0, 2, 1) * scale
        if bias is not None:
            scores = scores + bias[i if len(bias) > 1 else 0][:, : end - first, : end - first]
        weights = np.exp(scores - scores.max(-1, keepdims=True, initial=-1e9))
        weights /= weights.sum(-1, keepdims=True)
        made.append((weights @ parts[2]).transpose(1, 0, 2).reshape(end - first, v.shape[1]))
    return np.concatenate(made)


@pytest.mark.parametrize("bias", [None, (1, 2, 5, 5), (4, 2, 5, 5)])
@pytest.mark.parametrize("values", [8, 12])
def test_packed_attention(bias: tuple[int, ...] | None, values: int) -> None:
    def expected(x: Array, w: Array, c: Array, o: Array, e: Array, a: Array | None = None) -> Array:
        q, k, v = np.split(x @ w + c, [8, 16], 1)
        return _attention(q, k, v, 2, a, 0.5)

    width = 16 + values
    inputs: dict[str, Array | None] = {
        "x": normal(9, 6),
        "w": normal(6, width),
        "c": normal(width),
        "o": OFFSETS,
        "e": ENDS,
    }
    inputs["a"] = None if bias is None else normal(*bias)
    against(expected, "PackedAttention", inputs, num_heads=2, qkv_hidden_sizes=[8, 8, values])


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_packed_multi_head_attention(together: bool, bias: bool) -> None:
    def expected(
        q: Array, o: Array, e: Array, k: Array | None = None, v: Array | None = None, c: Array | None = None
    ) -> Array:
        if together:
            q, k, v = (q[:, :, i].reshape(9, 8) for i in range(3))
        assert k is not None and v is not None
        if c is not None:
            q, k, v = (t + part for t, part in zip((q, k, v), np.split(c, 3), strict=True))
        return _attention(q, k, v, 2, None, 0.3)

    first = {"q": normal(9, 2, 3, 4), "k": None, "v": None} if together else {n: normal(9, 8) for n in "qkv"}
    inputs: dict[str, Array | None] = {**first, "c": normal(24) if bias else None, "o": OFFSETS, "e": ENDS}
    against(expected, "PackedMultiHeadAttention", inputs, num_heads=2, scale=0.3)


@pytest.mark.parametrize("constant", [True, False])
def test_padding_taken_away_and_put_back(constant: bool) -> None:
    x = normal(4, 5, 3) * REAL[..., None]
    inputs = {"x": x, "n": LENGTHS.astype(np.int32)}
    names = ("rows", "offsets", "ends", "most")
    model = model_of(
        "RemovePadding", inputs, outputs=names, constants=["n"] if constant else [], domain="com.microsoft"
    )
    with InferenceSession(model, fallback="error") as session:
        rows, offsets, ends, most = session.run(None, {i.name: inputs[i.name] for i in session.get_inputs()})
    np.testing.assert_array_equal(rows, x[REAL])
    np.testing.assert_array_equal(offsets, OFFSETS)
    np.testing.assert_array_equal(ends, ENDS)
    assert most.tolist() == [5]
    against(lambda **_: x, "RestorePadding", {"r": rows, "o": offsets})


@pytest.mark.gpu
def test_a_token_beyond_its_sequences_is_refused() -> None:
    inputs = {"r": normal(3, 2), "o": np.array([[0, 1], [9, 3]], np.int32)}
    with pytest.raises(InvalidInputError, match="outside of its axis"):
        on_vulkan(model_of("RestorePadding", inputs, domain="com.microsoft"), inputs)


# ---- one token at a time


@pytest.mark.parametrize("beams", [0, 1, 2])
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize(("past", "scores"), [(0, 0), (4, 0), (7, 0), (4, 1)])
def test_decoding_with_room_in_the_buffer(beams: int, masked: bool, past: int, scores: int) -> None:
    batch, heads, size, room = 4, 2, 8, 8
    width = heads * size
    inputs: dict[str, Array | None] = {
        "q": normal(batch, 1, width), "k": normal(batch, 1, width), "v": normal(batch, 1, width),
        "m": RNG.integers(0, 2, (batch, past + 1)).astype(np.int32) | 1 * (np.arange(past + 1) == past) if masked else None,
        "a": None, "pk": normal(batch, heads, room, size), "pv": normal(batch, heads, room, size),
        "n": np.array([past], np.int32),
        "w": np.array([beams], np.int32) if beams else None,
        "i": RNG.integers(0, beams, (batch // beams, beams, room)).astype(np.int32) if beams else None,
        "b": normal(3 * width),
    }  # fmt: skip
    inputs["m"] = None if inputs["m"] is None else inputs["m"].astype(np.int32)
    model = model_of(
        "DecoderMaskedMultiHeadAttention", inputs, outputs=("y", "nk", "nv", *["qk"][:scores]), domain="com.microsoft", opset=21,
        num_heads=heads, past_present_share_buffer=1, output_qk=scores, mask_filter_value=-1e4,
    )  # fmt: skip
    given = {n: v for n, v in inputs.items() if v is not None}
    if scores:  # onnxruntime infers float16 for them
        model.graph.output[3].CopyFrom(helper.make_tensor_value_info("qk", TensorProto.FLOAT, None))
    ours, theirs = on_vulkan(model, given), by_onnxruntime(model, given)
    end = past + 1
    np.testing.assert_allclose(ours[0], theirs[0], atol=2e-5)
    for k in (1, 2):
        np.testing.assert_allclose(ours[k][:, :, :end], theirs[k][:, :, :end], atol=1e-6)
    for mine, right in zip(ours[3:], theirs[3:], strict=True):
        np.testing.assert_allclose(mine, right, atol=2e-5)


@pytest.mark.parametrize("masked", [True, False])
def test_decoding_with_an_encoder(masked: bool) -> None:
    inputs: dict[str, Array | None] = {
        "q": normal(2, 1, 16), "k": normal(2, 2, 5, 8), "v": normal(2, 2, 5, 8),
        "m": np.array([[1, 1, 0, 0, 0], [1, 1, 1, 1, 0]], np.int32) if masked else None,
    }  # fmt: skip
    check("DecoderMaskedMultiHeadAttention", inputs, num_heads=2, **MS)
