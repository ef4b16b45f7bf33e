"""Whether memory grows: by its slope over rounds, which one-off allocations and a busy machine do not change."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path

from tools.soak import slope


def resident() -> float:
    """Resident megabytes of this process (Linux)."""
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def growth(work: Callable[[], object], rounds: int = 8) -> float:
    """Megabytes that a round of ``work`` adds: the median of the slopes between any two of ``rounds`` (Theil and Sen), after one
    that warms up.
    """
    work()
    seen: list[float] = []
    for _ in range(rounds):
        work()
        gc.collect()
        seen.append(resident())
    return slope(seen)
