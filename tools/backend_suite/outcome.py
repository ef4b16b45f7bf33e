"""The result of a case."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

#: every node on Vulkan or folded while planning
VULKAN = "vulkan"
#: right, with some node on the CPU
CPU = "cpu"
#: refused with a reason
DECLINED = "declined"
#: a wrong answer, an unexpected error, a crash or a hang
FAILED = "failed"
STATES = (VULKAN, CPU, DECLINED, FAILED)


@dataclass(frozen=True)
class Outcome:
    """One case's result. ``reasons`` say why nodes ran on the CPU, why it was declined, or how it failed."""

    name: str
    operator: str
    state: str
    reasons: tuple[str, ...] = ()
    folded: bool = False  #: planning computed everything, nothing was dispatched
    seconds: float = 0.0
    dtypes: tuple[str, ...] = field(default=())


def counts(outcomes: Iterable[Outcome]) -> dict[str, int]:
    """Cases by state, every state present."""
    result = dict.fromkeys(STATES, 0)
    for outcome in outcomes:
        result[outcome.state] += 1
    return result
