"""The BFC arena's arithmetic: which bytes of which region a block gets. Pure, and testable without a driver."""

from vkep.arena.bfc import BfcArena
from vkep.arena.config import (
    ArenaConfig,
    ArenaMode,
    ExtendStrategy,
    factory_prefix,
    session_prefix,
    strip_arena_prefix,
)
from vkep.arena.dump import ArenaSnapshot
from vkep.arena.records import (
    ArenaOutOfMemory,
    ArenaStats,
    Block,
    RegionOutOfMemory,
    RegionSource,
    SourceRegion,
    StreamUse,
)

__all__ = [
    "ArenaConfig",
    "ArenaMode",
    "ArenaOutOfMemory",
    "ArenaSnapshot",
    "ArenaStats",
    "BfcArena",
    "Block",
    "ExtendStrategy",
    "RegionOutOfMemory",
    "RegionSource",
    "SourceRegion",
    "StreamUse",
    "factory_prefix",
    "session_prefix",
    "strip_arena_prefix",
]
