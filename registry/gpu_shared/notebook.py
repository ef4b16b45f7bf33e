"""How objects are shown in IPython and Jupyter."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Any


class Readable:
    """An object that IPython shows as ``str`` gives it, and Jupyter as `_tables` or else as that text."""

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))

    def _repr_html_(self) -> str:
        return self._tables() or f"<pre>{html.escape(str(self))}</pre>"

    def _tables(self) -> str:
        """HTML of `table`; empty: the text is shown."""
        return ""


def table(title: str, head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table in HTML; empty without rows. Texts are escaped."""
    lines = [_row("td", row) for row in rows]
    if not lines:
        return ""
    names = _row("th", head) if head else ""
    return f"<table><caption>{html.escape(title)}</caption>{names}{''.join(lines)}</table>"


def _row(tag: str, cells: Sequence[object]) -> str:
    return "<tr>" + "".join(f"<{tag}>{html.escape(str(cell))}</{tag}>" for cell in cells) + "</tr>"
