"""The random bits that a run mixes into the seeds of random operators (`vkep.plan.records.FRESH`)."""

from __future__ import annotations

import operator
import random

_source: random.Random = random.SystemRandom()


def bits() -> int:
    """64 new bits: the system's, or those that follow `seed`."""
    return _source.getrandbits(64)


def seed(number: int) -> None:
    """Draw the bits from a generator with this seed. Raises ``TypeError`` for anything but an integer."""
    global _source
    whole = operator.index(number)
    _source = random.Random(whole if whole >= 0 else str(whole))  # of an integer it takes the size alone
