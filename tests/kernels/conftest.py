"""One device for all kernel tests, and the two kinds of device that selection functions tell apart."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import pytest

from gpu_shared.capabilities import DeviceCapabilities
from tests.kernels.harness import EACH_DEVICE, Harness, as_discrete
from vkep.kernels import all_kernels
from vkep.kernels.reductions import norm


@pytest.fixture(scope="module")
def gpu() -> Iterator[Harness]:
    all_kernels()  # a problem's kernels are known where their modules are imported
    harness = Harness()
    yield harness
    harness.close()


@pytest.fixture(params=EACH_DEVICE)
def caps(request: pytest.FixtureRequest, gpu: Harness) -> DeviceCapabilities:
    """This device as it is selected for as a CPU driver, as a GPU, and as a GPU without subgroup operations."""
    if request.param == "plain":
        features = gpu.caps.features - {"subgroup_shuffle", "subgroup_arithmetic"}
        return dataclasses.replace(gpu.caps, device_type="discrete", features=features)
    return as_discrete(gpu.caps) if request.param == "discrete" else gpu.caps


@pytest.fixture(params=[None, 1, 6])
def kept(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of which a lane keeps as many elements in registers as the device prefers, or another number, as where the length is a
    size."""
    if request.param is not None:
        monkeypatch.setattr(norm, "_kept", lambda axis, split, caps: request.param)
        monkeypatch.setattr(norm, "serves_others", lambda axis: True)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20240607)
