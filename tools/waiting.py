"""Waits of tests and campaigns, which a busy machine does not end: their limits are for what hangs."""

from __future__ import annotations

import time
from collections.abc import Callable

LONG_S = 120.0  #: seconds that nothing within a process takes


def comes_true(condition: Callable[[], object], pause_s: float = 0.01) -> bool:
    """Whether a condition holds within `LONG_S`."""
    ends = time.monotonic() + LONG_S
    while not condition():
        if time.monotonic() > ends:
            return False
        time.sleep(pause_s)
    return True
