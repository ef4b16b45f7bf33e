"""ONNX Runtime's LSTMs against its CPU provider."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ops.cases import Array, check

pytestmark = pytest.mark.usefixtures("vulkan")
RNG = np.random.default_rng(67)
MS: dict[str, Any] = {"domain": "com.microsoft", "against": "onnxruntime", "opset": 21}
STEPS, BATCH, INPUTS, HIDDEN = 4, 2, 3, 5
DIRECTIONS = {"forward": 1, "reverse": 1, "bidirectional": 2}
OUTPUTS = ("y", "h", "c")


def normal(*shape: int) -> Array:
    return RNG.normal(0, 0.5, shape).astype(np.float32)


def _states(count: int, batch: int) -> dict[str, Array | None]:
    return {"h0": normal(count, batch, HIDDEN), "c0": normal(count, batch, HIDDEN), "p": normal(count, 3 * HIDDEN)}


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("per_column", [False, True])
def test_weights_of_bytes(direction: str, dtype: Any, per_column: bool) -> None:
    count = DIRECTIONS[direction]
    info = np.iinfo(dtype)
    sizes = (count, 4 * HIDDEN) if per_column else (count,)
    zero = np.zeros(sizes, dtype) if dtype == np.int8 else np.full(sizes, 121, dtype)
    inputs: dict[str, Array | None] = {
        "x": normal(STEPS, 1, INPUTS),
        "w": RNG.integers(info.min, info.max, (count, INPUTS, 4 * HIDDEN), dtype, endpoint=True),
        "r": RNG.integers(info.min, info.max, (count, HIDDEN, 4 * HIDDEN), dtype, endpoint=True),
        "b": normal(count, 8 * HIDDEN),
        "lengths": None,
        **_states(count, 1),
        "ws": RNG.uniform(0.002, 0.008, sizes).astype(np.float32), "wz": zero,
        "rs": RNG.uniform(0.002, 0.008, sizes).astype(np.float32), "rz": zero,
    }  # fmt: skip
    weights = ("w", "r", "ws", "wz", "rs", "rz")
    rest: dict[str, Any] = {"hidden_size": HIDDEN, "direction": direction, "constants": weights, "outputs": OUTPUTS}
    # a state that lies between two steps may take the other one
    check("DynamicQuantizeLSTM", inputs, rtol=2e-3, atol=2e-3, **rest, **MS)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(("layer", "lengths"), [(False, False), (True, False), (True, True)])
def test_attention_to_a_memory(direction: str, layer: bool, lengths: bool) -> None:
    count, places, depth, width = DIRECTIONS[direction], 6, 4, 3
    state = 7 if layer else depth
    inputs: dict[str, Array | None] = {
        "x": normal(STEPS, BATCH, INPUTS),
        "w": normal(count, 4 * HIDDEN, INPUTS + state),
        "r": normal(count, 4 * HIDDEN, HIDDEN),
        "b": normal(count, 8 * HIDDEN),
        "lengths": np.array([STEPS, 2], np.int32) if lengths else None,
        **_states(count, BATCH),
        "qw": normal(count, HIDDEN, width), "mw": normal(count, depth, width), "v": normal(count, width),
        "m": normal(BATCH, places, depth),
        "memory_lengths": np.array([places, 3], np.int32),
    }  # fmt: skip
    inputs |= {"aw": normal(count, depth + HIDDEN, state)} if layer else {}
    rest: dict[str, Any] = {"hidden_size": HIDDEN, "direction": direction, "outputs": OUTPUTS}
    activations = ["sigmoid", "tanh", "tanh"] * count
    check("AttnLSTM", inputs, rtol=1e-4, atol=1e-5, activations=activations, **rest, **MS)
