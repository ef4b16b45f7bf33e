"""Fixtures for the device side: a context on the driver at hand, and no Vulkan object left behind."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest

import gpu_shared
from gpu_shared.errors import DriverNotFoundError


@pytest.fixture
def context() -> Iterator[gpu_shared.SharedGpuContext]:
    """A context of the test's own. Without a driver the test fails, unless VKEP_ALLOW_NO_GPU=1 lets it be skipped."""
    gc.collect()
    before = gpu_shared.live_counts()
    try:
        made = gpu_shared.SharedGpuContext.create({"gpu_shared_context_token": "memory tests"})
    except DriverNotFoundError as error:
        if os.environ.get("VKEP_ALLOW_NO_GPU") == "1":
            pytest.skip(f"no Vulkan driver: {error}")
        pytest.fail(f"no Vulkan driver (VKEP_ALLOW_NO_GPU=1 skips these tests): {error}")
    with made:
        yield made
    messages = list(made.validation_messages)
    del made
    gc.collect()
    assert gpu_shared.live_counts() == before
    assert [str(m) for m in messages] == []


@pytest.fixture
def lease(context: gpu_shared.SharedGpuContext) -> Iterator[gpu_shared.DelegateLease]:
    with context.lease("tests") as lease:
        yield lease
