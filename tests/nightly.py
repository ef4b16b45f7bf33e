"""What only runs at night (`pytest --nightly`): long cases, of which others of their kind run by default."""

from __future__ import annotations

import itertools
import os
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import pytest


def nightly() -> bool:
    """Whether this run, or the one that started this process, has ``--nightly``."""
    return os.environ.get("VKEP_TEST_NIGHTLY") == "1"


def nightly_but(by_default: Collection[Any], values: Iterable[Any]) -> list[Any]:
    """``values`` for ``parametrize``; all but those ``by_default`` run at night only."""
    return [value if value in by_default else _at_night(value) for value in values]


def pairs(*axes: Iterable[Any]) -> list[Any]:
    """All combinations, for ``parametrize``. By default each value of an axis meets each of the others."""
    sizes = [list(axis) for axis in axes]
    combinations = list(itertools.product(*(range(len(axis)) for axis in sizes)))
    met = {places: set(itertools.combinations(enumerate(places), 2)) for places in combinations}
    left, by_default = set[Any]().union(*met.values()), set[tuple[int, ...]]()
    while left:
        best = max(combinations, key=lambda places: len(met[places] & left))
        by_default.add(best)
        left -= met[best]
    values = {places: [axis[k] for axis, k in zip(sizes, places, strict=True)] for places in combinations}
    return [pytest.param(*values[p]) if p in by_default else _at_night(*values[p]) for p in combinations]


def alternately(values: Iterable[Any], others: Sequence[Any]) -> list[Any]:
    """All combinations, for ``parametrize``. By default each of ``values`` runs with one of ``others``, these in turn."""
    return [
        pytest.param(value, other, id=f"{value}-{other}", marks=[] if k % len(others) == j else pytest.mark.nightly)
        for k, value in enumerate(values)
        for j, other in enumerate(others)
    ]


def _at_night(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.nightly)
