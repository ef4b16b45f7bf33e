"""Memory of ONNX Runtime's, and copies to and from it, without a session."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import gpu_shared
from gpu_shared import DeviceLostError, SharedGpuContext
from tests.calls import noted
from vkep.ort.memory.domain import MemoryDomain, acquire
from vkep.ort.memory.transfers import _MOST_KEPT, _MOST_ROUTES, MOST_STAGED, Transfers


@pytest.fixture(params=["seen", "staged"])
def domain(request: pytest.FixtureRequest) -> Iterator[MemoryDomain]:
    """Of a driver whose device memory the host sees (if it does), and of one whose it does not."""
    if request.param == "staged":
        request.getfixturevalue("staged")
    with SharedGpuContext.create() as context:
        made = acquire(context)
        yield made
        made.release()


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The direction of each route that is prepared while the test runs."""
    return noted(monkeypatch, Transfers, "_make", lambda route, *_: route.direction)


def filled(number: int, nbytes: int = 1000) -> np.ndarray:
    return np.full(nbytes, number % 251, np.uint8)


def read(domain: MemoryDomain, pointer: int, nbytes: int = 1000) -> np.ndarray:
    out = np.zeros(nbytes, np.uint8)
    domain.download(pointer, out)
    return out


def is_seen(domain: MemoryDomain, pointer: int) -> bool:
    return domain.find(pointer)[0].mapped is not None


def test_the_same_copies_are_prepared_once(domain: MemoryDomain, made: list[str]) -> None:
    pointer = domain.alloc(1000)
    for number in range(3):
        domain.upload(pointer, filled(number))
        np.testing.assert_array_equal(read(domain, pointer), filled(number))
    assert made == ["upload", "download"] * (3 if is_seen(domain, pointer) else 1)
    domain.free(pointer)


def test_parts_of_a_block(domain: MemoryDomain) -> None:
    pointer = domain.alloc(1000)
    domain.upload(pointer, filled(1))
    domain.upload(pointer + 99, filled(2, 7))
    expected = filled(1)
    expected[99:106] = 2
    np.testing.assert_array_equal(read(domain, pointer), expected)
    np.testing.assert_array_equal(read(domain, pointer + 100, 10), expected[100:110])
    domain.free(pointer)


def test_another_block_at_the_same_address(domain: MemoryDomain, made: list[str]) -> None:
    """What was prepared for memory that the arena has had back meanwhile is not used for the block that lies there now."""
    pointer = domain.alloc(1000)
    domain.upload(pointer, filled(1))
    domain.free(pointer)
    domain.shrink()
    again = domain.alloc(1000)
    domain.upload(again, filled(2))
    np.testing.assert_array_equal(read(domain, again), filled(2))
    assert made == ["upload", "upload", "download"]
    domain.free(again)


@pytest.mark.usefixtures("collected")
def test_memory_goes_when_its_block_is_given_back(domain: MemoryDomain) -> None:
    """Where the host sees it, no prepared copy keeps it."""
    before = gpu_shared.live_counts().get("buffer", 0)
    pointer = domain.reserve(1 << 20)
    seen = is_seen(domain, pointer)
    domain.upload(pointer, filled(1))
    domain.free(pointer)
    domain.wait()
    domain.run_ended()
    domain.context.device.collect()
    staging = 0 if seen else 1
    assert gpu_shared.live_counts().get("buffer", 0) == before + staging


@pytest.mark.usefixtures("collected", "staged")
def test_a_lost_device_gives_all_back() -> None:
    before = gpu_shared.live_counts()
    with SharedGpuContext.create() as context:
        domain = acquire(context)
        pointer = domain.alloc(1000)
        domain.upload(pointer, filled(1))
        domain.wait()
        context.device.reaper.mark_lost(DeviceLostError("vkQueueSubmit"))
        with pytest.raises(DeviceLostError):
            domain.download(pointer, filled(0))
        domain.release()
        assert domain.lease.closed
    assert gpu_shared.live_counts() == before


def test_blocks_come_in_the_same_order_again(domain: MemoryDomain) -> None:
    first = [domain.alloc(1000) for _ in range(4)]
    for order in ([0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]):
        for index in order:
            domain.free(first[index])
        assert [domain.alloc(1000) for _ in range(4)] == sorted(first)
        first.sort()
    for pointer in first:
        domain.free(pointer)


def test_only_so_many_stay_prepared(domain: MemoryDomain) -> None:
    pointers = [domain.alloc(1000) for _ in range(_MOST_ROUTES + 3)]
    for number, pointer in enumerate(pointers):
        domain.upload(pointer, filled(number))
    assert len(domain.uploads._routes) == (0 if is_seen(domain, pointers[0]) else _MOST_ROUTES)
    for number, pointer in enumerate(pointers):
        np.testing.assert_array_equal(read(domain, pointer), filled(number))
        domain.free(pointer)
    domain.trim()
    assert not domain.uploads._routes and not domain.downloads._routes


