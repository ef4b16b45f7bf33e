"""One Ray cluster of this machine for the tests that need one; they are skipped where Ray is not installed."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def cluster(vulkan: object) -> Iterator[None]:
    """A Ray instance with four processors' worth of slots, ended after the tests."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("needs Ray: pip install vkep[ray] (docs/scaling.md says how these tests are run)")
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "registry")])
    import ray

    ray.init(num_cpus=4, include_dashboard=False, object_store_memory=256 << 20, logging_level="warning")
    yield
    ray.shutdown()
