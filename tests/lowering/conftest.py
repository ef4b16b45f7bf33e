"""In these tests Det is the operator that Vulkan declines, whatever kernels there are."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _declined(det_declined: None) -> None:
    pass
