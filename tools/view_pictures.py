"""The pictures of `vkep view` in docs/images: ``python -m tools.view_pictures MODEL.onnx [INPUTS.npz]``. It needs Chromium."""

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


def main(arguments: list[str] | None = None) -> int:
    """Take the pictures."""
    parser = argparse.ArgumentParser(prog="python -m tools.view_pictures", description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("inputs", nargs="?", help="an .npz file with keys in_NAME")
    given = parser.parse_args(arguments)
    from vkep.view import Page

    inputs = [given.inputs] if given.inputs else None
    page = Page([measured(given.model, session_options(), (inputs, None, None, 0), 5, None)])
    with tempfile.TemporaryDirectory() as folder, Chromium() as browser:
        url = page.save(Path(folder) / "run.html").as_uri()
        IMAGES.mkdir(parents=True, exist_ok=True)
        for name, (dark, view, select) in PICTURES.items():
            browser.show(url, 1280, 800, dark=dark)
            browser.until("V.ready")
            browser.run(f"V.open('{view}')")
            if view == "graph":
                browser.until("V.graph.state.layout !== null")
            browser.run(select)
            browser.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
            path = IMAGES / f"{name}.webp"
            browser.picture(path)
            print(f"{path.name}: {path.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
