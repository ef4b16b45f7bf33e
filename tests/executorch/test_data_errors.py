"""Data that an operator does not allow, in a program."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.executorch.cases import DATA
from vkep.errors import InvalidInputError
from vkep.executorch import Program

EMBEDDING = DATA / "embedding"


def test_an_index_out_of_range_is_a_bad_input(load: Callable[..., Program]) -> None:
    arrays = np.load(EMBEDDING / "cases.npz")
    good = arrays["case0_input0"]
    method = load(EMBEDDING / "vulkan.pte").load_method("forward")
    for wrong in (10**6, -(10**6)):
        bad = good.copy()
        bad.reshape(-1)[-1] = wrong
        with pytest.raises(InvalidInputError, match="embedding"):
            method.execute([bad])
        np.testing.assert_allclose(method.execute([good])[0], arrays["case0_expected0"], rtol=1e-5, atol=1e-5)
