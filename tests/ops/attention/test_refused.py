"""Attention whose operands disagree is refused with their shapes, as onnxruntime does; attributes at their defaults change
nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ops.cases import by_onnxruntime, model_of, on_vulkan
from vkep import InferenceSession, InvalidInputError, InvalidModelError

RNG = np.random.default_rng(3)
MS: dict[str, Any] = {"domain": "com.microsoft", "opset": 21}
Shapes = dict[str, tuple[int, ...] | None]


def _values(shapes: Shapes) -> dict[str, Any]:
    return {name: None if s is None else RNG.normal(0, 1, s).astype(np.float32) for name, s in shapes.items()}


ONNX: Shapes = {"q": (2, 4, 3, 8), "k": (2, 4, 5, 8), "v": (2, 4, 5, 6)}
MULTI_HEAD: Shapes = {"q": (2, 3, 16), "k": (2, 5, 16), "v": (2, 5, 24)}
PACKED: Shapes = {"x": (2, 3, 10), "w": (10, 48), "b": (48,)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"k": (2, 4, 5, 7)}, r"queries of shape \[2, 4, 3, 8\] and keys of shape \[2, 4, 5, 7\]"),
        ({"k": (2, 3, 5, 8), "v": (2, 3, 5, 6)}, r"queries of shape \[2, 4, 3, 8\] and keys of shape \[2, 3, 5, 8\]"),
        ({"v": (2, 4, 4, 6)}, r"keys of shape \[2, 4, 5, 8\] and values of shape \[2, 4, 4, 6\]"),
        ({"v": (1, 4, 5, 6)}, r"keys of shape \[2, 4, 5, 8\] and values of shape \[1, 4, 5, 6\]"),
        ({"m": (2, 4, 2, 5)}, r"mask has shape \[2, 4, 2, 5\].*\[2, 4, 3, 5\]"),
        ({"m": (3, 5), "pk": (2, 4, 6, 7), "pv": (2, 4, 6, 6)}, r"past of shape \[2, 4, 6, 7\] and new of shape"),
    ],
)
def test_attention(changes: Shapes, message: str) -> None:
    values = _values({**ONNX, **changes})
    outputs = ("y", "nk", "nv") if "pk" in changes else ("y",)
    with pytest.raises(InvalidModelError, match=message):
        on_vulkan(model_of("Attention", values, outputs=outputs, opset=23), values)


@pytest.mark.parametrize("mode", [-1, 4])
def test_scores_of_an_unknown_stage(mode: int) -> None:
    values = _values(ONNX)
    model = model_of("Attention", values, outputs=("y", "", "", "s"), opset=23, qk_matmul_output_mode=mode)
    with pytest.raises(InvalidModelError, match=f"qk_matmul_output_mode is {mode}, expected 0 to 3"):
        on_vulkan(model, values)


@pytest.mark.parametrize(
    ("shapes", "attributes", "message"),
    [
        ({"q": (2, 3, 15), "k": (2, 5, 16), "v": (2, 5, 16)}, {}, r"\[2, 3, 15\] does not divide into 2 heads"),
        (MULTI_HEAD, {"q_num_heads": 3}, r"\[2, 3, 16\] does not divide into 3 heads"),
    ],
)
def test_attention_side_by_side(shapes: Shapes, attributes: dict[str, Any], message: str) -> None:
    values = _values(shapes)
    heads: dict[str, Any] = {"q_num_heads": 2, "kv_num_heads": 2, **attributes}
    model = model_of("Attention", values, opset=23, **heads)
    with pytest.raises(InvalidModelError, match=message):
        on_vulkan(model, values)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"k": (2, 5, 18)}, r"key has shape \[2, 5, 18\], expected \[2, 5, 16\]"),
        ({"k": (1, 5, 16), "v": (1, 5, 24)}, r"queries of shape \[2, 2, 3, 8\] and keys of shape \[1, 2, 5, 8\]"),
        ({"v": (2, 4, 24)}, r"keys of shape \[2, 2, 5, 8\] and values of shape \[2, 2, 4, 12\]"),
        ({"b": (50,)}, r"bias has shape \[50\], expected \[56\]"),
        ({"b": None, "p": None, "ab": (1, 2, 3, 4)}, r"mask has shape \[1, 2, 3, 4\].*\[2, 2, 3, 5\]"),
    ],
)
def test_multi_head_attention(changes: Shapes, message: str) -> None:
    values = _values({**MULTI_HEAD, **changes})
    model = model_of("MultiHeadAttention", values, num_heads=2, **MS)
    with pytest.raises(InvalidModelError, match=message):
        on_vulkan(model, values)
    with pytest.raises(Exception, match=r"\[ONNXRuntimeError\]"):
        by_onnxruntime(model, values)


@pytest.mark.parametrize(
    ("changes", "sizes", "message"),
    [
        ({}, [16, 16, 24], r"weights has shape \[10, 48\], expected \[10, 56\]"),
        ({}, [16, 16, 8], r"weights has shape \[10, 48\], expected \[10, 40\]"),
        ({}, [8, 16, 24], r"qkv_hidden_sizes are \[8, 16, 24\]"),
        ({}, [17, 17, 14], r"does not divide into 2 heads"),
        ({"b": (47,)}, None, r"bias has shape \[47\], expected \[48\]"),
        ({"w": (9, 48)}, None, r"weights has shape \[9, 48\], expected \[10, 48\]"),
        ({"m": None, "past": (2, 2, 2, 4, 7)}, None, r"past of shape \[2, 2, 4, 7\] and new of shape \[2, 2, 3, 8\]"),
    ],
)
def test_microsoft_attention(changes: Shapes, sizes: list[int] | None, message: str) -> None:
    values = _values({**PACKED, **changes})
    attributes: dict[str, Any] = {"num_heads": 2, **({} if sizes is None else {"qkv_hidden_sizes": sizes})}
    outputs = ("y", "present") if "past" in changes else ("y",)
    model = model_of("Attention", values, outputs=outputs, constants=("w",), **attributes, **MS)
    with pytest.raises(InvalidModelError, match=message):
        on_vulkan(model, values)
    with pytest.raises(Exception, match=r"\[ONNXRuntimeError\]"):
        by_onnxruntime(model, values)


# ---- GroupQueryAttention


def _grouped(changes: Shapes | None = None) -> dict[str, Any]:
    shapes: Shapes = {"q": (2, 3, 32), "k": (2, 3, 16), "v": (2, 3, 16), "pk": (2, 2, 8, 8), "pv": (2, 2, 8, 8)}
    values = _values({**shapes, "n": (2,), "t": (1,), **(changes or {})})
    values["n"], values["t"] = np.full(values["n"].shape, 2, np.int32), np.full(values["t"].shape, 3, np.int32)
    return values


GROUPED: dict[str, Any] = {"outputs": ("y", "nk", "nv"), "constants": ("t",), "num_heads": 4, "kv_num_heads": 2, **MS}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"k": (2, 2, 16)}, r"keys by head has shape \[2, 2, 2, 8\], expected \[2, 2, 3, 8\]"),
        ({"v": (2, 2, 16)}, r"values by head has shape \[2, 2, 2, 8\], expected \[2, 2, 3, 8\]"),
        ({"k": (2, 3, 18)}, r"keys by head has shape \[2, 2, 3, 9\], expected \[2, 2, 3, 8\]"),
        ({"n": (3,)}, r"seqlens_k has shape \[3\], expected \[2\]"),
        ({"t": (2,)}, r"total_sequence_length has shape \[2\]"),
        ({"pk": (2, 2, 8, 7)}, r"past of shape \[2, 2, 8, 7\] and new of shape \[2, 2, 3, 8\]"),
        ({"pv": (1, 2, 8, 8)}, r"past_value has shape \[1, 2, 8, 8\], expected \[2, 2, 8, 8\]"),
        (
            {**dict.fromkeys(("c", "s", "p")), "ab": (1, 4, 3, 2)},
            r"attention_bias has shape \[1, 4, 3, 2\], expected a last",
        ),
        ({**dict.fromkeys(("c", "s", "p", "ab")), "sink": (3,)}, r"sink has shape \[3\], expected \[4\]"),
    ],
)
def test_group_query_attention(changes: Shapes, message: str) -> None:
    values = _grouped(changes)
    model = model_of("GroupQueryAttention", values, **GROUPED)
    with pytest.raises(InvalidModelError, match=message):
        on_vulkan(model, values)
    with pytest.raises(Exception, match=r"\[ONNXRuntimeError\]"):
        by_onnxruntime(model, values)


def test_more_keys_than_a_bias_has_columns_in_a_run() -> None:
    sizes: Shapes = {
        "q": (1, 3, 32),
        "k": (1, 3, 16),
        "v": (1, 3, 16),
        "pk": (1, 2, 8, 8),
        "pv": (1, 2, 8, 8),
        "n": (1,),
    }
    values = _grouped({**sizes, **dict.fromkeys(("c", "s", "p")), "ab": (1, 4, 3, 6)})
    model = model_of("GroupQueryAttention", values, **{**GROUPED, "constants": ()})
    given = {name: value for name, value in values.items() if value is not None}
    with InferenceSession(model, fallback="error") as session:
        for total in (3, 6):
            feeds = given | {"t": np.array([total], np.int32), "n": np.full(1, total - 1, np.int32)}
            narrow = feeds | {"ab": given["ab"][..., :total]}  # onnxruntime wants as many columns as keys
            expected = by_onnxruntime(model_of("GroupQueryAttention", {**values, **narrow}, **GROUPED), narrow)
            for ours, theirs in zip(session.run(None, feeds), expected, strict=True):
                np.testing.assert_allclose(ours[:, :, :total], theirs[:, :, :total], atol=1e-5)
        feeds = given | {"t": np.array([7], np.int32), "n": np.full(1, 6, np.int32)}
        with pytest.raises(
            InvalidInputError, match=r"attention_bias has shape \[1, 4, 3, 6\], expected a last axis of 7"
        ):
            session.run(None, feeds)


DEFAULTS: dict[str, Any] = {
    "causal": 1,
    "sliding_window_cache": 0,
    "qk_norm_epsilon": 1e-6,
    "k_quant_type": "NONE",
    "v_quant_type": "NONE",
    "smooth_softmax": -1,
    "qk_output": 0,
    "local_window_size": -1,
}


def check_grouped(values: dict[str, Any], **attributes: Any) -> None:
    """Compare with onnxruntime; a cache up to each sequence's end: the elements behind it are no keys."""
    model = model_of("GroupQueryAttention", values, **attributes)
    values = {name: value for name, value in values.items() if value is not None}
    (y, *caches), (right, *others) = on_vulkan(model, values), by_onnxruntime(model, values)
    np.testing.assert_allclose(y, right, atol=1e-5)
    for ours, theirs in zip(caches, others, strict=True):
        for sequence, last in enumerate(values["n"].reshape(-1)):
            np.testing.assert_allclose(ours[sequence, :, : last + 1], theirs[sequence, :, : last + 1], atol=1e-5)


