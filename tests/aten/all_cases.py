"""Every case. Needs only numpy."""

from __future__ import annotations

from tests.aten import cases_elementwise, cases_network, cases_quantized, cases_sequence, cases_shape
from tests.aten.values import Case

CASES: list[Case] = [
    *cases_elementwise.CASES,
    *cases_shape.CASES,
    *cases_network.CASES,
    *cases_quantized.CASES,
    *cases_sequence.CASES,
]
