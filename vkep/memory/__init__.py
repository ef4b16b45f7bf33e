"""Memory: the BFC arena (pure) and, in modules of their own, its device side.

This package imports no Vulkan. ``device_arena``, ``staging`` and ``upload`` are imported by their own names.
"""

from vkep.memory.bfc import BfcArena
from vkep.memory.config import (
    ArenaConfig,
    ArenaMode,
    ExtendStrategy,
    factory_prefix,
    session_prefix,
    strip_arena_prefix,
)
from vkep.memory.dump import ArenaSnapshot
from vkep.memory.records import (
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
