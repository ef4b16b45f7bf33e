"""VKEP_WITHOUT: features that devices do without."""

from __future__ import annotations

import pytest

from gpu_shared import query
from gpu_shared.device import Device
from gpu_shared.instance import Instance


def test_features_are_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(query.WITHOUT_VARIABLE, "subgroup_shuffle, float64")
    with Instance() as instance, Device(instance) as device:
        assert not device.capabilities.features & {"subgroup_shuffle", "float64"}
        assert "buffer_device_address" in device.capabilities.features


@pytest.mark.parametrize("name", ["int65", "buffer_device_address"])
def test_a_name_that_cannot_be_switched_off_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(query.WITHOUT_VARIABLE, f"int64,{name}")
    with pytest.raises(ValueError, match=rf"VKEP_WITHOUT names {name}; it may name .*int64"):
        query.switched_off()
