"""Allocators under the names of ``onnxruntime``: `OrtArenaCfg`, and functions that take it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vkep.session.ort_devices import OrtMemoryInfo


class OrtArenaCfg:
    """Settings of an arena of ``onnxruntime``, as numbers: a mapping, or the first four by position. -1: not set.

    Raises ``ValueError`` for a name that it has not, ``TypeError`` for another number of arguments.
    """

    max_mem = -1
    arena_extend_strategy = -1
    initial_chunk_size_bytes = -1
    max_dead_bytes_per_chunk = -1
    initial_growth_chunk_size_bytes = -1
    max_power_of_two_extend_bytes = -1

    def __init__(self, *settings: Any) -> None:
        names = [name for name in vars(OrtArenaCfg) if not name.startswith("_")]
        if len(settings) not in (1, 4):
            raise TypeError(
                f"OrtArenaCfg: got {len(settings)} arguments, expected a mapping, or {', '.join(names[:4])}"
            )
        given = settings[0] if len(settings) == 1 else dict(zip(names, settings, strict=False))
        if not isinstance(given, Mapping):
            raise TypeError(f"OrtArenaCfg: got {given!r}, expected a mapping of {', '.join(names)}")
        for name in given:
            if name not in names:
                raise ValueError(f"OrtArenaCfg has no {name!r}; it has {', '.join(names)}")
        for name in names:
            setattr(self, name, int(given.get(name, -1)))


def create_and_register_allocator(memory_info: OrtMemoryInfo, arena_config: OrtArenaCfg | None, /) -> None:
    """Accepted without an effect: sessions of a context share its arena (option ``arena``), and numpy allocates on the host."""


def create_and_register_allocator_v2(
    provider: str, memory_info: OrtMemoryInfo, options: Mapping[str, str], arena_config: OrtArenaCfg | None, /
) -> None:
    """Accepted without an effect, as `create_and_register_allocator`."""
