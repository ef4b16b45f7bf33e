"""Creates a page from documents: one HTML file that contains its libraries, scripts and data, and needs no network."""

from __future__ import annotations

import html
import json
import os
import re
import sys
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vkep.own_files import write_atomically
from vkep.text import finite
from vkep.view.document import FORMAT

_HERE = Path(__file__).parent
#: third-party code in vendor/ (`python -m tools.view_vendor` fetches and checks it): element id, file
LIBRARIES = (("library-d3-dag", "d3-dag.iife.min.js"), ("library-uplot", "uPlot.iife.min.js"))
STYLES = ("vendor/uPlot.min.css", "page/style.css")
#: the page's own code, in the order in which it runs; "layout" runs in a worker too
SCRIPTS = (
    "base",
    "tables",
    "layout",
    "canvas",
    "picture",
    "folding",
    "minimap",
    "graph",
    "details",
    "timeline",
    "dispatches",
    "memory",
    "model",
    "compare",
    "overview",
    "main",
)
_DATA = re.compile(r'<script type="application/json" id="documents">(.*?)</script>', re.DOTALL)
_FRAME_HEIGHT = 720


class Page:
    """A page of one run, or of two to compare. Jupyter shows it inline.

    ``documents``: see `vkep.view.document`; the first is compared with the second, if there is one.

    Raises ``ValueError`` for another number of documents.
    """

    def __init__(self, documents: Sequence[dict[str, Any]]) -> None:
        if len(documents) not in (1, 2):
            raise ValueError(f"got {len(documents)} documents, expected one, or two to compare")
        self.documents = tuple(documents)

    @property
    def document(self) -> dict[str, Any]:
        """The run that the page is about, as plain data."""
        return self.documents[0]

    def html(self) -> str:
        """The file's text."""
        parts = {
            "title": html.escape(f"{self.document['title']} - vkep"),
            "styles": "\n".join((_HERE / name).read_text(encoding="utf-8") for name in STYLES),
            "libraries": "\n".join(
                f'<script id="{name}">{_script(_HERE / "vendor" / file)}</script>' for name, file in LIBRARIES
            ),
            "documents": _json(self.documents).replace("<", "\\u003c"),
            "scripts": "\n".join(
                f'<script id="script-{name}">\n{_script(_HERE / "page" / f"{name}.js")}</script>' for name in SCRIPTS
            ),
        }
        template = (_HERE / "page" / "page.html").read_text(encoding="utf-8")
        return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], template)

    def save(self, path: str | Path) -> Path:
        """Write the file; returns its absolute path. Raises ``OSError``."""
        path = Path(path).absolute()
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, self.html().encode())
        return path

    def open(self, path: str | Path) -> Path:
        """Write the file, and show it in the browser if there is one (`show`). Raises ``OSError``."""
        path = self.save(path)
        show(path)
        return path

    def _repr_html_(self) -> str:
        inner = html.escape(self.html(), quote=True)
        return f'<iframe srcdoc="{inner}" style="width:100%;height:{_FRAME_HEIGHT}px;border:0"></iframe>'


def show(path: Path) -> bool:
    """Open a file in the browser; False where there is none: without a display Python would start a text browser."""
    drawn = sys.platform in ("win32", "darwin") or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")))
    return drawn and webbrowser.open(path.as_uri())


def read_document(path: Path) -> dict[str, Any]:
    """Read the first document of a page that was written before, or of a JSON file. Raises ``ValueError``,
    ``OSError``."""
    text = path.read_text(encoding="utf-8")
    found = _DATA.search(text)
    try:
        data = json.loads(found[1] if found else text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: neither a page of vkep view nor JSON ({error})") from None
    document = data[0] if isinstance(data, list) and data else data
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ValueError(f"{path}: no document of format {FORMAT}, as `vkep view` of this version writes them")
    return document


def _script(path: Path) -> str:
    return path.read_text(encoding="utf-8").replace("</script", "<\\/script")


def _json(value: Any) -> str:
    """JSON that browsers read: NaN and infinities are texts."""
    return json.dumps(finite(value, str), separators=(",", ":"), default=_plain, allow_nan=False)


def _plain(value: Any) -> Any:
    """Convert types that json lacks: sets, numpy's numbers."""
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if hasattr(value, "item"):
        return finite(value.item(), str)
    return str(value)
