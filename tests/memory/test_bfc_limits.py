"""The arena's limits and errors, its other mode, statistics, dump and threads."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest

from tests.memory.model import MIB, FakeSource, arena_of
from vkep.arena.records import format_bytes
from vkep.memory import ArenaMode, ArenaOutOfMemory, BfcArena, ExtendStrategy, SourceRegion

# ---- limits and errors -----------------------------------------------------------------------------------------


def test_out_of_memory_says_what_to_do_and_leaves_everything_usable() -> None:
    arena, _ = arena_of(max_mem=4 * MIB)
    kept = arena.alloc(2 * MIB)
    before = arena.snapshot()
    with pytest.raises(ArenaOutOfMemory) as caught:
        arena.alloc(3 * MIB)
    text = str(caught.value)
    for part in ("'t'", "asked 3.0 MiB", "in use 2.0 MiB", "limit 4.0 MiB", "raise arena.max_mem", "largest free"):
        assert part in text
    assert isinstance(caught.value, MemoryError)
    assert (caught.value.asked, caught.value.in_use, caught.value.limit) == (3 * MIB, 2 * MIB, 4 * MIB)
    assert arena.snapshot() == before
    arena.free(arena.alloc(MIB))
    arena.free(kept)


def test_out_of_device_memory_gives_the_sources_reason() -> None:
    arena, _ = arena_of(capacity=MIB)
    arena.alloc(MIB // 2)
    with pytest.raises(ArenaOutOfMemory, match=r"reason: the source has 0 bytes left.*close sessions"):
        arena.alloc(3 * MIB)


def test_fragmentation_is_named() -> None:
    arena, _ = arena_of(max_mem=MIB)
    blocks = [arena.alloc(128 * 1024) for _ in range(8)]
    for block in blocks[::2]:
        arena.free(block)
    with pytest.raises(ArenaOutOfMemory, match="fragmented"):
        arena.alloc(256 * 1024)
    assert arena.snapshot().external_fragmentation == 0.75


def test_idle_regions_make_room_before_giving_up() -> None:
    arena, source = arena_of(max_mem=4 * MIB, extend_strategy=ExtendStrategy.SAME_AS_REQUESTED)
    for block in [arena.alloc(MIB) for _ in range(4)]:
        arena.free(block)
    assert arena.alloc(3 * MIB).size == 3 * MIB
    assert source.held == 3 * MIB


def test_limit_covers_reserved_blocks() -> None:
    arena, _ = arena_of(max_mem=4 * MIB)
    block = arena.reserve(3 * MIB)
    with pytest.raises(ArenaOutOfMemory):
        arena.reserve(2 * MIB)
    stats = arena.stats
    assert (stats.num_reserves, stats.num_arena_extensions, stats.total_allocated_bytes) == (1, 0, 3 * MIB)
    arena.free(block)
    assert arena.stats.total_allocated_bytes == 0


@pytest.mark.parametrize("call", ["alloc", "reserve"])
def test_bad_sizes(call: Any) -> None:
    arena, _ = arena_of()
    for bad in (0, -1):
        with pytest.raises(ValueError, match=f"{call}: expected 1 byte or more, got {bad}"):
            getattr(arena, call)(bad)
    wrong: list[Any] = [1.5, None, True, "8"]
    for bad in wrong:
        with pytest.raises(TypeError, match="expected an int"):
            getattr(arena, call)(bad)


def test_bad_frees() -> None:
    arena, _ = arena_of()
    block = arena.alloc(1000)
    with pytest.raises(ValueError, match="inside the block at"):
        arena.free(block.address + 256)
    with pytest.raises(ValueError, match="none of the arena's 1 regions"):
        arena.free(12)
    with pytest.raises(TypeError, match="got str"):
        arena.free("x")
    arena.free(block)
    with pytest.raises(ValueError, match="double free"):
        arena.free(block)
    with pytest.raises(ValueError, match="double free"):
        arena.free(block.address)
    newer = arena.alloc(1000)
    assert newer.address == block.address
    with pytest.raises(ValueError, match="newer block"):
        arena.free(block)
    arena.free(newer)


def test_a_source_that_breaks_its_contract() -> None:
    class Crooked(FakeSource):
        def allocate_region(self, nbytes: Any) -> Any:
            given = super().allocate_region(nbytes)
            return SourceRegion(given.id, given.address + 64)

    source = Crooked()
    arena = BfcArena(source)
    with pytest.raises(ValueError, match="breaks its contract"):
        arena.alloc(1)
    assert source.live == {}
    assert arena.stats.total_allocated_bytes == 0


def test_other_failures_of_the_source_pass_through() -> None:
    class Broken(FakeSource):
        def allocate_region(self, nbytes: Any) -> Any:
            raise OSError("device lost")

    arena = BfcArena(Broken())
    with pytest.raises(OSError, match="device lost"):
        arena.alloc(1)
    assert arena.stats == BfcArena(FakeSource()).stats


def test_closing_gives_everything_back() -> None:
    arena, source = arena_of()
    arena.alloc(10)
    arena.reserve(10)
    assert arena.close() == 2
    assert source.live == {}
    assert arena.close() == 0
    for call in (lambda: arena.alloc(1), lambda: arena.free(4096), arena.shrink):
        with pytest.raises(ValueError, match="closed"):
            call()


@pytest.mark.parametrize("alignment", [0, 128, 300])
def test_bad_alignment(alignment: Any) -> None:
    with pytest.raises(ValueError, match="power of two"):
        BfcArena(FakeSource(), alignment=alignment)


# ---- separate mode, statistics, dump, threads -------------------------------------------------------------------


def test_separate_mode_gives_each_block_a_region() -> None:
    arena, source = arena_of(mode=ArenaMode.SEPARATE)
    a, b = arena.alloc(1000), arena.alloc(1000, "s")
    assert source.asked == [1024, 1024]
    assert a.offset == b.offset == 0
    arena.free(a)
    assert len(source.live) == 1
    arena.free(b, sync_value=1)
    assert len(source.live) == 1  # the stream may still use it
    arena.release_stream("s", up_to=1)
    assert source.live == {}


def test_statistics_speak_onnx_runtimes_keys() -> None:
    arena, _ = arena_of(max_mem=8 * MIB)
    block = arena.alloc(1000)
    arena.reserve(5000)
    arena.free(block)
    assert arena.stats.to_key_values() == {
        "Limit": str(8 * MIB),
        "InUse": "5120",
        "TotalAllocated": str(MIB + 5120),
        "MaxInUse": str(1024 + 5120),
        "NumAllocs": "2",
        "NumReserves": "1",
        "NumArenaExtensions": "1",
        "NumArenaShrinkages": "0",
        "MaxAllocSize": "5120",
    }


def test_dump_shows_regions_chunks_and_bins() -> None:
    arena, _ = arena_of()
    blocks = [arena.alloc(256 * 1024, stream) for stream in (None, "s", None)]
    arena.free(blocks[1], sync_value=9)
    text = arena.dump()
    cells = text[text.index("|") + 1 : text.rindex("|")]
    assert cells == "#" * 16 + "s" * 16 + "#" * 16 + "." * 16
    for part in (
        "in use 512.0 KiB (524288 B) of 1.0 MiB",
        "stream 's' until value 9",
        "asked 262144 B",
        "bins (",
        ":     2 ",
    ):
        assert part in text
    assert "0 regions" in arena_of()[0].dump()


def test_format_bytes() -> None:
    assert format_bytes(0) == "0 B"
    assert format_bytes(1023) == "1023 B"
    assert format_bytes(1536) == "1.5 KiB (1536 B)"
    assert format_bytes(3 << 40) == "3.0 TiB (3298534883328 B)"


def test_threads_share_one_arena() -> None:
    arena, source = arena_of(extend_strategy=ExtendStrategy.SAME_AS_REQUESTED)
    owned: dict[int, int] = {}
    failures: list[BaseException] = []

    def work(seed: Any) -> None:
        rng = random.Random(seed)
        mine: list[Any] = []
        try:
            for step in range(300):
                if mine and rng.random() < 0.5:
                    block = mine.pop(rng.randrange(len(mine)))
                    assert owned.pop(block.address) == seed
                    arena.free(block)
                else:
                    block = arena.alloc(rng.randrange(1, 5000), seed)
                    assert owned.setdefault(block.address, seed) == seed
                    mine.append(block)
                if step % 50 == 0:
                    arena.release_stream(seed)
            for block in mine:
                del owned[block.address]
                arena.free(block)
            arena.release_stream(seed)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert arena.stats.bytes_in_use == 0
    arena.shrink()
    assert source.live == {}
