"""In these tests Det is the operator that Vulkan declines, whatever kernels there are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gpu_shared.capabilities import DeviceCapabilities
from vkep.passes import attention
from vkep.passes.match_attention import Spelled


@pytest.fixture(autouse=True)
def _declined(det_declined: None) -> None:
    pass


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[Spelled]:
    """The spelled-out attention that was taken as one."""
    found: list[Spelled] = []
    inner: Callable[..., Any] = attention._lowered

    def lowered(spelled: Spelled, caps: DeviceCapabilities) -> Any:
        made = inner(spelled, caps)
        if made is not None:
            found.append(spelled)
        return made

    monkeypatch.setattr(attention, "_lowered", lowered)
    return found
