"""The capabilities record: factories, JSON, restriction, what it refuses."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from gpu_shared import query, vk
from gpu_shared.capabilities import FEATURE_NAMES, REQUIRED_FEATURES, CooperativeMatrixShape, DeviceCapabilities


def test_factories_take_changes() -> None:
    device = DeviceCapabilities.for_tests(subgroup_size=32, name="imagined")
    assert (device.name, device.subgroup_size) == ("imagined", 32)
    assert device.has("float16", "int64")
    least = DeviceCapabilities.generic()
    assert least.features >= REQUIRED_FEATURES
    assert not least.has("float16")
    assert least.max_shared_memory_bytes == 16384


def test_json() -> None:
    shape = CooperativeMatrixShape(16, 16, 16, "float16", "float16", "float32", "float32")
    device = DeviceCapabilities.for_tests(
        features=FEATURE_NAMES, cooperative_matrix_shapes=(shape,), extensions=frozenset({"VK_b", "VK_a"})
    )
    data = json.loads(device.to_json())
    assert data["extensions"] == ["VK_a", "VK_b"]
    assert data["cooperative_matrix_shapes"] == [dataclasses.asdict(shape)]


def test_the_number_of_cores_is_reported_where_it_is_known() -> None:
    assert DeviceCapabilities.for_tests().compute_units is None
    assert "compute units" not in str(DeviceCapabilities.for_tests())
    device = DeviceCapabilities.for_tests(compute_units=60)
    assert "60 compute units" in str(device)
    assert json.loads(device.to_json())["compute_units"] == 60


@pytest.mark.parametrize("extension", query.CORE_COUNTS)
def test_core_counts_are_asked_of_structures_that_exist(gpu: Any, extension: Any) -> None:
    struct, fields = query.CORE_COUNTS[extension]
    made = vk.make(struct)
    assert made.sType and all(getattr(made, field) == 0 for field in fields)


def test_restriction_drops_what_is_off() -> None:
    shape = CooperativeMatrixShape(16, 16, 16, "float16", "float16", "float32", "float32")
    device = DeviceCapabilities.for_tests(features=FEATURE_NAMES, cooperative_matrix_shapes=(shape,))
    less = device.restricted_to((), {"float16"})
    assert less.features == {"float16"}
    assert less.cooperative_matrix_shapes == ()


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ValueError, match="float61"):
        DeviceCapabilities.for_tests().has("float61")
    with pytest.raises(ValueError, match="unknown features"):
        DeviceCapabilities(name="x", features=frozenset({"magic"}))
    with pytest.raises(ValueError, match="device_type"):
        DeviceCapabilities(name="x", device_type="quantum")
