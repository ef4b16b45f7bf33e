"""Timelines, submits and waits on the machine's driver, also where their calls fail or the device is lost."""

from __future__ import annotations

import math
from typing import Any

import pytest

import gpu_shared
from gpu_shared import (
    Buffer,
    PreparedSubmit,
    Timeline,
    vk,
)
from gpu_shared.commands import CommandPool
from gpu_shared.device import _finish
from gpu_shared.errors import (
    DeviceLostError,
    GpuError,
    OutOfHostMemoryError,
)
from gpu_shared.lifetime import State
from gpu_shared.timeline import set_polling
from gpu_shared.waiting import until_done
from tests.calls import noted


def test_timeline_waits(device: Any) -> None:
    timeline, pool = Timeline(device), CommandPool(device)
    submit = PreparedSubmit(timeline, [pool.allocate().begin().end()])
    assert timeline.submitted == timeline.completed == 0
    timeline.wait()
    with pytest.raises(ValueError, match="never end"):
        timeline.wait(1)
    with pytest.raises(ValueError, match="deadlock"):
        submit.submit(wait_value=1)
    for expected in range(1, 6):
        assert submit.submit(wait_value=expected - 1) == expected
        timeline.wait(expected, timeout_s=120)
    assert timeline.completed == 5


def test_a_wait_asks_for_the_value_before_it_blocks(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    timeline, pool = Timeline(device), CommandPool(device)
    submit, functions = PreparedSubmit(timeline, [pool.allocate().begin().end()]), timeline._state._functions
    blocked = noted(monkeypatch, functions, "vkWaitSemaphores", lambda *given: 1)
    timeline._polls = True  # as for a GPU
    monkeypatch.setattr(gpu_shared.timeline, "_POLLING", 30.0)
    timeline.wait(submit.submit())
    assert timeline._state.completed == 1 and not blocked
    monkeypatch.setattr(gpu_shared.timeline, "_polled_until", math.inf)  # another thread does
    timeline.wait(submit.submit())
    monkeypatch.setattr(gpu_shared.timeline, "_polled_until", 0.0)
    monkeypatch.setattr(gpu_shared.timeline, "_POLLING", 0.001)
    with monkeypatch.context() as slow:
        slow.setattr(timeline._state, "refresh", lambda *_: timeline._state.completed)  # it takes longer
        timeline.wait(submit.submit())
    assert timeline._state.completed == 3 and len(blocked) == 2
    set_polling(0)
    timeline.wait(submit.submit())
    assert timeline._state.completed == 4 and len(blocked) == 3
    with pytest.raises(ValueError, match="at least 0"):
        set_polling(-1)


def test_the_greatest_value_of_a_timeline_is_a_lost_device(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    timeline = Timeline(device)
    state = timeline._state
    lost: list[DeviceLostError] = []
    monkeypatch.setattr(state._reaper, "mark_lost", lost.append)

    def read(_device: Any, _semaphore: Any, out: Any) -> int:
        out[0] = 2**64 - 1
        return 0

    state.submitted = 1  # promised
    monkeypatch.setattr(state._functions, "vkGetSemaphoreCounterValue", read)
    with pytest.raises(DeviceLostError, match="vkGetSemaphoreCounterValue"):
        state.refresh()
    assert len(lost) == 1 and state.completed == 0
    state.submitted = 0


def test_a_wait_that_times_out(device: Any) -> None:
    timeline = Timeline(device)
    timeline._state.submitted = 1  # promised, never sent
    with pytest.raises(TimeoutError, match=r"0\.01 s"):
        timeline.wait(1, timeout_s=0.01)
    timeline._state.submitted = 0


def test_device_lost_is_sticky_on_the_timeline(device: Any) -> None:
    timeline, pool = Timeline(device), CommandPool(device)
    submit = PreparedSubmit(timeline, [pool.allocate().begin().end()])
    timeline.wait(submit.submit())
    real, calls = submit._submit, []

    def lost(*arguments: Any) -> Any:
        calls.append(arguments)
        return -4

    submit._submit = lost
    with pytest.raises(DeviceLostError, match=r"vkQueueSubmit returned VK_ERROR_DEVICE_LOST"):
        submit.submit()
    submit._submit = real
    for use in (submit.submit, timeline.wait, lambda: timeline.completed):
        with pytest.raises(DeviceLostError, match="vkQueueSubmit"):
            use()
    assert len(calls) == 1
    assert timeline.lost
    assert timeline.submitted == 1


def test_a_loss_is_recorded_once_the_device_is_idle(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call that reports a loss has waited for its own work alone: other work may still be executed."""
    timeline = Timeline(device)
    waits: list[int] = [-1, 0]  # the first fails for lack of memory
    idle = device.fn.vkDeviceWaitIdle

    def wait_idle(raw: Any) -> int:
        assert not timeline.lost
        return waits.pop(0) or idle(raw)

    with monkeypatch.context() as patched:
        patched.setattr(device.fn, "vkDeviceWaitIdle", wait_idle)
        with pytest.raises(DeviceLostError, match="vkWaitSemaphores"):
            timeline._state.fail(-4, "vkWaitSemaphores")
        assert timeline.lost and not waits
        with pytest.raises(DeviceLostError, match="vkQueueSubmit"):
            timeline._state.fail(-4, "vkQueueSubmit")  # it waits once


def test_a_loss_is_not_recorded_where_the_device_may_not_be_idle(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpu_shared.waiting._PAUSES", (0.0, 0.0))
    timeline = Timeline(device)
    with monkeypatch.context() as patched:
        patched.setattr(device.fn, "vkDeviceWaitIdle", lambda raw: -1)
        with pytest.raises(GpuError, match="VK_ERROR_OUT_OF_HOST_MEMORY"):
            timeline._state.fail(-4, "vkWaitSemaphores")
    assert not timeline.lost


def test_a_failed_submit_promises_nothing(device: Any) -> None:
    timeline, pool = Timeline(device), CommandPool(device)
    submit = PreparedSubmit(timeline, [pool.allocate().begin().end()])
    real = submit._submit
    submit._submit = lambda *arguments: -1
    with pytest.raises(GpuError, match="VK_ERROR_OUT_OF_HOST_MEMORY"):
        submit.submit()
    submit._submit = real
    assert submit.submit() == 1
    timeline.wait()


def test_a_device_goes_only_once_it_is_known_to_be_idle(device: Any) -> None:
    happened, fails = [], 2
    wait_idle, destroy = device.fn.vkDeviceWaitIdle, device._native.destroy

    def wait(raw: Any) -> Any:
        happened.append("wait")
        return -1 if len(happened) <= fails else wait_idle(raw)

    def ended() -> None:
        happened.append("destroy")
        destroy()

    device.fn.vkDeviceWaitIdle = wait
    device._native.destroy = ended
    device.close()
    assert happened == ["wait", "wait", "wait", "destroy"]


@pytest.mark.parametrize(("results", "tried"), [([-1, -2, 0], 3), ([-1, -4], 2), ([-4], 1)])
def test_a_wait_for_what_is_to_be_freed_is_made_again_where_memory_lacks(results: Any, tried: Any) -> None:
    made = iter(results)
    until_done(lambda: vk.check(next(made), "vkWaitSemaphores"))
    assert list(made) == results[tried:]


def test_a_wait_that_goes_on_failing_frees_nothing(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpu_shared.waiting._PAUSES", (0.0, 0.0))
    with pytest.raises(OutOfHostMemoryError):
        until_done(lambda: vk.check(-1, "vkWaitSemaphores"))
    timeline, buffer = Timeline(device), Buffer(device, 64)
    natives, reaper = [device._native, buffer._native, timeline._native], device.reaper
    timeline._state.submitted = 1  # promised, never sent
    device.fn.vkDeviceWaitIdle = lambda raw: -1
    device.close()
    assert buffer.closed and not any(native.state is State.DESTROYED for native in natives)
    _finish(reaper, lambda: None, natives[0])
    assert all(native.state is State.DESTROYED for native in natives)
