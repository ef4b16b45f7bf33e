"""The arena on the driver at hand."""

from __future__ import annotations

import logging
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gpu_shared.memory import Buffer, HeapBudget
from gpu_shared.steady import settle
from tests.memory.model import MIB
from vkep.memory import ArenaConfig, ArenaMode, ArenaOutOfMemory, device_arena
from vkep.memory.device_arena import DeviceArena, Patience, shared_device_arena
from vkep.memory.staging_ring import StagingArena, shared_staging_arena

pytestmark = pytest.mark.gpu


@pytest.fixture
def buffers(no_leak: Any) -> Any:
    """Counts the buffers that the test made and that live."""
    return lambda: no_leak().get("buffer", 0)


def copy(lease: Any, source: Any, target: Any, nbytes: Any) -> Any:
    commands = lease.allocate().begin()
    commands.barrier_before_transfer()
    commands.copy_buffer(source.buffer, target.buffer, nbytes, source.offset, target.offset)
    commands.barrier_all()
    prepared = lease.prepare([commands.end()])
    return lease.submit(prepared)


def test_blocks_lie_apart_in_buffers(context: Any, buffers: Any) -> None:
    with DeviceArena(context.device) as arena:
        blocks = [arena.alloc(size) for size in (1, 1000, 70_000, 3 * MIB)]
        for block in blocks:
            assert block.address == block.buffer.address + block.offset
            assert block.address % 256 == 0
            assert block.offset + block.size <= block.buffer.size
        ordered = sorted(blocks, key=lambda b: b.address)
        assert all(a.address + a.size <= b.address for a, b in pairwise(ordered))
        assert buffers() == 2
        for block in blocks:
            block.free()
        assert arena.shrink() == 5 * MIB
        assert buffers() == 0


def test_mapped_bytes_are_the_devices(context: Any, lease: Any) -> None:
    with StagingArena(context.device, "upload") as up, StagingArena(context.device, "download") as down:
        data = np.arange(1000, dtype=np.int32)
        arena = DeviceArena(context.device)
        with arena, up.alloc(4000) as source, arena.alloc(4000) as middle, down.alloc(4000) as target:
            assert source.mapped is not None and target.mapped is not None
            np.frombuffer(source.mapped, np.int32)[:1000] = data
            copy(lease, source, middle, 4000)
            lease.wait(copy(lease, middle, target, 4000))
            target.buffer.invalidate()
            assert np.array_equal(np.frombuffer(target.mapped, np.int32)[:1000], data)
            if middle.mapped is not None:
                assert np.array_equal(np.frombuffer(middle.mapped, np.int32)[:1000], data)
    assert source.freed
    with pytest.raises(ValueError, match="is freed"):
        source.mapped  # noqa: B018
    with pytest.raises(ValueError, match="closed"):
        source.free()


def test_reserved_blocks_have_their_own_buffer(context: Any, buffers: Any) -> None:
    with DeviceArena(context.device) as arena:
        block = arena.reserve(5 * MIB + 1)
        assert block.buffer.size == 5 * MIB + 256
        assert arena.stats.num_arena_extensions == 0
        block.free()
        assert buffers() == 0
        with pytest.raises(ValueError, match="double free"):
            block.free()


def test_a_sync_value_on_the_timeline_is_proof(context: Any, lease: Any) -> None:
    with DeviceArena(context.device, timeline=context.timeline) as arena:
        one, two = arena.alloc(MIB, "a"), arena.alloc(MIB, "a")
        two.free(stream=None)
        value = _signal(lease)
        one.free(sync_value=value + 1)
        later = arena.alloc(2 * MIB, "b")
        assert later.buffer is not one.buffer
        value = _signal(lease)
        lease.wait(value)
        with arena.alloc(MIB, "b") as again:
            assert again.address == one.address
        later.free()


def _signal(lease: Any) -> Any:
    """An empty submit: only its timeline value matters."""
    return lease.submit(lease.prepare([lease.allocate().begin().end()]))


def test_a_timeline_may_be_the_stream_itself(context: Any, lease: Any) -> None:
    with DeviceArena(context.device) as arena:
        block = arena.alloc(MIB, context.timeline)
        value = _signal(lease)
        lease.wait(value)
        block.free(sync_value=value)
        assert arena.alloc(MIB, "other").address == block.address
        arena.snapshot()
        arena.release_stream("other")
        (chunk,) = [c for region in arena.snapshot().regions for c in region.chunks if c.in_use]
        assert chunk.use is None


def test_release_stream_lets_others_in(context: Any) -> None:
    with DeviceArena(context.device) as arena:
        block = arena.alloc(MIB, "a")
        block.free()
        assert arena.release_stream("a") == MIB
        with arena.alloc(MIB, "b") as other:
            assert other.address == block.address


def test_separate_mode_gives_each_block_a_buffer(context: Any, buffers: Any) -> None:
    with DeviceArena(context.device, ArenaConfig(mode=ArenaMode.SEPARATE)) as arena:
        blocks = [arena.alloc(1000) for _ in range(5)]
        assert buffers() == 5
        for block in blocks:
            block.free()
        assert buffers() == 0


def test_more_than_the_device_has_is_an_error_that_says_so(context: Any) -> None:
    heap = max(h.size for h in context.memory_budget())
    with DeviceArena(context.device) as arena, arena.alloc(1000) as kept:
        before = arena.snapshot()
        with pytest.raises(ArenaOutOfMemory) as caught:
            arena.alloc(4 * heap)
        assert caught.value.asked == 4 * heap
        assert "close sessions" in str(caught.value)
        with pytest.raises(ArenaOutOfMemory):
            arena.reserve(4 * heap)
        assert arena.snapshot() == before
        with arena.alloc(MIB):
            assert kept.mapped is None or len(kept.mapped) == kept.size


