"""How much a value grows, by its slope over rounds: what is taken once, and single rounds that differ, do not count."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence


def slope(values: Sequence[float]) -> float:
    """The growth of a value per round: the median of the slopes between any two rounds (Theil and Sen)."""
    pairs = itertools.combinations(enumerate(values), 2)
    return statistics.median((later - earlier) / (k - n) for (n, earlier), (k, later) in pairs)


def after_a_third(values: Sequence[float]) -> Sequence[float]:
    """The values without the first third, in which caches fill."""
    return values[len(values) // 3 :]


def grown(values: Sequence[float]) -> float:
    """The growth of a value over the rounds after the first third: their slope times their number."""
    later = after_a_third(values)
    return slope(later) * len(later)
