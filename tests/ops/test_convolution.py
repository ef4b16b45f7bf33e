"""Convolutions of com.microsoft over packed sequences, against onnxruntime's CPU provider."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ops.cases import Array, check, model_of, on_vulkan
from tests.ops.microsoft import Inputs, against

pytestmark = pytest.mark.usefixtures("vulkan")
RNG = np.random.default_rng(59)
MS: dict[str, Any] = {"domain": "com.microsoft", "against": "onnxruntime", "opset": 21}


def normal(*shape: int) -> Array:
    return RNG.normal(0, 1, shape).astype(np.float32)


@pytest.mark.parametrize(("taps", "dilation"), [(4, 1), (3, 2), (1, 1)])
@pytest.mark.parametrize("activation", ["none", "silu"])
@pytest.mark.parametrize("captured", [0, 3])
def test_packed_sequences(taps: int, dilation: int, activation: str, captured: int) -> None:
    channels, reach = 5, (taps - 1) * dilation
    inputs: dict[str, Array | None] = {
        "x": normal(12, channels),
        "w": normal(channels, 1, taps),
        "starts": np.array([0, 1, 8, 12], np.int32),
        "bias": normal(channels) if activation == "silu" else None,
        "first": normal(3, channels, reach),
    }
    names, rest = ["y", "next"], {}
    if captured:
        inputs["counts"] = np.array([2, 2, 5], np.int32)
        names, rest = [*names, "states"], {"state_update_capacity": captured}
    attributes: dict[str, Any] = {"activation": activation, "dilation": dilation, **rest}
    check("VarlenCausalConvWithState", inputs, outputs=names, **attributes, **MS)


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


@pytest.mark.parametrize(
    ("x", "w", "attributes"),
    [
        ((2, 8, 5, 6, 7), (16, 8, 3, 3, 3), {"pads": [1, 1, 1, 1, 1, 1]}),
        ((1, 3, 7, 9, 8), (4, 3, 3, 2, 1), {"strides": [2, 1, 3], "pads": [0, 1, 0, 2, 0, 1]}),
        ((1, 12, 6, 5, 4), (9, 4, 2, 3, 1), {"group": 3, "dilations": [2, 1, 2]}),
        ((2, 6, 4, 5, 5), (6, 1, 3, 3, 3), {"group": 6, "pads": [1, 1, 1, 1, 1, 1]}),
        ((1, 16, 4, 6, 6), (8, 16, 1, 1, 1), {}),
        ((1, 2, 3, 4, 4), (3, 2, 3, 3, 3), {"auto_pad": "SAME_UPPER", "strides": [2, 2, 2]}),
        ((1, 3, 4, 32, 32), (8, 3, 2, 16, 16), {"strides": [2, 16, 16]}),
    ],
    ids=str,
)
def test_over_three_axes(x: tuple[int, ...], w: tuple[int, ...], attributes: dict[str, Any]) -> None:
    inputs = {"x": normal(*x), "w": normal(*w), "b": normal(w[0])}
    for constant in ([], ["w", "b"]):
        check("Conv", inputs, against="onnxruntime", constants=constant, rtol=1e-4, atol=1e-4, **attributes)
