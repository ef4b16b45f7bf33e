"""Cases of damaged files, their outcomes, and counts of them."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from dataclasses import dataclass


@dataclass(frozen=True)
class Task:
    what: str
    seed: int
    number: int


@dataclass(frozen=True)
class Outcome:
    """``said`` is "answer" or an exception's name; ``wrong`` is "" or the error that was found."""

    task: Task
    said: str
    wrong: str = ""


class Counts:
    """Outcomes by kind of file; wrong ones are printed, three of each sort."""

    def __init__(self) -> None:
        self.said: dict[str, Counter[str]] = defaultdict(Counter)
        self.wrong: list[Outcome] = []
        self._sorts: Counter[str] = Counter()

    def add(self, outcome: Outcome) -> None:
        what = outcome.task.what
        self.said[what][outcome.said.split(":")[0]] += 1
        if outcome.wrong:
            self.wrong.append(outcome)
            sort = re.sub(r"\d+|'[^']*'", "#", outcome.wrong)
            self._sorts[sort] += 1
            if self._sorts[sort] <= 3:
                print(f"{what} seed {outcome.task.seed} case {outcome.task.number}: {outcome.wrong}", flush=True)

    @property
    def total(self) -> int:
        return sum(n for counts in self.said.values() for n in counts.values())

    def report(self) -> str:
        lines = [f"{w}: {sum(c.values())} cases: {json.dumps(dict(c.most_common()))}" for w, c in self.said.items()]
        return "\n".join([*lines, f"{self.total} files, {len(self.wrong)} with something wrong"])
