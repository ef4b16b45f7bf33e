"""Sums of embeddings, normalized, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ops.cases import Array, check
from tests.ops.microsoft import MS, RNG, codes, normal, scale

pytestmark = pytest.mark.usefixtures("vulkan")


@pytest.mark.parametrize("segments", [True, False])
@pytest.mark.parametrize("positions", [True, False])
def test_embedding(segments: bool, positions: bool) -> None:
    ids = RNG.integers(0, 9, (2, 6)).astype(np.int32)
    inputs: dict[str, Any] = {
        "ids": ids,
        "seg": RNG.integers(0, 2, (2, 6)).astype(np.int32) if segments else None,
        "word": normal(9, 8),
        "pos": normal(12, 8),
        "segs": normal(2, 8) if segments else None,
        "g": normal(8),
        "b": normal(8),
        "m": np.tri(2, 6, 3).astype(np.int32),
        "pids": RNG.integers(0, 12, (2, 6)).astype(np.int32) if positions else None,
    }
    check("EmbedLayerNormalization", inputs, outputs=("y", "index", "sum"), atol=1e-4, **MS)


@pytest.mark.parametrize("segments", [True, False])
@pytest.mark.parametrize("masked", [True, False])
def test_quantized_embedding(segments: bool, masked: bool) -> None:
    inputs: dict[str, Array | None] = {
        "i": RNG.integers(0, 9, (2, 4)).astype(np.int32), "g": RNG.integers(0, 2, (2, 4)).astype(np.int32),
        "w": codes(np.uint8, 9, 8), "p": codes(np.uint8, 6, 8), "t": codes(np.uint8, 2, 8),
        "gamma": codes(np.uint8, 8), "beta": codes(np.uint8, 8),
        "m": np.array([[1, 1, 0, 0], [1, 1, 1, 0]], np.int32) if masked else None,
        "ws": scale(0.01), "ps": scale(0.02), "ts": scale(0.03), "gs": scale(0.01), "bs": scale(0.02),
        "wz": np.array(120, np.uint8), "pz": np.array(130, np.uint8), "tz": np.array(7, np.uint8),
        "gz": np.array(5, np.uint8), "bz": np.array(100, np.uint8),
    }  # fmt: skip
    if not segments:
        inputs |= dict.fromkeys(("g", "t", "ts", "tz"))
    constants = [n for n, v in inputs.items() if v is not None and n not in ("i", "g", "m")]
    check("QEmbedLayerNormalization", inputs, outputs=("y", "n"), constants=constants, epsilon=1e-5, atol=1e-4, **MS)
