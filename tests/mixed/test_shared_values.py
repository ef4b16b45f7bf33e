"""What passes between regions: memory, submits, waits, and what that costs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gpu_shared
from examples import mixed_delegates as example
from tests.calls import noted
from tests.mixed.harness import X
from vkep.device.run_commands import Buffers


def test_no_value_passes_through_the_host_between_regions(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from vkep.device.tensor import DeviceTensor

    session = opened(prefer="vgf_first")
    session.run(None, {"x": X})
    written = noted(monkeypatch, DeviceTensor, "write", lambda tensor, array: tensor.shape)
    read = noted(monkeypatch, DeviceTensor, "numpy", lambda tensor: tensor.shape)
    session.run(None, {"x": X})
    assert written == [(1, 3, 8, 8)] and read == [(1, 3, 4, 4)]  # the input up, the output down


def test_both_delegates_see_one_allocation(opened: Any) -> None:
    session = opened(prefer="vgf_first")
    session.run(None, {"x": X})
    executable = session._parts.graph.latest
    first, island, last = executable.steps
    frame = executable._shared._idle[0].tensors
    (recorded,) = first.runner._recordings.values()
    bound = {(id(t.buffer), t.offset) for t in recorded._tensors.values()}
    (handed,) = first.outputs
    block = frame[handed].block
    assert (id(block.buffer), block.offset) in bound
    (plan,) = island.runner.recordings
    table = plan._table
    assert frame[handed].address in table._images[table._current].bound  # the very address that the Vulkan kernels read
    assert island.outputs[0] in last.inputs


def bound(session: Any) -> tuple[Callable[[], None], Any]:
    """Runs with the input and the output on the device, of which the second is returned: no submit copies staged memory."""
    binding, target = session.io_binding(), session.empty_device_tensor((1, 3, 4, 4))
    binding.bind_input("x", session.device_tensor(X))
    binding.bind_output("y", target)
    run = functools.partial(session.run_with_iobinding, binding)
    run()
    return run, target


def spied(monkeypatch: pytest.MonkeyPatch, timeline: Any) -> list[Any]:
    """Submits (command buffers, GPU wait, value) and the host's waits (value, submitted so far), as they come."""
    events: list[Any] = []
    submit, wait = gpu_shared.PreparedSubmit.submit, gpu_shared.Timeline.wait

    def on_submit(self: Any, wait_value: int | None = None) -> int:
        value = submit(self, wait_value)
        events.append(("submit", self.command_buffers, wait_value, value))
        return value

    def on_wait(self: Any, value: int | None = None, timeout_s: float | None = None) -> None:
        events.append(("wait", self.submitted if value is None else value, timeline.submitted))
        wait(self, value, timeout_s)

    monkeypatch.setattr(gpu_shared.PreparedSubmit, "submit", on_submit)
    monkeypatch.setattr(gpu_shared.Timeline, "wait", on_wait)
    return events


@pytest.mark.parametrize("sync_mode", ["timeline", "none"])
def test_the_host_never_blocks_between_regions(opened: Any, monkeypatch: pytest.MonkeyPatch, sync_mode: str) -> None:
    """All regions are one submit; what the host waits for before it is the run before, which has ended."""
    session = opened(prefer="vgf_first", sync_mode=sync_mode)
    run, target = bound(session)
    timeline = session.context.timeline
    before = timeline.submitted
    events = spied(monkeypatch, timeline)
    run()
    (submit,) = [e for e in events if e[0] == "submit"]
    first, island, last = session._parts.graph.latest.steps
    (one,), (two,) = first.runner._recordings.values(), last.runner._recordings.values()
    (plan,) = island.runner.recordings
    assert submit[1] == (one.commands, *plan.buffers(Buffers()), two.commands)
    assert all(e[1] <= before for e in events[: events.index(submit)] if e[0] == "wait")
    target.numpy()
    assert events[-1] == ("wait", timeline.submitted, timeline.submitted)


def test_timeline_mode_waits_on_the_gpu_for_other_sessions(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = [opened(prefer="vgf_first", sync_mode="timeline") for _ in range(2)]
    runs = [bound(session)[0] for session in sessions]
    events = spied(monkeypatch, sessions[0].context.timeline)
    for run in runs:
        run()
    submits = [e for e in events if e[0] == "submit"]
    assert len(submits) == 2
    assert submits[1][2] == submits[0][3]


def test_queue_wait_idle_mode_stops_at_every_boundary(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    session = opened(prefer="vgf_first", sync_mode="queue_wait_idle")
    run, _ = bound(session)
    idle = noted(monkeypatch, type(session.context), "wait_idle", lambda context: context.timeline.submitted)
    events = spied(monkeypatch, session.context.timeline)
    run()
    assert [e[3] for e in events if e[0] == "submit"] == idle and len(idle) == 3


def test_execute_lines_of_both_delegates(opened: Any, caplog: pytest.LogCaptureFixture) -> None:
    run, _ = bound(opened(prefer="vgf_first"))
    caplog.set_level("DEBUG", "gpu_shared.delegate")
    run()
    lines = [r.getMessage().split(":")[0] for r in caplog.records]
    assert lines.count("[vulkan] execute") == 1 and lines.count("[vgf] execute") == 2


def test_the_regions_of_a_run_are_timed(opened: Any) -> None:
    session = opened(prefer="vgf_first")
    regions = session.profile_regions({"x": X})
    assert [name.split(":")[0] for name, _ in regions] == ["vgf", "vulkan", "vgf"]
    assert all(ns > 0 for _, ns in regions)
    (y,) = session.run(None, {"x": X})
    assert np.abs(y - example.reference(X)).max() <= 1e-6


def test_bound_outputs_stay_on_the_device(opened: Any) -> None:
    session = opened(prefer="vgf_first")
    binding = session.io_binding()
    source, target = session.device_tensor(X), session.empty_device_tensor((1, 3, 4, 4))
    binding.bind_input("x", source)
    binding.bind_output("y", target)
    for _ in range(3):
        session.run_with_iobinding(binding)
    np.testing.assert_allclose(target.numpy(), example.reference(X), atol=1e-6)
    binding.bind_output("y", device="gpu")
    session.run_with_iobinding(binding)
    (y,) = binding.copy_outputs_to_cpu()
    np.testing.assert_allclose(y, example.reference(X), atol=1e-6)
