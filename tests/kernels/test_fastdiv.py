"""Division by magic numbers is exact for every 31-bit numerator."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vkep.kernels.fastdiv import LIMIT, fast_div, magic

DIVISORS = st.one_of(
    st.integers(1, LIMIT - 1),
    st.integers(0, 30).flatmap(lambda k: st.sampled_from([v for v in (2**k - 1, 2**k, 2**k + 1) if 1 <= v < LIMIT])),
)


@given(DIVISORS, st.integers(0, LIMIT - 1), st.integers(-1, 1))
def test_equals_floor_division(divisor: int, n: int, offset: int) -> None:
    multiplier, shift = magic(divisor)
    assert 0 < multiplier < 2**32
    assert 0 <= shift < 32
    multiple = min(max(n // divisor * divisor + offset, 0), LIMIT - 1)  # the quotient changes at multiples
    for value in (n, multiple, LIMIT - 1, 0):
        assert fast_div(value, multiplier, shift) == value // divisor


def test_every_small_divisor_at_every_edge() -> None:
    for divisor in range(1, 600):
        multiplier, shift = magic(divisor)
        for multiple in (divisor, 7 * divisor, (LIMIT - 1) // divisor * divisor):
            for value in (multiple - 1, multiple, min(multiple + 1, LIMIT - 1)):
                assert fast_div(value, multiplier, shift) == value // divisor


@pytest.mark.parametrize("divisor", [0, -3, LIMIT])
def test_refuses_divisors_out_of_range(divisor: int) -> None:
    with pytest.raises(ValueError, match="expected 1 <= divisor < 2"):
        magic(divisor)
