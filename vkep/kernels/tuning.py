"""Tilings that measuring chose on a device (`vkep tune`), and how a kernel's tile selection looks them up.

A selection identifies its problem by a key and lists its candidates: tuples of sizes from its tables. It asks its
target (`vkep.kernels.select.Target.tuned`). Where nothing was chosen, or the tables no longer contain the choice, it
uses its own estimate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

Choice = tuple[int, ...]
#: maps (candidates, *problem) to the measured choice among them, None where nothing was measured
Tuned = Callable[..., Choice | None]


def estimated(candidates: Callable[[], Iterable[Choice]], *problem: object) -> Choice | None:
    """No measured choice: each selection uses its own estimate."""
    return None


@dataclass
class Question:
    """The lookups of one key: the candidates, and the labels of the operations that looked it up."""

    candidates: tuple[Choice, ...]
    labels: set[str] = field(default_factory=set)


class Trial(dict[str, Choice]):
    """Choices under test: it returns them, and records each lookup and its operation."""

    def __init__(self, choices: Mapping[str, Choice] | None = None) -> None:
        super().__init__(choices or {})
        self.asked: dict[str, Question] = {}


def chosen(
    choices: Mapping[str, Choice], label: str, candidates: Callable[[], Iterable[Choice]], *problem: object
) -> Choice | None:
    """The choice for a problem of the operation with this label; None where it is not among ``candidates``."""
    if not choices and not isinstance(choices, Trial):
        return None
    key = " ".join(map(str, problem))
    if isinstance(choices, Trial):
        choices.asked.setdefault(key, Question(tuple(candidates()))).labels.add(label)
    choice = choices.get(key)
    return choice if choice is not None and choice in set(candidates()) else None
