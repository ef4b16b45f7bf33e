"""Texts for messages, terminals and pages."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

#: characters of a word (a name, a path) that messages show
LONGEST_WORD = 4096
_UNSAFE = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def shortened(text: str, longest: int = LONGEST_WORD, shown: int = 100) -> str:
    """A text, of which those of more than ``longest`` characters are replaced by their first and last ``shown`` ones."""
    if len(text) <= longest:
        return text
    return f"{text[:shown]} [... {len(text)} characters ...] {text[-shown:]}"


def printable(text: str) -> str:
    """A text for a terminal or a page: control characters but tabs and ends of lines, marks that change the direction of
    text, and what UTF-8 does not have (undecoded bytes of a file's name) become escapes. Names of models are not trusted."""
    return _UNSAFE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def one_line(name: str) -> str:
    """As `printable`, for a name within a line."""
    return printable(name).replace("\n", "\\n").replace("\t", "\\t")


def finite(value: Any, instead: Callable[[float], Any] = lambda number: None) -> Any:
    """Plain data for standard JSON (RFC 8259): NaN and infinities become null, or ``instead`` of them."""
    if isinstance(value, Mapping):
        return {str(key): finite(item, instead) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item, instead) for item in value]
    return instead(value) if isinstance(value, float) and not math.isfinite(value) else value


def shown(value: object) -> str:
    """A value for a message, shortened. Python refuses to write whole numbers of thousands of digits."""
    try:
        return shortened(repr(value), 200, 80)
    except ValueError:
        return f"a {type(value).__name__} of too many digits"


def counted(count: int, noun: str) -> str:
    """``1 node``, ``2 nodes``, ``2 dispatches``."""
    return f"{count} {noun}" + ("" if count == 1 else "es" if noun.endswith("h") else "s")
