"""What only runs at night (`pytest --nightly`): long cases, of which others of their kind run by default."""

from __future__ import annotations

import itertools
import os
from collections.abc import Collection, Hashable, Iterable, Sequence
from typing import Any

import pytest


def nightly() -> bool:
    """Whether this run, or the one that started this process, has ``--nightly``."""
    return os.environ.get("VKEP_TEST_NIGHTLY") == "1"


def interpreting() -> bool:
    """Whether operators run by the interpreter of operations (``--interpreter``), and no test has a device."""
    return os.environ.get("VKEP_TEST_INTERPRETER") == "1"


def nightly_but(by_default: Collection[Any], values: Iterable[Any]) -> list[Any]:
    """``values`` for ``parametrize``; all but those ``by_default`` run at night only."""
    return [value if value in by_default else _at_night(value) for value in values]


def beyond_pairs(combinations: Sequence[Sequence[Hashable]]) -> list[int]:
    """The positions of the combinations that are not needed for each value of an axis to meet each of the others' once."""
    met = [set(itertools.combinations(enumerate(values), 2)) for values in combinations]
    left, beyond = set[Any]().union(*met), set(range(len(met)))
    while left:
        best = max(beyond, key=lambda k: (len(met[k] & left), -k))
        beyond.remove(best)
        left -= met[best]
    return sorted(beyond)


def products_beyond_pairs(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """Of the tests with three or more axes of parameters, the cases that are `beyond_pairs`."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        cases.setdefault(item.nodeid.split("[")[0], []).append(item)
    beyond = []
    for of_test in cases.values():
        if of_test[0].get_closest_marker("every_case"):
            continue
        values = [_values_of_axes(item) for item in of_test]
        if len(values[0]) > 2:
            beyond += [of_test[k] for k in beyond_pairs(values)]
    return beyond


def _values_of_axes(item: pytest.Item) -> list[tuple[int, ...]]:
    """What tells the values of each decorator, and of each fixture that has parameters, from its others: objects' identities."""
    params = dict(item.callspec.params) if hasattr(item, "callspec") else {}
    marks = [mark.args[0] for mark in item.iter_markers("parametrize")]
    axes = [[name.strip() for name in names.split(",")] if isinstance(names, str) else names for names in marks]
    found = [tuple(id(params.pop(name)) for name in names) for names in axes]
    return found + [(id(value),) for value in params.values()]


def alternately(values: Iterable[Any], others: Sequence[Any]) -> list[Any]:
    """All combinations, for ``parametrize``. By default each of ``values`` runs with one of ``others``, these in turn."""
    return [
        pytest.param(value, other, id=f"{value}-{other}", marks=[] if k % len(others) == j else pytest.mark.nightly)
        for k, value in enumerate(values)
        for j, other in enumerate(others)
    ]


def _at_night(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.nightly)
