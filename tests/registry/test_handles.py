"""Closing and collecting: children first, nothing before the GPU is done, every count back to zero in any order."""

from __future__ import annotations

import gc
import itertools
import re
import threading
from typing import Any

import numpy as np
import pytest

from gpu_shared import (
    Buffer,
    ComputePipeline,
    Device,
    Instance,
    PipelineLayout,
    ShaderModule,
    Timeline,
    lifetime,
    live_counts,
)
from gpu_shared.commands import CommandPool
from gpu_shared.errors import ClosedError, DeviceLostError
from gpu_shared.lifetime import Native, Reaper, State
from gpu_shared.timeline import PreparedSubmit


class FakeTimeline:
    submitted, reached = 0, 0
    lost: DeviceLostError | None = None

    def passed(self, value: int) -> bool:
        return value <= self.reached or self.lost is not None


def native(log: Any, name: Any, parent: Any = None, reaper: Any = None) -> Any:
    return Native("test", lambda: log.append(name), parent, reaper)


def test_retired_natives_wait_for_the_timeline() -> None:
    log: list[Any] = []
    reaper, timeline = Reaper(), FakeTimeline()
    reaper.add_timeline(timeline)
    before = native(log, "before", reaper=reaper)
    after = native(log, "after", reaper=reaper)
    before.retire()
    timeline.submitted = 1
    after.retire()
    assert reaper.maintain() == 1
    assert log == ["before"]
    timeline.reached = 1
    assert reaper.maintain() == 1
    assert log == ["before", "after"]


def test_what_is_not_counted_leaves_the_kinds_as_they_are() -> None:
    """Another thread may read them."""
    before = list(lifetime._live)
    Native("not counted", None, None, None, counted=False).retire()
    assert list(lifetime._live) == before


def test_natives_die_children_first_whatever_the_order() -> None:
    for order in itertools.permutations(range(4)):
        log: list[str] = []
        root = native(log, "root")
        middle = native(log, "middle", root)
        leaves = [native(log, "leaf1", middle), native(log, "leaf2", root)]
        for index in order:
            (root, middle, *leaves)[index].retire()
        assert sorted(log) == ["leaf1", "leaf2", "middle", "root"]
        assert log.index("leaf1") < log.index("middle") < log.index("root")
        assert log[-1] == "root"
    assert "test" not in live_counts()


