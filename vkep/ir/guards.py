"""What a plan depends on of a value that only a run gives, where that is less than its content.

A guard is a pure function of the content. A plan that used its answer holds for every content with the same answer, so a
number that grows at each step need not mean a plan for each step.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np


class Guard(Protocol):
    """Hashable, equal where it asks the same: a frozen dataclass with ``__call__``."""

    def __call__(self, content: np.ndarray) -> Hashable: ...

    def __hash__(self) -> int: ...


#: guards of a value, each with its answer for the value's content
Answers = tuple[tuple[Guard, Hashable], ...]


@dataclass(frozen=True)
class RoundedCapacity:
    """How many places to plan for where a run fills so many (one integer): that many rounded up to a power of two of
    at least ``least``, and at most ``given``; exactly that many where they are more than ``given``.
    """

    given: int
    least: int = 256

    def __call__(self, content: np.ndarray) -> int:
        filled = int(content.reshape(-1)[0])
        if filled > self.given:
            return filled
        return min(self.given, max(self.least, 1 << max(filled - 1, 0).bit_length()))


class Needs:
    """Of which values the nodes that wait need the content, or the answers of which guards."""

    def __init__(self) -> None:
        self._asked: dict[str, dict[Guard, None] | None] = {}

    def add(self, names: Iterable[str], guard: Guard | None) -> None:
        """Of each value: its content (no ``guard``), or one more answer."""
        for name in names:
            asked = self._asked.setdefault(name, {})
            if guard is None or asked is None:
                self._asked[name] = None
            else:
                asked[guard] = None

    def of(self, name: str, before: Answers) -> tuple[Guard, ...] | None:
        """The guards of a value, those in ``before`` included; () where all of it is needed, None where
        nothing is.
        """
        asked: dict[Guard, None] | None = self._asked.get(name, {})
        if asked is None:
            return ()
        return tuple(dict.fromkeys([*(guard for guard, _ in before), *asked])) or None
