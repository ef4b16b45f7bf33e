"""The arena against a naive model: a map of 256-byte granules to what may lie there."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from tests.memory.model import FakeSource
from vkep.arena.chunks import may_merge
from vkep.memory import (
    ArenaConfig,
    ArenaMode,
    ArenaOutOfMemory,
    BfcArena,
    Block,
    ExtendStrategy,
    StreamUse,
)

KIB = 1024
STREAMS = ("a", "b", "c")
streams = st.sampled_from((None, *STREAMS))
sizes = st.one_of(st.integers(1, 600), st.integers(600, 9 * KIB), st.integers(9 * KIB, 80 * KIB))


class ArenaAgainstModel(RuleBasedStateMachine):
    """Random requests; the model knows which device work may still touch which granule."""

    blocks = Bundle("blocks")

    @initialize(
        strategy=st.sampled_from(ExtendStrategy),
        mode=st.sampled_from((ArenaMode.BFC, ArenaMode.BFC, ArenaMode.SEPARATE)),
        max_mem=st.sampled_from((0, 100 * KIB, 256 * KIB + 100)),
        capacity=st.sampled_from((None, 150 * KIB, 400 * KIB)),
        dead=st.sampled_from((1, 2 * KIB, 128 * KIB)),
        alignment=st.sampled_from((256, 1024)),
        with_proof=st.booleans(),
    )
    def start(
        self, strategy: Any, mode: Any, max_mem: Any, capacity: Any, dead: Any, alignment: Any, with_proof: Any
    ) -> None:
        self.config = ArenaConfig(strategy, 4 * KIB, dead, 8 * KIB, 64 * KIB, max_mem, mode)
        self.source = FakeSource(capacity)
        self.free_region = self.source.free_region
        self.source.free_region = self.checked_free_region  # type: ignore[method-assign]
        self.passed: dict[Hashable, int] = dict.fromkeys(STREAMS, 0)
        self.arena = BfcArena(
            self.source, self.config, alignment=alignment, is_passed=self.is_passed if with_proof else None
        )
        self.live: dict[int, Block] = {}  # by address
        self.owner: dict[int, str | None] = {}  # stream of a live block, by address
        self.busy: dict[int, StreamUse] = {}  # granule -> work that may still touch it
        self.peak = 0

    # ---- the model ----

    def is_passed(self, use: StreamUse) -> bool:
        return use.sync_value is not None and use.sync_value <= self.passed[use.stream]

    def unfinished(self, granule: int) -> StreamUse | None:
        use = self.busy.get(granule)
        return None if use is None or self.is_passed(use) else use

    @staticmethod
    def granules(address: int, size: int) -> range:
        return range(address // 256, (address + size) // 256)

    def checked_free_region(self, region_id: int) -> None:
        address, size = self.source.live[region_id]
        for granule in self.granules(address, size):
            assert self.unfinished(granule) is None, "a region went back to the source while the device may use it"
            self.busy.pop(granule, None)
        for block in self.live.values():
            assert not address <= block.address < address + size, "a region went back under a live block"
        self.free_region(region_id)

    def take(self, block: Block, asked: int, stream: str | None) -> Any:
        assert block.address % self.arena.alignment == 0
        assert block.size % self.arena.alignment == 0
        assert block.size >= block.requested == asked
        region_address, region_size = self.source.live[block.region]
        assert block.address == region_address + block.offset
        assert block.offset + block.size <= region_size
        for other in self.live.values():
            assert block.address + block.size <= other.address or other.address + other.size <= block.address
        for granule in self.granules(block.address, block.size):
            use = self.unfinished(granule)
            assert use is None or use.stream == stream, f"{stream} was given memory that {use} may still touch"
            self.busy.pop(granule, None)
        self.live[block.address] = block
        self.owner[block.address] = stream
        self.peak = max(self.peak, sum(b.size for b in self.live.values()))
        return block

    def check_refusal(self, error: ArenaOutOfMemory, asked: int, stream: str | None, reserve: bool) -> None:
        """Nothing that could have served the request was left unused."""
        rounded = -(-asked // self.arena.alignment) * self.arena.alignment
        assert error.asked == asked
        over_limit = self.config.max_mem and self.source.held + rounded > self.config.max_mem
        over_capacity = self.source.capacity is not None and self.source.held + rounded > self.source.capacity
        assert over_limit or over_capacity
        if reserve or self.config.mode is ArenaMode.SEPARATE:
            return
        for region in self.arena.snapshot().regions:
            if region.kind != "chunks":
                continue
            for chunk in region.chunks:
                usable = not chunk.in_use and (chunk.use is None or chunk.use.stream == stream)
                assert not (usable and chunk.size >= rounded)

    # ---- the rules ----

    @rule(target=blocks, nbytes=sizes, stream=streams)
    def alloc(self, nbytes: Any, stream: Any) -> Any:
        try:
            block = self.arena.alloc(nbytes, stream)
        except ArenaOutOfMemory as error:
            self.check_refusal(error, nbytes, stream, reserve=False)
            return multiple()
        return self.take(block, nbytes, stream)

    @rule(target=blocks, nbytes=sizes)
    def reserve(self, nbytes: Any) -> Any:
        before = self.arena.growth_bytes
        try:
            block = self.arena.reserve(nbytes)
        except ArenaOutOfMemory as error:
            self.check_refusal(error, nbytes, None, reserve=True)
            return multiple()
        assert self.arena.growth_bytes == before
        assert block.offset == 0
        return self.take(block, nbytes, None)

    @rule(
        block=consumes(blocks),
        by_address=st.booleans(),
        stream=streams,
        ahead=st.integers(-1, 3),
        kind=st.integers(0, 2),
    )
    def free(self, block: Any, by_address: Any, stream: Any, ahead: Any, kind: Any) -> None:
        handle = block.address if by_address else block
        use = None
        owner = self.owner.pop(block.address)
        del self.live[block.address]  # first: giving a region back at once is right
        granules = self.granules(block.address, block.size)
        if kind == 0:  # by default: the stream it was allocated for
            use = None if owner is None else StreamUse(owner, None)
        elif kind == 1 and stream is not None:
            use = StreamUse(stream, self.passed[stream] + ahead)
        elif stream is not None:
            use = StreamUse(stream, None)
        for granule in granules:
            if use is not None:
                self.busy[granule] = use
        if kind == 0:
            self.arena.free(handle)
        else:
            self.arena.free(handle, stream=stream, sync_value=None if use is None else use.sync_value)
        with pytest.raises(ValueError, match="free"):
            self.arena.free(block)

    @rule(
        stream=st.sampled_from(STREAMS),
        first=st.integers(-1, 3),
        second=st.integers(-1, 3),
        other=st.sampled_from(STREAMS),
    )
    def neighbours(self, stream: Any, first: Any, second: Any, other: Any) -> None:
        """Two blocks, most often side by side, end at different values; another stream asks for both at once."""
        self.arena.release_stream(stream, up_to=self.passed[stream])
        try:
            pair = [self.take(self.arena.alloc(1024, stream), 1024, stream) for _ in range(2)]
        except ArenaOutOfMemory:
            return  # a first block that was taken stays live
        for block, ahead in zip(pair, (first, second), strict=True):
            self.free(block, False, stream, ahead, 1)
        self.passed[stream] += 1
        try:
            block = self.take(self.arena.alloc(2048, other), 2048, other)
        except ArenaOutOfMemory:
            return
        self.free(block, True, None, 0, 1)

    @rule(stream=st.sampled_from(STREAMS))
    def release_all(self, stream: Any) -> None:
        self.busy = {granule: use for granule, use in self.busy.items() if use.stream != stream}
        self.owner = {address: None if owner == stream else owner for address, owner in self.owner.items()}
        self.arena.release_stream(stream)
        for region in self.arena.snapshot().regions:
            assert all(chunk.use is None or chunk.use.stream != stream for chunk in region.chunks)

    @rule(stream=st.sampled_from(STREAMS), steps=st.integers(0, 3))
    def release_up_to(self, stream: Any, steps: Any) -> None:
        self.passed[stream] += steps
        self.arena.release_stream(stream, up_to=self.passed[stream])

    @rule(stream=st.sampled_from(STREAMS), steps=st.integers(1, 3))
    def device_advances(self, stream: Any, steps: Any) -> None:
        self.passed[stream] += steps

    @rule()
    def shrink(self) -> None:
        before = self.source.held
        assert self.arena.shrink() == before - self.source.held
        assert self.arena.growth_bytes == 8 * KIB
        for region in self.arena.snapshot().regions:
            assert any(chunk.in_use or chunk.use is not None for chunk in region.chunks)

    @rule(offset=st.integers(1, 255))
    def free_nonsense(self, offset: Any) -> None:
        for address in [*self.live][:1]:
            with pytest.raises(ValueError, match="inside the block"):
                self.arena.free(address + offset)
        with pytest.raises(ValueError, match="none of the arena's"):
            self.arena.free(offset)

    # ---- what always holds ----

    @invariant()
    def consistent(self) -> None:
        if not hasattr(self, "arena"):
            return
        stats, snapshot = self.arena.stats, self.arena.snapshot()
        assert stats.bytes_in_use == sum(block.size for block in self.live.values())
        assert stats.max_bytes_in_use == self.peak
        assert stats.total_allocated_bytes == self.source.held == sum(region.size for region in snapshot.regions)
        assert not self.config.max_mem or self.source.held <= self.config.max_mem
        in_use = {}
        free_in_bins = 0
        for region in snapshot.regions:
            at = 0
            for chunk in region.chunks:
                assert chunk.offset == at
                assert chunk.size > 0
                at += chunk.size
                if chunk.in_use:
                    in_use[region.address + chunk.offset] = chunk.size
                elif region.kind == "chunks":
                    free_in_bins += 1
            assert at == region.size
        assert in_use == {block.address: block.size for block in self.live.values()}
        assert sum(count for _low, count, _bytes in snapshot.bins) == free_in_bins
        for held in self.arena._regions:
            for piece in held.chunks():
                assert piece.next is None or not may_merge(piece, piece.next)

    def teardown(self) -> None:
        if not hasattr(self, "arena"):
            return
        for block in list(self.live.values()):
            self.owner.pop(block.address)
            del self.live[block.address]
            self.arena.free(block, stream=None)
        self.busy.clear()
        for stream in STREAMS:
            self.arena.release_stream(stream)
        self.arena.shrink()
        assert self.source.live == {}
        assert self.arena.stats.total_allocated_bytes == 0
        assert self.arena.close() == 0


TestArenaAgainstModel = ArenaAgainstModel.TestCase
TestArenaAgainstModel.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