def test_several_threads_destroy_each_object_once() -> None:
    log: list[Any] = []
    reaper, timeline = Reaper(), FakeTimeline()
    reaper.add_timeline(timeline)
    timeline.submitted = 1
    parents = [native(log, (k, None), reaper=reaper) for k in range(50)]
    children = [native(log, (k, j), parents[k], reaper) for k in range(50) for j in range(3)]
    for one in [*parents, *children]:
        one.retire()
    assert reaper.maintain() == 0 and {one.state for one in children} == {State.RETIRED}
    timeline.reached = 1
    counts: list[int] = []
    threads = [threading.Thread(target=lambda: counts.append(reaper.maintain())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(counts) == len(log) == len(set(log)) == 200
    assert all(log.index((k, None)) > log.index((k, j)) for k in range(50) for j in range(3))
    assert {one.state for one in [*parents, *children]} == {State.DESTROYED}


def test_a_lost_device_is_not_waited_for() -> None:
    log: list[Any] = []
    reaper, timeline = Reaper(), FakeTimeline()
    reaper.add_timeline(timeline)
    timeline.submitted = 9
    native(log, "x", reaper=reaper).retire()
    assert reaper.maintain() == 0
    timeline.lost = DeviceLostError("lost")
    assert reaper.maintain() == 1


def test_a_failing_destroy_does_not_hold_up_the_parent() -> None:
    log: list[str] = []
    root = native(log, "root")

    def fail() -> None:
        raise RuntimeError("destroy failed")

    child = Native("test", fail, root, None)
    root.retire()
    with pytest.raises(RuntimeError, match="destroy failed"):
        child.retire()
    assert log == ["root"]
    assert "test" not in live_counts()


def build(gpu: Any, spirv: Any) -> Any:
    instance = Instance("test")
    device = Device(instance, gpu)
    timeline = Timeline(device)
    layout = PipelineLayout(device, 20)
    module = ShaderModule(device, spirv)
    pipeline = ComputePipeline(device, layout, module, {1: 8, 4: 1})
    buffer = Buffer(device, 256)
    pool = CommandPool(device)
    commands = pool.allocate()
    return [instance, device, timeline, layout, module, pipeline, buffer, pool, commands]


@pytest.mark.parametrize("seed", range(6))
def test_any_order_of_closing_leaves_nothing(gpu: Any, add_spirv: Any, seed: Any, alive: Any) -> None:
    parts = build(gpu, add_spirv)
    if seed == 0:
        parts.reverse()
    elif seed > 1:
        np.random.default_rng(seed).shuffle(parts)
    for part in parts:
        part.close()
        part.close()  # idempotent
        assert part.closed
    assert alive() == {}


def test_closing_the_instance_closes_everything(gpu: Any, add_spirv: Any, alive: Any) -> None:
    parts = build(gpu, add_spirv)
    parts[0].close()
    assert alive() == {}
    for part in parts:
        assert part.closed
        with pytest.raises(ClosedError, match=re.escape(part.label)):
            _ = part.raw


@pytest.mark.parametrize("seed", range(4))
def test_garbage_collection_is_enough(gpu: Any, add_spirv: Any, seed: Any, alive: Any) -> None:
    parts = build(gpu, add_spirv)
    assert alive()["buffer"] == 1
    if seed == 0:
        parts.append(parts)  # a cycle: finalisers run in any order
        del parts
    else:
        np.random.default_rng(seed).shuffle(parts)
        while parts:
            parts.pop()
    gc.collect()
    assert alive() == {}


def test_objects_in_flight_outlive_their_handles(gpu: Any, add_spirv: Any, alive: Any) -> None:
    with Instance("test") as instance:
        device = Device(instance, gpu)
        timeline, pool = Timeline(device), CommandPool(device)
        source, target = Buffer(device, 1 << 24), Buffer(device, 1 << 24, "download")
        commands = pool.allocate().begin()
        for _ in range(20):
            commands.copy_buffer(source, target, 1 << 24)
            commands.barrier_after_transfer()
        commands.end()
        submit = PreparedSubmit(timeline, [commands])
        value = submit.submit()
        source.close()
        if timeline.completed < value:  # (a fast machine may be done)
            assert alive()["buffer"] == 2
        timeline.wait(value)
        device.collect()
        assert alive()["buffer"] == 1


def test_arrays_on_a_mapping_keep_its_memory(gpu: Any, alive: Any) -> None:
    instance = Instance("test")
    device = Device(instance, gpu)
    buffer = Buffer(device, 4096, "upload")
    assert buffer.mapped is not None
    array = np.frombuffer(buffer.mapped, dtype=np.int32)
    array[:] = 7
    buffer.close()
    with pytest.raises(ClosedError):
        _ = buffer.mapped
    device.collect()
    array[:] = 8  # still there
    instance.close()
    array[:] = 9
    assert array.sum() == 9 * 1024
    assert alive()["device"] == 1
    del array
    assert alive() == {}


def test_closed_command_buffers_are_reused(gpu: Any, alive: Any) -> None:
    with Instance("test") as instance:
        pool = CommandPool(Device(instance, gpu))
        first = pool.allocate()
        raw = first.raw_int
        first.close()
        assert "command_buffer" not in alive()
        assert pool.allocate().raw_int == raw


def test_closing_from_many_threads_at_once(gpu: Any, alive: Any) -> None:
    instance = Instance("test")
    device = Device(instance, gpu)
    buffers = [Buffer(device, 1024) for _ in range(64)]
    barrier = threading.Barrier(4)

    def close_all() -> None:
        barrier.wait()
        for buffer in buffers:
            buffer.close()

    threads = [threading.Thread(target=close_all) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert "buffer" not in alive()
    instance.close()


def test_creation_on_a_closed_device_says_so(gpu: Any, no_leaks: Any) -> None:
    with Instance("test") as instance:
        device = Device(instance, gpu, label="my device")
        device.close()
        with pytest.raises(ClosedError, match="my device"):
            Buffer(device, 16)
