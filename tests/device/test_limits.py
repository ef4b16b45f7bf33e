"""Limits of a device: measured, kept, and what they say of a plan."""

from __future__ import annotations

import datetime
import logging
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpu_shared.capabilities import CooperativeMatrixShape, DeviceCapabilities
from gpu_shared.instance import list_devices, select_device
from tests.devices import GPU_OF_CODES
from vkep.cache import write_sealed
from vkep.device.measure.limits import DeviceLimits, device_limits
from vkep.kernels.rate import arithmetic, cooperative_arithmetic
from vkep.plan.records import Dispatch, PipelineKey, Plan, ShaderVariant


def test_limits_are_measured_once_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("VKEP_CACHE_DIR", str(tmp_path))
    caps = select_device(list_devices()).capabilities
    found = device_limits(caps)
    assert found.device == caps.name
    assert min(found.copy_rate, found.float32_flops) > 0
    assert found.int8_ops >= found.float16_flops >= found.float32_flops
    monkeypatch.setattr("vkep.device.measure.limits.measure_limits", lambda timer: DeviceLimits("again", 1, 2, 3, 4))
    assert device_limits(caps) == found
    (path,) = (tmp_path / "limits").iterdir()
    write_sealed(path, b'{"device": 1}')
    with caplog.at_level(logging.WARNING, "vkep"):
        assert device_limits(caps).device == "again"
    assert str(path) in caplog.text
    assert device_limits(caps, max_age_s=0).device == "again"


def test_limits_say_when_they_were_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VKEP_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("vkep.device.measure.limits.KernelTimer", lambda uuid: SimpleNamespace(close=lambda: None))
    now = datetime.datetime.now(datetime.timezone.utc)
    old, new = (str(now - datetime.timedelta(hours=hours)) for hours in (1, 0))
    made = iter([DeviceLimits("d", 1, 9, 9, 9, old), DeviceLimits("d", 4, 5, 6, 7, new)])
    monkeypatch.setattr("vkep.device.measure.limits.measure_limits", lambda timer: next(made))
    caps = DeviceCapabilities.for_tests()
    assert device_limits(caps, max_age_s=600).age_s == pytest.approx(3600, abs=60)
    assert device_limits(caps).copy_rate == 1
    best = DeviceLimits("d", 4, 9, 9, 9, new)  # other programs only lower what is measured
    assert device_limits(caps, max_age_s=600) == best
    assert device_limits(caps, max_age_s=600) == best
    assert DeviceLimits("d", 1, 2, 3, 4).age_s == float("inf")


def test_a_dispatch_is_bound_by_what_takes_longer() -> None:
    limits = DeviceLimits("d", copy_rate=2.0, float32_flops=10.0, float16_flops=100.0, int8_ops=200.0)
    pipelines = tuple(PipelineKey(ShaderVariant("k.comp", (("T", t),))) for t in ("float", "float16_t", "int8_t"))
    grid = (1, 1, 1)
    dispatches = (
        Dispatch(0, b"", (), grid, False, "traffic", flops=10, bytes=200),
        Dispatch(0, b"", (), grid, False, "arithmetic", flops=5000, bytes=200),
        Dispatch(1, b"", (), grid, False, "halves", flops=5000, bytes=20),
        Dispatch(2, b"", (), grid, False, "codes", flops=5000, bytes=20),
    )
    plan = Plan((), (), 0, (), pipelines, dispatches)
    assert [limits.of_dispatch(plan, d) for d in dispatches] == [100.0, 500.0, 50.0, 25.0]
    assert limits.of_plans([plan, plan]) == 1350.0


def test_the_arithmetic_of_a_call_is_counted() -> None:
    caps = DeviceCapabilities.for_tests()
    one, two = (arithmetic(steps, caps, None) for steps in (1, 2))
    assert two.flops == 2 * one.flops
    assert one.flops == 2 * one.spec["CHAINS"] * one.spec["LOCAL_X"] * one.grid[0]


@pytest.mark.parametrize("shape", GPU_OF_CODES.cooperative_matrix_shapes)
def test_matrices_count_their_products(shape: CooperativeMatrixShape) -> None:
    call = cooperative_arithmetic(shape, GPU_OF_CODES, None, 3)
    subgroups = call.spec["LOCAL_X"] // 32 * call.grid[0]
    assert call.flops == 2 * 3 * call.spec["CHAINS"] ** 2 * shape.m * shape.n * shape.k * subgroups
    assert (call.spec["MAT_M"], call.spec["MAT_N"], call.spec["MAT_K"]) == (shape.m, shape.n, shape.k)
