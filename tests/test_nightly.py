"""What runs at night only, and what stays by default."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.nightly import alternately, nightly_but, pairs

ROOT = Path(__file__).resolve().parents[1]


def _by_default(parameters: list[pytest.ParameterSet]) -> list[tuple[object, ...]]:
    return [tuple(p.values) for p in parameters if not p.marks]


@pytest.mark.parametrize("sizes", [(6, 4, 2), (4, 4, 2), (3, 2, 2, 5), (2, 3), (1, 1, 7)], ids=str)
def test_pairs_of_values_meet_by_default(sizes: tuple[int, ...]) -> None:
    axes = [[f"{axis}{k}" for k in range(size)] for axis, size in enumerate(sizes)]
    every = pairs(*axes)
    assert [tuple(p.values) for p in every] == list(itertools.product(*axes))
    by_default = _by_default(every)
    for first, second in itertools.combinations(range(len(axes)), 2):
        assert {(one[first], one[second]) for one in by_default} == set(itertools.product(axes[first], axes[second]))
    largest = sorted(sizes)[-2:]
    assert len(by_default) <= 1.5 * largest[0] * largest[1]


def test_values_run_with_the_others_in_turns() -> None:
    every = alternately("abc", ["x", "y"])
    assert [tuple(p.values) for p in every] == list(itertools.product("abc", "xy"))
    assert _by_default(every) == [("a", "x"), ("b", "y"), ("c", "x")]
    named = nightly_but(("b",), "abc")
    assert [getattr(p, "values", (p,)) for p in named] == [("a",), ("b",), ("c",)]
    assert [bool(getattr(p, "marks", ())) for p in named] == [True, False, True]


def _collected(*arguments: str) -> set[str]:
    command = [sys.executable, "-m", "pytest", "-n", "0", "-q", "-p", "no:cacheprovider", "--collect-only"]
    environment = {name: value for name, value in os.environ.items() if name != "VKEP_TEST_NIGHTLY"}
    done = subprocess.run(
        [*command, *arguments, "tests/session/test_models.py"],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return {line for line in done.stdout.splitlines() if "::" in line}


def test_the_option_adds_to_what_runs_by_default() -> None:
    usual, all_ = _collected(), _collected("--nightly")
    assert usual < all_
    assert {name.split("[")[0] for name in usual} == {name.split("[")[0] for name in all_}
