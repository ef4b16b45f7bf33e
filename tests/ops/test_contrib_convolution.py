"""Convolutions of com.microsoft over packed sequences, against onnxruntime's CPU provider."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ops.cases import Array, check

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
