"""examples/video.py: the next frame is uploaded, and its run submitted, before the last run is waited for."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vkep
from gpu_shared import DeviceInfo
from gpu_shared.commands import CommandBuffer
from gpu_shared.lease import DelegateLease
from tests.calls import noted
from tools.discrete import take_for_discrete
from vkep.device.tensor import DeviceTensor
from vkep.models.starters import STARTERS

EXAMPLES = Path(__file__).parents[2] / "examples"
FRAMES = 9


@pytest.mark.parametrize("discrete", [False, True])
def test_frames_are_uploaded_while_the_device_works(
    vulkan: DeviceInfo, discrete: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if not discrete and not vulkan.capabilities.host_visible_device_local:
        pytest.skip(f"the host does not see the memory of {vulkan.capabilities.name}")
    monkeypatch.syspath_prepend(EXAMPLES)
    video = importlib.import_module("video")
    if discrete:
        take_for_discrete(monkeypatch.setattr)
    STARTERS["detector"].write(tmp_path / "detector.onnx")
    frames = np.random.default_rng(0).integers(0, 256, (FRAMES, 64, 64, 3), np.uint8)
    with vkep.InferenceSession(tmp_path / "detector.onnx", context_mode="disabled", run_ahead=True) as session:
        name = session.get_inputs()[0].name
        expected = [session.run(None, {name: video.pixels(frame, 64, 64)})[0][0] for frame in frames]
        slots = [video.Slot(session, (1, 3, 64, 64)) for _ in range(2)]
        assert (slots[0].frame.block.mapped is None) == discrete
        video.detect(session, slots, list(frames[:4]), say=False)  # all commands are recorded

        results: list[Any] = []

        def objects(found: Any) -> list[Any]:
            results.append(np.array(found))
            return []

        events = _watched(monkeypatch, session)
        monkeypatch.setattr(video, "objects", objects)
        video.detect(session, slots, list(frames), say=False)
        monkeypatch.undo()
    for ours, theirs in zip(results, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)

    runs: list[int] = []
    uploads = 0
    for what, value, waits_for in events:
        if what == "wait":  # not for the run that was submitted last, until all were
            assert len(runs) in (0, FRAMES) or value < runs[-1], (what, value, runs)
        elif what == "upload":  # beside the run before it, on the device too: no barrier, and no wait for it
            assert waits_for is not None and (not runs or waits_for < runs[-1]), (waits_for, runs)
            uploads += 1
        elif what == "run":
            runs.append(value)
        else:
            pytest.fail(f"{what} between frames")
    assert (len(runs), uploads) == (FRAMES, FRAMES if discrete else 0)
    waited = [value for what, value, _ in events if what == "wait"]
    assert set(runs) <= set(waited)  # each result was waited for


def _watched(monkeypatch: pytest.MonkeyPatch, session: vkep.InferenceSession) -> list[tuple[str, int, int | None]]:
    """What happens from now on: uploads and runs with their values of the timeline, and the value that an upload waits for on the
    device; waits of the host; barriers before copies."""
    events: list[tuple[str, int, int | None]] = []
    writing = [False]
    submit, wait, write = DelegateLease.submit, DelegateLease.wait, DeviceTensor.write

    def submitted(self: DelegateLease, prepared: Any, wait_value: int | None = None) -> int:
        value = submit(self, prepared, wait_value)
        events.append(("upload" if writing[0] else "run", value, wait_value))
        return value

    def waited(self: DelegateLease, value: int | None = None, *rest: Any) -> None:
        timeline = session.context.timeline
        events.append(("wait", timeline.submitted if value is None else value, None))
        wait(self, value, *rest)

    def written(self: DeviceTensor, array: Any) -> None:
        writing[0] = True
        write(self, array)
        writing[0] = False

    monkeypatch.setattr(DelegateLease, "submit", submitted)
    monkeypatch.setattr(DelegateLease, "wait", waited)
    monkeypatch.setattr(DeviceTensor, "write", written)
    noted(
        monkeypatch,
        CommandBuffer,
        "barrier_before_transfer",
        lambda *_: events.append(("a barrier before copies", 0, None)),
    )
    return events
