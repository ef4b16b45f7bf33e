"""`vkep.Replicas`: one model on several devices (here one device twice, with two contexts)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import vkep
from tests.session.models import model
from vkep.session.replicas import chosen_devices

SQUARE = model("g (float[n,3] x) => (float[n,3] y) { y = Mul(x, x) }")


def feeds(value: float) -> dict[str, Any]:
    return {"x": np.full((2, 3), value, np.float32)}


def lose(session: vkep.InferenceSession) -> None:
    """What a driver's VK_ERROR_DEVICE_LOST does to the session's context. A lost device executes nothing any more."""
    device = session.context.device
    with session.context.with_locked_queue() as queue, contextlib.suppress(vkep.DeviceLostError):
        device.fn.vkQueueWaitIdle(queue)
        session.context.timeline._state.fail(-4, "a test")


@pytest.fixture
def two(vulkan: vkep.DeviceInfo, no_leak: object) -> Iterator[vkep.Replicas]:
    with vkep.Replicas(SQUARE, devices=[vulkan.index] * 2) as replicas:
        yield replicas


def test_runs_go_to_both_devices_and_results_stay_in_order(two: vkep.Replicas) -> None:
    first, second = two.sessions
    assert first.context is not second.context
    assert [y[0, 0] for (y,) in two.map(map(feeds, range(20)))] == [v * v for v in range(20)]
    two._running[0] = 5  # a busy device is left alone
    assert two._begin({}) == 1
    assert [a.name for a in two.get_inputs() + two.get_outputs()] == ["x", "y"]


@pytest.mark.usefixtures("no_layers")
def test_a_lost_device_costs_a_new_context_and_no_answer(two: vkep.Replicas) -> None:
    assert two.run(["y"], feeds(3))[0][0, 0] == 9
    for session in two.sessions:
        lose(session)
    assert [y[0, 0] for (y,) in two.map(map(feeds, range(20)))] == [v * v for v in range(20)]
    assert [one.renewals for one in two._sessions] == [1, 1]


@pytest.mark.usefixtures("no_layers")
def test_a_device_that_stays_lost_is_replaced_by_the_others(
    two: vkep.Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object) -> Any:
        raise vkep.DeviceLostError("a test")

    monkeypatch.setattr(two._sessions[0], "run", gone)
    assert [y[0, 0] for (y,) in two.map(map(feeds, range(6)))] == [v * v for v in range(6)]
    monkeypatch.setattr(two._sessions[1], "run", gone)
    with pytest.raises(vkep.DeviceLostError):
        two.run(None, feeds(1))
    assert two._running == [0, 0]


def test_a_new_context_that_cannot_be_had_is_said(two: vkep.Replicas, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> Any:
        raise vkep.DeviceNotFoundError("opening", hint="it is gone")

    for one in two._sessions:
        lose(one.session)
        monkeypatch.setattr(one, "_open", refuse)
    with pytest.raises(vkep.DeviceLostError, match="it is gone"):
        two.run(None, feeds(1))


def test_wrong_inputs_are_the_runs_error_and_leave_the_rest(two: vkep.Replicas) -> None:
    results = two.map([feeds(1), {"x": np.zeros((2, 4), np.float32)}])
    assert next(results)[0][0, 0] == 1
    with pytest.raises(vkep.InvalidInputError):
        next(results)
    assert two.run(None, feeds(2))[0][0, 0] == 4


def test_devices(vulkan: vkep.DeviceInfo) -> None:
    everything = chosen_devices("all")
    kinds = {device.capabilities.device_type for device in everything}
    assert kinds == {"cpu"} or "cpu" not in kinds
    with pytest.raises(ValueError, match="expected 'all' or a list"):
        chosen_devices("llvmpipe")
    with pytest.raises(vkep.DeviceNotFoundError, match="devices is empty"):
        chosen_devices([])
    with pytest.raises(vkep.DeviceNotFoundError, match="no such"):
        vkep.Replicas(SQUARE, devices=[0, "no such"])
    with pytest.raises(ValueError, match="device is 0"):
        vkep.Replicas(SQUARE, device=0)
