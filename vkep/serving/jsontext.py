"""JSON text of requests and answers, read and written so that other threads run meanwhile.

Python's parser and encoder, and numpy's conversion of lists, keep the interpreter's lock for a whole call: half a second for a
million numbers, in which no other request of the process is read or answered.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
#: bytes of text that are read in one call, and values that are converted in one
_SHORT, _VALUES = 1 << 16, 1 << 13


def loads(text: bytes, constant: Callable[[str], Any]) -> Any:
    """The value of a JSON text; ``constant`` is called for NaN and infinities. Raises ``ValueError``, ``RecursionError``."""
    if len(text) <= _SHORT:
        return json.loads(text, parse_constant=constant)
    # a call of a function in Python for each number is where other threads may run
    return json.loads(
        text, parse_constant=constant, parse_float=lambda number: float(number), parse_int=lambda number: int(number)
    )


def array_of(values: list[Any]) -> Array:
    """A list as numpy has it, nested lists too. Raises ``ValueError``, ``TypeError``."""
    if len(values) == 1 and isinstance(values[0], list):
        return array_of(values[0])[None]
    step = max(1, _VALUES // len(values[0])) if values and isinstance(values[0], list) and values[0] else _VALUES
    parts = [np.asarray(values[at : at + step]) for at in range(0, len(values), step)]
    return np.concatenate(parts) if len(parts) > 1 else np.asarray(values)


def text_of(array: Array) -> str:
    """The elements of a flat array as a JSON list. Numbers that JSON does not have are null; bytes are UTF-8."""
    return f"[{', '.join(_text_of(array[at : at + _VALUES]) for at in range(0, len(array), _VALUES))}]"


def unicode_of(value: str | bytes) -> str:
    """A string of an array, which may be in UTF-8."""
    return value.decode() if isinstance(value, bytes) else value


def _text_of(array: Array) -> str:
    values = array.tolist()
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        values = [value if finite else None for value, finite in zip(values, np.isfinite(array), strict=True)]
    elif array.dtype.kind in "OSU":
        values = [unicode_of(value) for value in values]
    return json.dumps(values, allow_nan=False)[1:-1]


class JsonCount:
    """How many values, and how many lists and objects, a JSON text has outside its strings, counted piece by piece."""

    def __init__(self) -> None:
        self.values, self.lists = 1, 0
        self._in_string = self._escaped = False  # the last piece ended in a string; with a backslash that escapes

    def add(self, piece: bytes) -> None:
        """Count the next piece."""
        for at in range(0, len(piece), _SHORT):
            part = piece[at + self._escaped : at + _SHORT].replace(b"\\\\", b"").replace(b'\\"', b"")
            self._escaped = part.endswith(b"\\")
            between = part.split(b'"')
            outside = b"".join(between[self._in_string :: 2])
            self.values += outside.count(b",")
            self.lists += outside.count(b"[") + outside.count(b"{")
            self._in_string ^= len(between) % 2 == 0
