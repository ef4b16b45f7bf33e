"""Tilings that measuring chose on a device (`vkep tune`), and how the selections of a kernel's tile ask for them.

A selection names its problem by a key and lists its candidates: tuples of sizes that its tables hold. It asks its target
(`vkep.kernels.select.Target.tuned`); where nothing was chosen, or the tables no longer have it, it decides by its own estimate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

Choice = tuple[int, ...]
#: (candidates, *problem) to what measuring chose among them, None where nothing was
Tuned = Callable[..., Choice | None]


def estimated(candidates: Callable[[], Iterable[Choice]], *problem: object) -> Choice | None:
    """Where nothing was measured: each selection's own estimate decides."""
    return None


@dataclass
class Question:
    """What was asked for one key: the candidates, and the labels of the operations that asked."""

    candidates: tuple[Choice, ...]
    labels: set[str] = field(default_factory=set)


class Trial(dict[str, Choice]):
    """Choices on trial: besides giving them it notes what is asked for, and for which operation."""

    def __init__(self, choices: Mapping[str, Choice] | None = None) -> None:
        super().__init__(choices or {})
        self.asked: dict[str, Question] = {}


def chosen(
    choices: Mapping[str, Choice], label: str, candidates: Callable[[], Iterable[Choice]], *problem: object
) -> Choice | None:
    """The choice for a problem of the operation with this label, None where there is none among ``candidates``."""
    if not choices and not isinstance(choices, Trial):
        return None
    key = " ".join(map(str, problem))
    if isinstance(choices, Trial):
        choices.asked.setdefault(key, Question(tuple(candidates()))).labels.add(label)
    choice = choices.get(key)
    return choice if choice is not None and choice in set(candidates()) else None
