"""The plans of the model catalog are those that were kept: a change that is meant to change none does not."""

from __future__ import annotations

import pytest

from tools import plan_digests

_CASES = {case: (model, options) for case, model, options in plan_digests.cases()}


@pytest.fixture(autouse=True)
def det_declined() -> None:
    """The catalog has no Det; see conftest.py."""


def test_every_case_is_kept() -> None:
    assert plan_digests.kept().keys() == _CASES.keys()


@pytest.mark.parametrize("case", _CASES)
def test_plans_are_those_that_were_kept(case: str) -> None:
    model, options = _CASES[case]
    assert plan_digests.digests(model, options) == plan_digests.kept()[case], (
        "python -m tools.plan_digests --write keeps the new plans; the commit says what changed in them and why"
    )
