"""The arena's rules one by one: growth, splitting, coalescing, streams."""

from __future__ import annotations

from typing import Any

import pytest

from tests.memory.model import MIB, arena_of
from vkep.arena.chunks import NUM_BINS, backoff_sizes, bin_index
from vkep.memory import ArenaOutOfMemory, ExtendStrategy, StreamUse

# ---- growth ----------------------------------------------------------------------------------------------------


def test_regions_double_up_to_the_cap() -> None:
    arena, source = arena_of(max_power_of_two_extend_bytes=8 * MIB)
    for _ in range(6):
        arena.alloc(arena.growth_bytes)
    assert [size // MIB for size in source.asked] == [1, 2, 4, 8, 8, 8]


def test_a_large_request_doubles_the_growth_size_until_it_fits_and_not_once_more() -> None:
    arena, source = arena_of()
    arena.alloc(40 * MIB)
    assert source.asked == [64 * MIB]
    assert arena.growth_bytes == 64 * MIB
    arena.alloc(60 * MIB)
    assert source.asked == [64 * MIB, 64 * MIB]
    assert arena.growth_bytes == 128 * MIB


def test_a_request_beyond_the_cap_is_served() -> None:
    arena, source = arena_of(max_power_of_two_extend_bytes=4 * MIB)
    arena.alloc(40 * MIB)
    assert source.asked == [40 * MIB]
    arena.alloc(40 * MIB)
    assert arena.growth_bytes == 4 * MIB  # it fitted at once, and what follows is capped


def test_same_as_requested_takes_the_rounded_request() -> None:
    arena, source = arena_of(extend_strategy=ExtendStrategy.SAME_AS_REQUESTED)
    block = arena.alloc(1000)
    assert source.asked == [1024]
    assert (block.size, block.requested) == (1024, 1000)


def test_first_region_stays_below_the_limit() -> None:
    arena, source = arena_of(max_mem=10_000)
    arena.alloc(1)
    assert source.asked == [9984]  # the limit, down to a multiple of 256


def test_backs_off_by_tenths_then_asks_for_the_request_itself() -> None:
    arena, source = arena_of(capacity=41 * MIB)
    arena.alloc(40 * MIB)
    assert source.asked[0] == 64 * MIB
    assert source.asked[-1] == 40 * MIB
    assert all(b == a * 9 // 10 // 256 * 256 for a, b in zip(source.asked[:-1], source.asked[1:-1], strict=False))


@pytest.mark.parametrize("alignment", [256, 65536, 1 << 20])
def test_backing_off_ends_for_every_alignment(alignment: Any) -> None:
    offered = list(backoff_sizes(64 * MIB, alignment, alignment))
    assert offered[0] == 64 * MIB
    assert offered[-1] == alignment
    assert offered == sorted(offered, reverse=True)
    assert all(size % alignment == 0 for size in offered)


def test_a_failed_extension_does_not_make_the_next_one_larger() -> None:
    arena, source = arena_of(capacity=3 * MIB)
    with pytest.raises(ArenaOutOfMemory):
        arena.alloc(100 * MIB)
    assert arena.growth_bytes == MIB
    arena.alloc(10)
    assert source.held == MIB


def test_shrink_starts_growth_again() -> None:
    arena, source = arena_of()
    block = arena.alloc(50 * MIB)
    arena.free(block)
    assert arena.shrink() == 64 * MIB
    assert source.live == {}
    assert arena.growth_bytes == 2 * MIB
    assert arena.stats.num_arena_shrinkages == 1
    arena.alloc(1)
    assert source.asked[-1] == 2 * MIB


# ---- chunks ----------------------------------------------------------------------------------------------------


def test_bins_cover_powers_of_two() -> None:
    for index in range(NUM_BINS):
        assert bin_index(256 << index) == index
        assert bin_index((512 << index) - 1) == index
    assert bin_index(1 << 50) == NUM_BINS - 1


@pytest.mark.parametrize(("dead", "size"), [(256 * 1024, 768 * 1024), (256 * 1024 + 1, 1024 * 1024)])
def test_a_rest_below_the_dead_bytes_limit_stays_with_its_block(dead: Any, size: Any) -> None:
    arena, _ = arena_of(max_dead_bytes_per_chunk=dead)
    assert arena.alloc(768 * 1024).size == size  # 256 KiB remain of the first region


def test_best_fit_takes_the_smallest_chunk_that_fits() -> None:
    arena, _ = arena_of()
    a, wall1, b, _wall2 = arena.alloc(8192), arena.alloc(256), arena.alloc(4096), arena.alloc(256)
    arena.free(a)
    arena.free(b)
    assert arena.alloc(4096).address == b.address
    assert arena.alloc(5000).address == a.address
    arena.free(wall1)


def test_neighbours_coalesce_whatever_the_order() -> None:
    for order in ((0, 1, 2), (2, 1, 0), (0, 2, 1), (1, 0, 2)):
        arena, _ = arena_of()
        blocks = [arena.alloc(1000) for _ in range(3)]
        for index in order:
            arena.free(blocks[index])
        (region,) = arena.snapshot().regions
        assert [chunk.size for chunk in region.chunks] == [MIB]


# ---- streams ---------------------------------------------------------------------------------------------------


def test_a_freed_chunk_serves_its_own_stream_at_once_and_others_after_the_release() -> None:
    arena, _ = arena_of()
    first = arena.alloc(MIB, "s")
    arena.free(first)
    other = arena.alloc(MIB, "t")
    assert other.region != first.region
    plain = arena.alloc(MIB)
    assert plain.region != first.region
    again = arena.alloc(MIB, "s")
    assert again.address == first.address
    arena.free(again)
    assert arena.release_stream("s") == MIB
    assert arena.alloc(MIB, "t").address == first.address
    assert arena.release_stream("never seen") == 0


def test_up_to_releases_only_what_is_known_to_be_done() -> None:
    arena, _ = arena_of()
    blocks = [arena.alloc(1024, "s") for _ in range(4)]
    for value, block in zip((5, 7, None), blocks[:3], strict=True):
        arena.free(block, sync_value=value)
    assert arena.release_stream("s", up_to=4) == 0
    assert arena.release_stream("s", up_to=6) == 0  # merged with its neighbour, it waits for the whole
    assert arena.release_stream("s") > 0
    arena.free(blocks[3])  # released while live: no assignment is left
    assert arena.shrink() == MIB


@pytest.mark.parametrize("values", [(5, 7), (7, 5)])
def test_merged_chunks_wait_for_the_later_value(values: Any) -> None:
    arena, _ = arena_of()
    for block, value in zip([arena.alloc(1024, "s"), arena.alloc(1024, "s")], values, strict=True):
        arena.free(block, sync_value=value)
    assert arena.release_stream("s", up_to=6) == 0
    assert arena.release_stream("s", up_to=7) == 2048


def test_values_decide_where_chunks_are_apart() -> None:
    arena, _ = arena_of()
    low, wall, high = arena.alloc(1024, "s"), arena.alloc(1024), arena.alloc(1024, "s")
    arena.free(low, sync_value=5)
    arena.free(high, sync_value=7)
    assert arena.release_stream("s", up_to=5) == 1024
    assert arena.alloc(1024, "t").address == low.address
    assert arena.release_stream("s", up_to=7) == 1024
    arena.free(wall)


def test_proof_is_consulted_before_growing() -> None:
    done = 0
    asked: list[StreamUse] = []

    def is_passed(use: Any) -> Any:
        asked.append(use)
        return use.sync_value is not None and use.sync_value <= done

    arena, source = arena_of(is_passed=is_passed, extend_strategy=ExtendStrategy.SAME_AS_REQUESTED)
    block = arena.alloc(MIB, "s")
    arena.free(block, sync_value=3)
    arena.alloc(MIB, "t")
    assert asked == [StreamUse("s", 3)]
    assert len(source.asked) == 2
    done = 3
    assert arena.alloc(MIB, "t").address == block.address
    assert len(source.asked) == 2


def test_proof_of_one_call() -> None:
    arena, _ = arena_of()
    block = arena.alloc(MIB, "s")
    arena.free(block, sync_value=3)
    assert arena.alloc(MIB, "t", is_passed=lambda use: use == ("s", 3)).address == block.address


def test_shrink_keeps_what_a_stream_may_still_touch() -> None:
    arena, source = arena_of()
    arena.free(arena.alloc(MIB, "s"))
    arena.free(arena.reserve(MIB), stream="s", sync_value=2)
    assert arena.shrink() == 0
    assert len(source.live) == 2
    arena.release_stream("s")
    assert len(source.live) == 1  # the reserved region went at once
    assert arena.shrink() == MIB
    assert source.live == {}


def test_free_may_name_another_stream_or_none() -> None:
    arena, _ = arena_of()
    block = arena.alloc(MIB, "s")
    arena.free(block, stream="t", sync_value=1)
    taken = arena.alloc(MIB, "t")
    assert taken.address == block.address
    arena.free(taken, stream=None)
    assert arena.alloc(MIB, "u").address == block.address
    with pytest.raises(ValueError, match="sync_value 4 needs a stream"):
        arena.free(arena.alloc(10), sync_value=4)
