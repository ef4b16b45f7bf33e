"""With ``--interpreter`` there is no device: a test that opens a session itself is skipped."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_shared import SharedGpuContext
from tests.nightly import interpreting
from vkep import InferenceSession


@pytest.fixture(autouse=True)
def no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    def skip(*_: Any, **__: Any) -> None:
        pytest.skip("needs a device")

    if interpreting():
        monkeypatch.setattr(InferenceSession, "__init__", skip)
        monkeypatch.setattr(SharedGpuContext, "create", skip)
