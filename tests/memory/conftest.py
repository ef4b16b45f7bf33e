"""Fixtures for the device side: a context on the driver at hand, and no Vulkan object left behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import gpu_shared


@pytest.fixture
def context(own_context: gpu_shared.SharedGpuContext) -> gpu_shared.SharedGpuContext:
    """A context of the test's own."""
    return own_context


@pytest.fixture
def lease(context: gpu_shared.SharedGpuContext) -> Iterator[gpu_shared.DelegateLease]:
    with context.lease("tests") as lease:
        yield lease
