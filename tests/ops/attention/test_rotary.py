"""Rotary embeddings of com.microsoft, against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ops.cases import Array, check
from tests.ops.microsoft import MS, RNG, against, normal

pytestmark = pytest.mark.usefixtures("vulkan")


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
