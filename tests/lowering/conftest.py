"""In these tests Det is the operator that Vulkan declines, whatever kernels there are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gpu_shared.capabilities import DeviceCapabilities
from vkep.passes import attention
from vkep.passes.match_attention import AttentionMatch


@pytest.fixture(autouse=True)
def _declined(det_declined: None) -> None:
    pass


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[AttentionMatch]:
    """The attention that was matched and replaced."""
    found: list[AttentionMatch] = []
    inner: Callable[..., Any] = attention._as_sdpa

    def lowered(match: AttentionMatch, caps: DeviceCapabilities) -> Any:
        made = inner(match, caps)
        if made is not None:
            found.append(match)
        return made

    monkeypatch.setattr(attention, "_as_sdpa", lowered)
    return found
