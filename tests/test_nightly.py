"""What runs at night only, and what stays by default."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.nightly import alternately, beyond_pairs, nightly_but

ROOT = Path(__file__).resolve().parents[1]


def _by_default(parameters: list[pytest.ParameterSet]) -> list[tuple[object, ...]]:
    return [tuple(p.values) for p in parameters if not p.marks]


@pytest.mark.parametrize("sizes", [(6, 4, 2), (4, 4, 2), (3, 2, 2, 5), (2, 3), (1, 1, 7)], ids=str)
def test_pairs_of_values_meet_by_default(sizes: tuple[int, ...]) -> None:
    every = list(itertools.product(*map(range, sizes)))
    beyond = {every[k] for k in beyond_pairs(every)}
    by_default = [one for one in every if one not in beyond]
    for first, second in itertools.combinations(range(len(sizes)), 2):
        met = {(one[first], one[second]) for one in by_default}
        assert met == set(itertools.product(range(sizes[first]), range(sizes[second])))
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
        [*command, *arguments, "tests/session/test_models.py", "tests/kernels/test_choose_token.py"],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return {line for line in done.stdout.splitlines() if "::" in line}


@pytest.mark.slow
def test_the_option_adds_to_what_runs_by_default() -> None:
    usual, all_ = _collected(), _collected("--nightly")
    assert usual < all_
    assert {name.split("[")[0] for name in usual} == {name.split("[")[0] for name in all_}
    product, pairs = ({n.split("[")[1][:-1] for n in names if "test_it_is_numpys" in n} for names in (all_, usual))
    assert len(product) == 24 and len(pairs) < 12
    for one in product:  # of each two of the four parameters, all values meet
        for two in itertools.combinations(one.split("-"), 2):
            assert any(set(two) <= set(other.split("-")) for other in pairs)
