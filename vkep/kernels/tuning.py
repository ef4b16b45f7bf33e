"""Tilings that measuring chose on a device (`vkep tune`), and how the selections of a kernel's tile ask for them.

A selection names its problem by a key and lists its candidates: tuples of sizes that its tables hold. What was chosen travels
in `DeviceCapabilities.tuned`; without it, or where the tables no longer have it, the selection decides by its own estimate.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from gpu_shared.capabilities import DeviceCapabilities

Choice = tuple[int, ...]


@dataclass
class Question:
    """What was asked for one key: the candidates, and the labels of the operations that asked."""

    candidates: tuple[Choice, ...]
    labels: set[str] = field(default_factory=set)


class Trial(dict[str, Choice]):
    """Choices on trial: besides giving them it notes what is asked for. Planning may ask from several threads."""

    def __init__(self, choices: Mapping[str, Choice] | None = None) -> None:
        super().__init__(choices or {})
        self.asked: dict[str, Question] = {}
        self._working = threading.local()

    def ask(self, key: str, candidates: Iterable[Choice]) -> None:
        question = self.asked.setdefault(key, Question(tuple(candidates)))
        question.labels.add(getattr(self._working, "label", ""))

    def working_on(self, label: str) -> None:
        """What this thread asks for from now on is for the operation with this label."""
        self._working.label = label


def chosen(caps: DeviceCapabilities, candidates: Callable[[], Iterable[Choice]], *problem: object) -> Choice | None:
    """The choice for a problem, None where there is none among ``candidates``."""
    if not caps.tuned and not isinstance(caps.tuned, Trial):
        return None
    key = " ".join(map(str, problem))
    if isinstance(caps.tuned, Trial):
        caps.tuned.ask(key, candidates())
    choice = caps.tuned.get(key)
    return choice if choice is not None and choice in set(candidates()) else None


def working_on(caps: DeviceCapabilities, label: str) -> None:
    """Tell a trial which operation asks."""
    if isinstance(caps.tuned, Trial):
        caps.tuned.working_on(label)
