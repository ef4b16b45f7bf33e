"""Sequences and optionals of a run: lists and None for the caller, single tensors for the plans."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vkep.ir.program import LONGEST_LIST, HostValue, ListValue, element_name


def spread(values: dict[str, Any]) -> None:
    """Add the elements of every list in ``values`` under the names that planning uses for them (`element_name`)."""
    for name, value in list(values.items()):
        if isinstance(value, list) and len(value) <= LONGEST_LIST:
            elements = {element_name(name, k): element for k, element in enumerate(value)}
            spread(elements)
            values.update(elements)


def known_list(value: list[Any], name: str) -> HostValue:
    """The properties that planning knows of a list that `spread` has added."""
    if len(value) > LONGEST_LIST:
        return HostValue(f"a sequence of more than {LONGEST_LIST}")
    return ListValue(items=tuple(element_name(name, k) for k in range(len(value))))


def gathered(value: HostValue, tensor: Callable[[str], Any]) -> Any:
    """The list, or None for an optional without an element; ``tensor`` returns the value of a name."""
    return [tensor(name) for name in value.items] if isinstance(value, ListValue) else None
