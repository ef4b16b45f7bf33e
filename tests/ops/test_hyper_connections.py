"""Residual connections of several streams, against numpy."""

from __future__ import annotations

from typing import Any

import pytest

from tests.ops.cases import Array, check
from tests.ops.microsoft import MS, Inputs, normal

pytestmark = pytest.mark.usefixtures("vulkan")


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
