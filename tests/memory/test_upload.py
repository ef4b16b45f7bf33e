"""Transfers on the driver at hand, through staging and into mapped memory."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpu_shared
from tests.calls import noted
from tests.memory.model import MIB
from vkep.device import constants
from vkep.graph.weights import ArrayWeight
from vkep.memory import ArenaOutOfMemory, upload
from vkep.memory.device_arena import DeviceArena, DeviceBlock
from vkep.memory.host_chunks import pieces_of
from vkep.memory.staging_ring import shared_staging_arena
from vkep.memory.upload import Upload, Uploader
from vkep.plan.records import ConstantRef

pytestmark = pytest.mark.gpu
PIECE = 64 * 1024


class Hidden:
    """A block whose memory the host does not see, as on a discrete GPU: transfers must go through staging."""

    mapped = None

    def __init__(self, block: Any) -> None:
        self.buffer, self.offset, self.size, self.whole = block.buffer, block.offset, block.size, block


@pytest.fixture
def arena(context: Any) -> Iterator[Any]:
    with DeviceArena(context.device) as arena:
        yield arena


@pytest.fixture
def uploader(lease: Any) -> Iterator[Any]:
    with Uploader(lease, piece_bytes=PIECE) as uploader:
        yield uploader


@pytest.fixture(params=["staged", "mapped"])
def block_of(request: pytest.FixtureRequest, arena: Any) -> Any:
    """A function that makes a block of the arena: with its own view, or without one."""

    def make(nbytes: Any) -> Any:
        block = arena.reserve(nbytes)
        if request.param == "staged":
            return Hidden(block)
        if block.mapped is None:
            pytest.skip("this device has no memory that the host sees")
        return block

    return make


@pytest.mark.parametrize("nbytes", [1, 3, 4096, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE, 5 * PIECE + 77])
def test_bytes_come_back(uploader: Any, block_of: Any, nbytes: Any) -> None:
    data = np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8)
    block = block_of(nbytes + 10)
    uploader.upload(block, np.full(nbytes + 10, 9, np.uint8))
    uploader.upload(block, data, offset=5)
    out = np.zeros(nbytes + 10, np.uint8)
    uploader.download(block, out)
    assert np.array_equal(out[5:-5], data)
    assert set(out[:5]) | set(out[-5:]) == {9}
    part = np.zeros(nbytes, np.uint8)
    uploader.download(block, part, offset=5)
    assert np.array_equal(part, data)


def test_staging_stays_bounded(context: Any, uploader: Any, arena: Any) -> None:
    block = Hidden(arena.reserve(20 * PIECE))
    with shared_staging_arena(context, "upload") as up, shared_staging_arena(context, "download") as down:
        uploader.upload(block, bytes(20 * PIECE))
        out = np.ones(20 * PIECE, np.uint8)
        uploader.download(block, out)
        assert not out.any()
        assert up.stats.max_bytes_in_use == down.stats.max_bytes_in_use == 2 * PIECE
        uploader.trim()
        assert up.stats.total_allocated_bytes == down.stats.total_allocated_bytes == 0
        uploader.upload(block, b"again")


def test_arrays_of_every_kind(uploader: Any, block_of: Any) -> None:
    arrays = [
        np.arange(60_000, dtype=np.float32).reshape(100, 600),
        np.arange(60_000, dtype=np.float64).reshape(100, 600).T,
        np.arange(100_000, dtype=np.int16)[::-3],
        np.arange(40_000).reshape(20, 20, 100).astype(ml_dtypes.bfloat16).transpose(2, 0, 1),
        np.broadcast_to(np.float16(1.5), (300, 300)),
        (np.arange(50_000) % 3 == 0).reshape(5, 10_000)[:, ::2],
        np.array(7, np.int64),
        np.asfortranarray(np.arange(30_000, dtype=np.complex128).reshape(100, 300)),
    ]
    for array in arrays:
        block = block_of(array.nbytes)
        uploader.upload(block, array)
        out = np.empty(array.shape, array.dtype)
        uploader.download(block, out)
        assert np.array_equal(out, array)
        getattr(block, "whole", block).free()


@given(
    shape=st.lists(st.integers(0, 7), min_size=0, max_size=4),
    axes=st.randoms(use_true_random=False),
    steps=st.lists(st.sampled_from((-2, -1, 1, 2)), min_size=4, max_size=4),
    piece=st.integers(8, 300),
)
@settings(deadline=None)
def test_pieces_are_the_bytes_in_c_order(shape: Any, axes: Any, steps: Any, piece: Any) -> None:
    array = np.arange(int(np.prod(shape)), dtype=np.int64).reshape(shape)
    order = list(range(len(shape)))
    axes.shuffle(order)
    array = array.transpose(order)[tuple(slice(None, None, step) for step, _ in zip(steps, shape, strict=False))]
    pieces = [bytes(p) for p in pieces_of(array, piece)]
    assert b"".join(pieces) == array.tobytes()
    assert all(0 < len(p) <= piece for p in pieces)


def test_buffers_and_mapped_files(uploader: Any, block_of: Any, tmp_path: Path) -> None:
    data = np.random.default_rng(0).integers(0, 256, 3 * PIECE + 5, np.uint8).tobytes()
    path = tmp_path / "weights"
    path.write_bytes(data)
    block = block_of(len(data))
    out = np.empty(len(data), np.uint8)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        for source in (data, bytearray(data), memoryview(data), mapped, np.memmap(path, np.uint8, "r")):
            uploader.upload(block, np.zeros(len(data), np.uint8))
            uploader.upload(block, source)
            uploader.download(block, out)
            assert out.tobytes() == data


def test_progress_counts_to_the_end_over_all_items(uploader: Any, block_of: Any) -> None:
    calls = []
    one, two = block_of(2 * PIECE), block_of(PIECE + 100)
    total = 3 * PIECE + 100
    uploader.upload_all(
        [
            Upload(one, np.full(2 * PIECE, 1, np.uint8), 2 * PIECE, label="one"),
            Upload(two, lambda: np.full(PIECE + 100, 2, np.uint8), PIECE + 100, label="two"),
        ],
        total,
        progress=lambda done, of, label: calls.append((done, of, label)),
    )
    assert calls == [
        (PIECE, total, "one"),
        (2 * PIECE, total, "one"),
        (3 * PIECE, total, "two"),
        (total, total, "two"),
    ]
    out = np.zeros(PIECE + 100, np.uint8)
    calls.clear()
    uploader.download(two, out, label="back", progress=lambda *call: calls.append(call))
    assert (out == 2).all()
    assert calls == [(PIECE, PIECE + 100, "back"), (PIECE + 100, PIECE + 100, "back")]


def test_a_returned_value_tells_when_the_bytes_are_there(lease: Any, uploader: Any, arena: Any) -> None:
    block = Hidden(arena.reserve(3 * PIECE))
    value = uploader.upload(block, bytes(3 * PIECE))
    assert value == lease.context.timeline.submitted == 3
    uploader.finish()
    assert lease.context.timeline.completed >= value


def test_small_items_leave_together(lease: Any, uploader: Any, arena: Any) -> None:
    """One submit for as many as a piece holds; each arrives where it belongs."""
    apart = PIECE // 4
    block = Hidden(arena.reserve(64 * apart))
    rng = np.random.default_rng(5)
    parts = [rng.integers(0, 256, size, np.uint8) for size in rng.integers(1, apart, 64)]
    before = lease.context.timeline.submitted
    items = [Upload(block, part, part.nbytes, apart * n) for n, part in enumerate(parts)]
    total = sum(part.nbytes for part in parts)
    value = uploader.upload_all(items, total)
    submits = lease.context.timeline.submitted - before
    assert value == lease.context.timeline.submitted
    assert total / PIECE <= submits <= total / (PIECE - apart) + 1 < len(parts) / 4
    out = np.empty(64 * apart, np.uint8)
    uploader.download(block, out)
    for n, part in enumerate(parts):
        assert np.array_equal(out[apart * n :][: part.size], part)


def test_an_item_that_fills_its_place_is_not_opened_and_a_long_one_is_filled_in_parts(
    uploader: Any, block_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload, "READ_BYTES", 3000)
    size = 2 * PIECE + 1
    block, out, calls = block_of(3 * PIECE), np.empty(3 * PIECE, np.uint8), []
    content = np.random.default_rng(0).integers(0, 256, size).astype(np.uint8)

    def fill(place: Any, start: Any) -> None:
        place[:] = content[start : start + place.size]

    def read() -> Any:
        raise AssertionError("it was opened")

    uploader.upload(block, np.zeros(3 * PIECE, np.uint8))
    items = [
        Upload(block, np.full(100, 3, np.uint8), 100, 0, "opened"),
        Upload(block, read, 200, 256, "filled", fill=fill),
        Upload(block, read, size, 512, "large", fill=fill),
    ]
    uploader.upload_all(items, 300 + size, progress=lambda *call: calls.append(call))
    uploader.download(block, out)
    assert (out[:100] == 3).all() and np.array_equal(out[256:456], content[:200])
    assert np.array_equal(out[512 : 512 + size], content)
    assert not out[100:256].any() and not out[456:512].any() and not out[512 + size :].any()
    assert {label for _, _, label in calls} == {"opened", "filled", "large"}
    assert [done for done, _, _ in calls] == sorted(done for done, _, _ in calls)
    assert calls[-1][:2] == (300 + size, 300 + size)


def test_several_threads_fill_at_once_and_none_outlives_the_call(
    uploader: Any, block_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload, "READERS", 3)
    together = threading.Barrier(3, timeout=120)
    count, each = 24, PIECE // 6 // 16 * 16  # six to a piece
    block, out = block_of(count * each), np.empty(count * each, np.uint8)

    def fill(n: Any) -> Any:
        def write(place: Any, start: Any) -> None:
            together.wait()
            place[:] = n + 1

        return write

    items = [Upload(block, b"", each, n * each, fill=fill(n)) for n in range(count)]
    uploader.upload_all(items, count * each)
    assert not [t for t in threading.enumerate() if t.name.startswith("vkep-read")]
    uploader.download(block, out)
    assert np.array_equal(out, np.repeat(np.arange(1, count + 1, dtype=np.uint8), each))


def test_a_fill_that_raises_stops_the_upload_and_leaves_the_uploader_usable(uploader: Any, block_of: Any) -> None:
    block, out = block_of(PIECE), np.empty(PIECE, np.uint8)

    def broken(place: Any, start: Any) -> None:
        raise OSError("the file is gone")

    items = [Upload(block, b"", 64, 64 * n, fill=broken) for n in range(40)]
    with pytest.raises(OSError, match="the file is gone"):
        uploader.upload_all(items, 64 * 40)
    assert not [t for t in threading.enumerate() if t.name.startswith("vkep-read")]
    uploader.upload(block, np.full(PIECE, 6, np.uint8))
    uploader.download(block, out)
    assert (out == 6).all()


def test_more_bytes_than_announced_arrive(uploader: Any, arena: Any) -> None:
    block = Hidden(arena.reserve(1024))
    parts = [np.full(256, n, np.uint8) for n in range(4)]
    uploader.upload_all([Upload(block, part, 256, 256 * n) for n, part in enumerate(parts)], 300)
    out = np.empty(1024, np.uint8)
    uploader.download(block, out)
    assert np.array_equal(out, np.concatenate(parts))


def test_progress_that_raises_stops_the_transfer_and_leaves_the_uploader_usable(uploader: Any, block_of: Any) -> None:
    block = block_of(4 * PIECE)

    def cancel(done: Any, total: Any, label: Any) -> None:
        raise KeyboardInterrupt(done)

    with pytest.raises(KeyboardInterrupt):
        uploader.upload(block, bytes(4 * PIECE), progress=cancel)
    with pytest.raises(KeyboardInterrupt):
        uploader.download(block, np.empty(4 * PIECE, np.uint8), progress=cancel)
    data = np.arange(PIECE, dtype=np.uint32)
    uploader.upload(block, data)
    out = np.empty_like(data)
    uploader.download(block, out)
    assert np.array_equal(out, data)


def test_nothing_to_move(uploader: Any, block_of: Any) -> None:
    block = block_of(10)
    assert uploader.upload(block, np.empty((0, 3), np.float32)) == 0
    assert uploader.upload(block, b"", offset=10) == 0
    uploader.download(block, np.empty(0, np.uint8))


def test_bad_arguments(lease: Any, uploader: Any, block_of: Any) -> None:
    block = block_of(256)
    with pytest.raises(ValueError, match=r"upload of 'w': 257 bytes at 0 are outside the block of 256 bytes"):
        uploader.upload(block, bytes(257), label="w")
    with pytest.raises(ValueError, match="at -1 are outside"):
        uploader.upload(block, b"x", offset=-1)
    with pytest.raises(ValueError, match="200 bytes announced, the data has 100"):
        uploader.upload_all([Upload(block, bytes(100), 200)], 200)
    with pytest.raises(TypeError):
        uploader.upload(block, "text")
    with pytest.raises(ValueError, match="C-contiguous"):
        uploader.download(block, np.empty((10, 10), np.uint8).T)
    frozen = np.empty(10, np.uint8)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="writable"):
        uploader.download(block, frozen)
    with pytest.raises(TypeError, match="expected a numpy array"):
        uploader.download(block, bytearray(10))
    with pytest.raises(ValueError, match="outside the block"):
        uploader.download(block, np.empty(257, np.uint8))
    with pytest.raises(ValueError, match="piece_bytes: expected 4096"):
        Uploader(lease, piece_bytes=100)
    with pytest.raises(TypeError, match="pieces: expected an int"):
        Uploader(lease, pieces=2.0)  # type: ignore[arg-type]
    uploader.close()
    uploader.close()
    with pytest.raises(ValueError, match="closed"):
        uploader.upload(block, b"x")


def test_no_staging_memory_is_an_error_and_nothing_more(
    context: Any, uploader: Any, arena: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    block = Hidden(arena.reserve(PIECE))
    with shared_staging_arena(context, "upload") as up:

        def refuse(nbytes: Any) -> None:
            raise ArenaOutOfMemory("t", asked=nbytes, in_use=0, allocated=0, limit=1, largest_free=0, reason="a test")

        with monkeypatch.context() as patch:
            patch.setattr(up, "alloc", refuse)
            with pytest.raises(ArenaOutOfMemory):
                uploader.upload(block, b"abc")
        uploader.upload(block, b"abc")
        out = np.empty(3, np.uint8)
        uploader.download(block, out)
        assert out.tobytes() == b"abc"


@pytest.mark.usefixtures("collected")
def test_a_large_array_passes_through_few_pieces(lease: Any, arena: Any) -> None:
    data = np.arange(8 * MIB, dtype=np.uint32)  # 32 MiB
    block = Hidden(arena.reserve(data.nbytes))
    before = gpu_shared.live_counts()["buffer"]
    with Uploader(lease, piece_bytes=3 * MIB, pieces=3) as uploader:
        uploader.upload(block, data)
        out = np.empty_like(data)
        uploader.download(block, out)
        assert np.array_equal(out, data)
        assert gpu_shared.live_counts()["buffer"] <= before + 2 * 3


@pytest.mark.parametrize("order", ["C", "F"])
def test_an_array_in_memory_is_copied_as_a_whole_once(
    context: Any, uploader: Any, arena: Any, monkeypatch: pytest.MonkeyPatch, order: Any
) -> None:
    """One of another order is made dense for the whole array, not for each part."""
    array = np.asarray(
        np.random.default_rng(0).normal(size=(300, 3 * upload.READ_BYTES // 1200)).astype(np.float32), order=order
    )
    dense = noted(monkeypatch, np, "ascontiguousarray", lambda given, *_: given is array)
    block = arena.reserve(array.nbytes)
    ref, hidden = ConstantRef("w", array.nbytes, "w"), cast(DeviceBlock, Hidden(block))
    uploader.upload_all([constants._upload(ArrayWeight("w", array), ref, hidden, 0)], array.nbytes)
    uploader.finish()
    out = np.empty(array.shape, np.float32)
    uploader.download(hidden, out)
    np.testing.assert_array_equal(out, array)
    assert order == "C" or dense.count(True) == 1
