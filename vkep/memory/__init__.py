"""Memory of devices: the arena's buffers, staging memory, uploads and results. The arithmetic is in `vkep.arena`.

This package imports no Vulkan. ``device_arena``, ``staging`` and ``upload`` are imported by their own names.
"""

from vkep.arena import (
    ArenaConfig,
    ArenaMode,
    ArenaOutOfMemory,
    ArenaSnapshot,
    ArenaStats,
    BfcArena,
    Block,
    ExtendStrategy,
    RegionOutOfMemory,
    RegionSource,
    SourceRegion,
    StreamUse,
    factory_prefix,
    session_prefix,
    strip_arena_prefix,
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
