"""The compiled types of Vulkan structures are those of their C text."""

from __future__ import annotations

from typing import Any

from gpu_shared import vk
from gpu_shared._structures import ffi as compiled
from tools.structures import parsed


def _fields(ffi: Any, name: str) -> list[tuple[str, str, int]]:
    return [(field, value.type.cname, value.offset) for field, value in ffi.typeof(name).fields or ()]


def test_compiled_structures_are_those_of_the_text() -> None:
    """``python -m tools.structures`` writes them anew."""
    text = parsed()
    assert compiled.list_types() == text.list_types()
    structures = [name for name in vk._EXTRA_STYPE if name in text.list_types()[0]]
    assert len(structures) == len(vk._EXTRA_STYPE)
    for name in structures:
        assert compiled.sizeof(name) == text.sizeof(name)
        assert _fields(compiled, name) == _fields(text, name)
    for name in text.list_types()[0]:
        assert compiled.typeof(name).kind == text.typeof(name).kind