def test_more_than_is_staged_at_once(domain: MemoryDomain) -> None:
    nbytes = 2 * MOST_STAGED + 5
    data = np.random.default_rng(0).integers(0, 256, nbytes, np.uint8)
    pointer = domain.alloc(nbytes)
    domain.upload(pointer, data)
    np.testing.assert_array_equal(read(domain, pointer, nbytes), data)
    domain.free(pointer)


def test_only_so_many_bytes_stay_prepared(domain: MemoryDomain) -> None:
    """Of what is long enough to be shared out to threads too."""
    pointers = [domain.alloc(MOST_STAGED) for _ in range(3 + _MOST_KEPT // MOST_STAGED)]
    for number, pointer in enumerate(pointers):
        domain.upload(pointer, filled(number, MOST_STAGED))
        np.testing.assert_array_equal(read(domain, pointer, MOST_STAGED), filled(number, MOST_STAGED))
        for copies in (domain.uploads, domain.downloads):
            assert copies._kept == sum(route.staged for route in copies._routes.values()) <= _MOST_KEPT
    assert len(domain.uploads._routes) == (0 if is_seen(domain, pointers[0]) else _MOST_KEPT // MOST_STAGED)
    domain.trim()
    assert domain.uploads._kept == domain.downloads._kept == 0
    for pointer in pointers:
        domain.free(pointer)


def test_threads_that_copy_the_same_and_their_own(domain: MemoryDomain) -> None:
    shared = domain.alloc(1000)
    domain.upload(shared, filled(7))

    def work(number: int) -> None:
        mine = domain.alloc(1000)
        for turn in range(50):
            domain.upload(mine, filled(number + turn))
            np.testing.assert_array_equal(read(domain, shared), filled(7))
            np.testing.assert_array_equal(read(domain, mine), filled(number + turn))
        domain.free(mine)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    domain.free(shared)


def test_a_pointer_into_no_block(domain: MemoryDomain) -> None:
    pointer = domain.alloc(1000)
    domain.upload(pointer, filled(1))
    domain.free(pointer)
    with pytest.raises(ValueError, match="lies in no block"):
        domain.upload(pointer, filled(1))
    with pytest.raises(ValueError, match="no block starts"):
        domain.free(pointer)
    domain.trim()
    arena = domain.uploads._arena
    assert arena is None or arena.stats.bytes_in_use == 0, "its prepared copy is given back too"


def test_a_freed_block_is_no_block_until_it_is_taken_again(domain: MemoryDomain) -> None:
    pointer = domain.alloc(1000)
    live = domain.live_blocks
    domain.free(pointer)
    assert domain.live_blocks == live - 1
    uses: list[Callable[[int], object]] = [domain.find, domain.free]
    for use in uses:
        with pytest.raises(ValueError, match="no block"):
            use(pointer)
    assert domain.alloc(900) == pointer, "of the same size in grains"
    domain.free(pointer)


def test_more_blocks_than_are_kept(domain: MemoryDomain) -> None:
    room = len(domain.spares.blocks)
    pointers = [domain.alloc(300) for _ in range(room + 20)]
    assert len(set(pointers)) == len(pointers)
    live = domain.live_blocks
    for pointer in pointers:
        domain.free(pointer)
    assert domain.live_blocks == live - len(pointers)
    assert domain.spares.free_count == room
    domain.trim()
    assert domain.spares.free_count == domain.spares.count == 0


def test_more_bytes_than_are_kept(domain: MemoryDomain) -> None:
    most = domain.spares.most
    try:
        domain.spares.most = 2048
        pointers = [domain.alloc(1024) for _ in range(4)]
        for _ in range(2):  # as blocks of the arena's, then as ones that were taken from those kept
            for pointer in pointers:
                domain.free(pointer)
            assert domain.spares.free_bytes == 2048
            pointers = [domain.alloc(1024) for _ in range(4)]
            assert len(set(pointers)) == 4
        for pointer in pointers:
            domain.free(pointer)
    finally:
        domain.spares.most = most


def test_threads_that_take_and_give_back(domain: MemoryDomain) -> None:
    taken: set[int] = set()

    def work(number: int) -> None:
        for turn in range(300):
            mine = [domain.alloc(256 * (1 + (number + turn) % 3)) for _ in range(3)]
            assert not taken.intersection(mine)
            taken.update(mine)
            taken.difference_update(mine)
            for pointer in mine:
                domain.free(pointer)

    live = domain.live_blocks
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert domain.live_blocks == live
