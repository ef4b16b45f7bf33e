"""Biases by the distance of query and key, against numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.ops.cases import Array
from tests.ops.microsoft import Inputs, against, normal, sigmoid

pytestmark = pytest.mark.usefixtures("vulkan")


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