def test_defaults_written_out_change_nothing() -> None:
    """`smooth_softmax` -1 is off."""
    check_grouped(_grouped(), **GROUPED, **DEFAULTS)


@pytest.mark.parametrize("smooth", [-1, 0, 1])
def test_smooth_softmax(smooth: int) -> None:
    check_grouped(_grouped(), smooth_softmax=smooth, **GROUPED)


@pytest.mark.parametrize(("length", "total"), [(1, 5), (5, 5), (3, 3), (1, 8)])
@pytest.mark.parametrize("constant", [True, False])
def test_keys_of_another_layer_alone(length: int, total: int, constant: bool) -> None:
    """No new keys and values: the past has them all."""
    sizes: Shapes = {
        "q": (1, length, 32),
        "k": (1, 0, 16),
        "v": (1, 0, 16),
        "pk": (1, 2, 8, 8),
        "pv": (1, 2, 8, 8),
        "n": (1,),
    }
    values = _grouped(sizes)
    values["n"], values["t"] = np.array([total - 1], np.int32), np.array([total], np.int32)
    rest = {**GROUPED, "constants": ("t",) if constant else ()}
    check_grouped(values, **rest)


def test_a_window_wider_than_its_cache() -> None:
    values = _grouped()
    for size in (-1, 9):
        model = model_of("GroupQueryAttention", values, sliding_window_cache=1, local_window_size=size, **GROUPED)
        with pytest.raises(InvalidModelError, match=f"local_window_size is {size}, expected 1 to the cache's 8 rows"):
            on_vulkan(model, values)
