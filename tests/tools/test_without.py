"""The combinations of features that `tools.without` runs."""

from __future__ import annotations

import itertools

from gpu_shared.capabilities import FEATURE_NAMES, REQUIRED_FEATURES
from tools.without import FEATURES, combinations


def test_any_two_features_are_on_and_off_together() -> None:
    made = combinations(FEATURES)
    for a, b in itertools.combinations(FEATURES, 2):
        assert {(a in without, b in without) for without in made} == set(itertools.product((False, True), repeat=2))
    assert len(made) < 16 and set(FEATURES) <= FEATURE_NAMES - REQUIRED_FEATURES
