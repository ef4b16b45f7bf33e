"""Fixtures of the shared runtime's tests: a device that must be there, and no Vulkan object left behind."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import gpu_shared
from gpu_shared.errors import DriverNotFoundError


@pytest.fixture(scope="session")
def gpu() -> gpu_shared.DeviceInfo:
    """The device that the tests run on. Without one tests fail, unless VKEP_ALLOW_NO_GPU=1 lets them be skipped."""
    try:
        return gpu_shared.select_device(gpu_shared.list_devices())
    except DriverNotFoundError as error:
        if os.environ.get("VKEP_ALLOW_NO_GPU") == "1":
            pytest.skip(f"no Vulkan driver: {error}")
        pytest.fail(f"no Vulkan driver (VKEP_ALLOW_NO_GPU=1 skips these tests): {error}")


@pytest.fixture
def alive() -> Iterator[Callable[[], dict[str, int]]]:
    """Counts the Vulkan objects made since the test began; at the test's end there must be none."""
    gc.collect()
    before = gpu_shared.live_counts()

    def since() -> dict[str, int]:
        counts = gpu_shared.live_counts()
        return {kind: n - before.get(kind, 0) for kind, n in counts.items() if n != before.get(kind, 0)}

    yield since
    if since():
        gc.collect()
    assert since() == {}


@pytest.fixture
def no_leaks(alive: Callable[[], dict[str, int]]) -> None:
    """Every Vulkan object that the test made is gone at its end."""


@pytest.fixture
def context(gpu: gpu_shared.DeviceInfo, no_leaks: None) -> Iterator[gpu_shared.SharedGpuContext]:
    with gpu_shared.SharedGpuContext.create({"gpu_shared_context_token": "tests"}, device=gpu) as made:
        yield made


@pytest.fixture
def device(gpu: gpu_shared.DeviceInfo, no_leaks: None) -> Iterator[gpu_shared.Device]:
    with gpu_shared.Instance("test") as instance:
        yield gpu_shared.Device(instance, gpu)


@pytest.fixture(scope="session")
def add_spirv() -> bytes:
    """y[i] = x[i] + ADDEND: push constants x, y (addresses) and n; spec constants 1 (local size) and 4 (ADDEND)."""
    return (Path(__file__).parent / "data" / "add.spv").read_bytes()
