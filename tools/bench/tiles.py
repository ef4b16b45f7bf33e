"""Every tiling of single products, convolutions and attentions: the measurements that the costs in the tables of tiles
are fitted to.

    python -m tools.bench.tiles [--only NAME ...] [--smallest] [--json FILE]

For each operator of the bench that has a choice of tilings: the time with the one that is chosen, the fastest of all, and how
much of the time is lost by the choice. The JSON has every candidate's time. `vkep tune` chooses among the same candidates.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from tools.bench.kernel_cases import Case, Sizes, cases
from vkep.device.measure.kernel_timer import KernelTimer, Operand
from vkep.kernels.tuning import Choice, Trial


@dataclass
class Tilings:
    """One operator's problem: milliseconds as it is chosen, and with each candidate (of those that run)."""

    name: str
    problem: str
    chosen_ms: float
    candidates: list[tuple[Choice, float]]

    @property
    def best(self) -> tuple[Choice, float]:
        return min(self.candidates, key=lambda candidate: candidate[1])

    @property
    def lost(self) -> float:
        """The share of the chosen one's time that the fastest saves; 0 where noise makes it negative."""
        return max(0.0, 1 - self.best[1] / self.chosen_ms)

    def __str__(self) -> str:
        choice, best = self.best
        of_all = f"best of {len(self.candidates):3}: {best:8.4f} ms {choice}, lost {self.lost:.0%}"
        return f"{self.name:44} {self.chosen_ms:8.4f} ms, {of_all}"


class _Timer(KernelTimer):
    """Also records all memory that it allocates, that of partial sums and packed weights included."""

    def __init__(self) -> None:
        super().__init__()
        self._given: list[Operand] = []

    def operand(self, data: np.ndarray | None = None, nbytes: int = 0) -> Operand:
        self._given.append(super().operand(data, nbytes))
        return self._given[-1]

    def release_all(self) -> None:
        self.release(*self._given)
        self._given.clear()


def measure_tilings(
    sizes: Sizes | None = None, only: Sequence[str] = (), tell: Callable[[str], None] = print
) -> list[Tilings]:
    """Measure every candidate of the operators whose name contains one of ``only`` (none: all that ask for a tiling).

    Raises `DriverNotFoundError`, `DeviceNotFoundError`.
    """
    timer = _Timer()
    try:
        found = []
        for case in cases(sizes or Sizes.of(timer.caps.device_type)):
            chooses = case.flops and "(torch" not in case.name  # a duplicate for torch's other layout
            if chooses and (not only or any(name in case.name for name in only)):
                for tilings in _of_case(timer, case):
                    found.append(tilings)
                    tell(str(tilings))
        if found:
            tell(f"lost by the choice: {statistics.mean(t.lost for t in found):.1%} on average")
        return found
    finally:
        timer.close()


def _of_case(timer: _Timer, case: Case) -> list[Tilings]:
    asking = Trial()
    try:
        timer.choices = asking
        chosen_ms = _milliseconds(timer, case)
        found = []
        for problem, question in asking.asked.items():
            times: list[tuple[Choice, float]] = []
            for choice in question.candidates:
                timer.choices = {problem: choice}
                times.append((choice, _milliseconds(timer, case)))
            if len(times) > 1:
                found.append(Tilings(case.name, problem, chosen_ms, times))
        return found
    finally:
        timer.choices = {}


def _milliseconds(timer: _Timer, case: Case) -> float:
    try:
        return timer.milliseconds(case.make(timer)[0])
    finally:
        timer.release_all()


def main(arguments: list[str] | None = None) -> int:
    """Print a line for each problem."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench.tiles", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="NAME", help="operators whose name contains one of these"
    )
    parser.add_argument("--smallest", action="store_true", help="the smallest sizes, and few operators")
    parser.add_argument("--json", type=Path, help="write every candidate's time to this file")
    given = parser.parse_args(arguments)
    found = measure_tilings(
        Sizes.smallest() if given.smallest else None, given.only, lambda line: print(line, flush=True)
    )
    if not found:
        print("no operator here has a choice of tilings")
    if given.json is not None:
        given.json.write_text(json.dumps([asdict(t) for t in found], indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
