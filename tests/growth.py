"""Whether memory grows: by its slope over rounds, which one-off allocations and a busy machine do not change."""

from __future__ import annotations

from collections.abc import Callable

from tools.growth import slope
from tools.heap import resident_mb


def growth(work: Callable[[], object], rounds: int = 8) -> float:
    """Megabytes that a round of ``work`` adds: the median of the slopes between any two of ``rounds`` (Theil and Sen), after one
    that warms up.
    """
    work()
    seen: list[float] = []
    for _ in range(rounds):
        work()
        seen.append(resident_mb())
    return slope(seen)
