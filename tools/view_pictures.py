"""The pictures of `vkep view` in docs/images: ``python -m tools.view_pictures MODEL.onnx [INPUTS.npz]``. It needs Chromium.

``--every FOLDER`` takes a picture of every view instead, on a desktop in light and dark and on a phone, to be looked at.
``MODEL`` may be a page that was written before.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tools.chromium import Chromium
from vkep.cli.common import session_options
from vkep.cli.view import measured

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
_SLOWEST = "V.doc.dispatches.reduce((best, d, k, all) => (d.ns > all[best].ns ? k : best), 0)"
_PRODUCT = "V.doc.nodes.findIndex((n) => n.op === 'MatMul' || n.op === 'Conv')"
#: picture: dark, the view, and the selection in it
PICTURES = {
    "view-timeline": (False, "timeline", f"V.select({{ dispatch: {_SLOWEST} }})"),
    "view-graph": (True, "graph", f"V.graph.choose({_PRODUCT})"),
    "view-memory": (False, "memory", "null"),
}
#: for ``--every``: width, height, dark
WINDOWS = {"light": (1280, 800, False), "dark": (1280, 800, True), "phone": (390, 844, True)}


def main(arguments: list[str] | None = None) -> int:
    """Take the pictures."""
    parser = argparse.ArgumentParser(prog="python -m tools.view_pictures", description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("inputs", nargs="?", help="an .npz file with keys in_NAME")
    parser.add_argument("--every", type=Path, metavar="FOLDER", help="take every view in every window")
    given = parser.parse_args(arguments)
    from vkep.view import Page, read_document

    if given.model.suffix == ".html":
        document = read_document(given.model)
    else:
        inputs = [given.inputs] if given.inputs else None
        document = measured(given.model, session_options(), (inputs, None, None, 0), 5, None)
    with tempfile.TemporaryDirectory() as folder, Chromium() as browser:
        url = Page([document]).save(Path(folder) / "run.html").as_uri()
        if given.every is not None:
            take_every(browser, url, given.every)
            return 0
        IMAGES.mkdir(parents=True, exist_ok=True)
        for name, (dark, view, select) in PICTURES.items():
            browser.show(url, 1280, 800, dark=dark)
            take(browser, view, select, IMAGES / f"{name}.webp")
    return 0


def take_every(browser: Chromium, url: str, folder: Path) -> None:
    """A picture of each view in each of `WINDOWS`, without and with a selection."""
    folder.mkdir(parents=True, exist_ok=True)
    for window, (width, height, dark) in WINDOWS.items():
        browser.show(url, width, height, dark=dark)
        browser.until("V.ready")
        for view in browser.run("Object.keys(V.tabs)"):
            chosen = f"V.select(V.doc.dispatches.length ? {{ dispatch: {_SLOWEST} }} : {{ node: 0 }})"
            for what, select in (("", "V.select({})"), ("-chosen", chosen)):
                take(browser, view, select, folder / f"{view}{what}-{window}.png")


def take(browser: Chromium, view: str, select: str, path: Path) -> None:
    """A picture of one view of the page that the browser shows."""
    browser.until("V.ready")
    browser.run(f"V.open('{view}')")
    if view == "graph":
        browser.until("V.graph.state.layout !== null")
    browser.run(select)
    browser.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    browser.picture(path)
    print(f"{path.name}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    sys.exit(main())
