"""The compiled types of Vulkan structures are those of their C text."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from gpu_shared import vk
from gpu_shared._structures import ffi as compiled
from tools.structures import parsed


def _fields(ffi: Any, name: str) -> list[tuple[str, str, int]]:
    return [(field, value.type.cname, value.offset) for field, value in ffi.typeof(name).fields or ()]


def test_compiled_structures_are_those_of_the_text() -> None:
    """``python -m tools.structures`` writes them again."""
    text = parsed()
    assert compiled.list_types() == text.list_types()
    structures = [name for name in vk._EXTRA_STYPE if name in text.list_types()[0]]
    assert len(structures) == len(vk._EXTRA_STYPE)
    for name in structures:
        assert compiled.sizeof(name) == text.sizeof(name)
        assert _fields(compiled, name) == _fields(text, name)
    for name in text.list_types()[0]:
        assert compiled.typeof(name).kind == text.typeof(name).kind


def test_structure_types_and_constants_are_the_packages(vulkan: object) -> None:
    """Both are taken from its cffi types; its wrappers, which tell them too, are not loaded."""
    import vulkan as package

    text = "".join(path.read_text(encoding="utf-8") for path in Path(vk.__file__).parent.glob("*.py"))
    makers = {n: getattr(package, n, None) for n in re.findall(r'"(Vk[A-Za-z0-9]+)"', text) if n not in vk._EXTRA_STYPE}
    types = {n: made.__defaults__[0] for n, made in makers.items() if made is not None and made.__defaults__}
    typed = {n: number for n, number in types.items() if "sType" in dict(vk.load().ffi.typeof(n).fields)}
    assert len(typed) > 30
    assert {n: vk._structure_type(n) for n in typed} == typed
    constants = set(re.findall(r"vk\.(VK_[A-Z0-9_]+)", text))
    assert len(constants) > 20
    assert {n: getattr(vk, n) for n in constants} == {n: getattr(package, n) for n in constants}
