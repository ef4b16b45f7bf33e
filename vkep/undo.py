"""Taking back what an attempt has added."""

from __future__ import annotations

from typing import Any


class Undo:
    """A mark in lists and dicts that only grow: `undo` removes what was added since. A ``with`` block does so where it raises."""

    def __init__(self, *grown: list[Any] | dict[Any, Any]) -> None:
        self._lengths = [(collection, len(collection)) for collection in grown]

    def undo(self) -> None:
        """Remove what was added since the mark."""
        for collection, length in self._lengths:
            if isinstance(collection, list):
                del collection[length:]
            else:
                for key in list(collection)[length:]:
                    del collection[key]

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is not None:
            self.undo()