def test_max_mem_bounds_the_buffers(context: Any, buffers: Any) -> None:
    with DeviceArena(context.device, ArenaConfig(max_mem=2 * MIB)) as arena:
        with pytest.raises(ArenaOutOfMemory, match=r"limit 2.0 MiB .* raise arena.max_mem"):
            arena.alloc(3 * MIB)
        assert buffers() == 0


def test_the_budget_is_consulted_before_growing(context: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    heaps = context.memory_budget()

    def tight(device: Any) -> Any:
        return tuple(HeapBudget(h.index, h.size, h.device_local, 100 * MIB, 97 * MIB, True) for h in heaps)

    monkeypatch.setattr(device_arena, "memory_budget", tight)
    with DeviceArena(context.device) as arena:
        with pytest.raises(ArenaOutOfMemory, match=r"exceed the budget of memory heap .*VK_EXT_memory_budget"):
            arena.alloc(4 * MIB)
        arena.alloc(2 * MIB + 256).free()  # the growth size is 4 MiB: backing off finds what the budget has
        assert arena.stats.total_allocated_bytes <= 3 * MIB
        assert "97.0 MiB" in arena.dump()


def test_without_the_extension_the_driver_decides(context: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    heaps = context.memory_budget()
    unknown = tuple(HeapBudget(h.index, h.size, h.device_local, h.size, -1, False) for h in heaps)
    monkeypatch.setattr(device_arena, "memory_budget", lambda device: unknown)
    with DeviceArena(context.device) as arena:
        arena.alloc(4 * MIB).free()
        assert "no VK_EXT_memory_budget" in arena.dump()


def test_regions_are_aligned_where_buffers_are_not(context: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    class Askew(Buffer):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.address += 64
            made.append(self.size)

    monkeypatch.setattr(device_arena, "Buffer", Askew)
    with DeviceArena(context.device) as arena:
        block = arena.alloc(1000)
        assert block.address % 256 == 0
        assert block.offset == 192
        assert made == [MIB, MIB + 256]
        block.free()


def test_sessions_share_one_arena_and_the_last_ends_it(
    context: Any, caplog: pytest.LogCaptureFixture, buffers: Any
) -> None:
    first = shared_device_arena(context, ArenaConfig(max_mem=8 * MIB))
    with caplog.at_level(logging.WARNING, "vkep.memory"):
        same = shared_device_arena(context, ArenaConfig(max_mem=8 * MIB))
        whatever = shared_device_arena(context)
        assert caplog.records == []
        other = shared_device_arena(context, ArenaConfig(max_mem=16 * MIB))
    assert f"arena.max_mem is {8 * MIB} (asked: {16 * MIB})" in caplog.text
    assert first.value is same.value is whatever.value is other.value
    assert first.value.config.max_mem == 8 * MIB
    arena = first.value
    arena.alloc(100).free()
    for user in (first, same, whatever):
        user.release()
    assert buffers() == 1
    other.release()
    assert buffers() == 0
    with pytest.raises(ValueError, match="closed"):
        arena.alloc(1)
    with shared_device_arena(context, ArenaConfig(max_mem=16 * MIB)) as fresh:
        assert fresh.config.max_mem == 16 * MIB


def test_staging_arenas_are_shared_by_direction(context: Any) -> None:
    with (
        shared_staging_arena(context, "upload") as up,
        shared_staging_arena(context, "upload") as again,
        shared_staging_arena(context, "download") as down,
    ):
        assert up is again
        assert up is not down
        with up.alloc(100) as block, down.alloc(100) as back:
            assert block.mapped is not None
            assert back.mapped is not None
    with pytest.raises(ValueError, match="expected one of"):
        StagingArena(context.device, "device")


def test_blocks_left_live_are_warned_of(context: Any, caplog: pytest.LogCaptureFixture, buffers: Any) -> None:
    arena = DeviceArena(context.device)
    arena.alloc(10)
    with caplog.at_level(logging.WARNING, "vkep.memory"):
        arena.close()
        arena.close()
    assert caplog.text.count("1 live blocks") == 1
    assert buffers() == 0


def test_an_arena_that_is_not_closed_ends_with_its_last_reference(context: Any, buffers: Any) -> None:
    arena = DeviceArena(context.device, timeline=context.timeline)
    block = arena.alloc(10)
    assert buffers() == 1
    del arena, block
    settle()  # another thread retires the buffer; waiting for the device destroys it
    context.wait_idle()
    assert buffers() == 0


def test_a_run_tries_again_after_the_last_other_one_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long an attempt takes: what others used may be free for the next one alone."""
    clock = iter(np.arange(0, 100, 0.2))
    monkeypatch.setattr("time.monotonic", lambda: float(next(clock)))
    monkeypatch.setattr("time.sleep", lambda _: None)
    busy = [True] * 8 + [False] * 3 + [True] * 4 + [False] * 100
    patience = Patience(SimpleNamespace(busy=lambda mine: busy.pop(0)), None)  # type: ignore[arg-type]
    tries = sum(iter(patience.again, False))
    assert 15 < tries < 60 and not patience.again()
    patience = Patience(SimpleNamespace(busy=lambda mine: True), None)  # type: ignore[arg-type]
    assert 40 < sum(iter(patience.again, False)) < 60  # ten seconds
