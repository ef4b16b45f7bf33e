"""Random numbers of tests do not depend on the tests that ran before, in whatever order workers take them."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

RNG = np.random.default_rng(1)
RNG.random(3)  # by another test


def test_a_modules_generator_starts_from_the_tests_name(request: pytest.FixtureRequest) -> None:
    assert RNG.random() == np.random.default_rng(zlib.crc32(request.node.name.encode())).random()
