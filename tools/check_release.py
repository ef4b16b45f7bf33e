"""Checks that a tag, ``vkep.__version__``, pyproject.toml and CHANGELOG.md name one version; prints its part of the changelog.

python tools/check_release.py v0.1.0
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def notes(version: str) -> str:
    """The changelog's part on a version, without its heading. Raises ``SystemExit`` where something disagrees."""
    for name, pattern in (("pyproject.toml", r'^version = "(.*)"$'), ("vkep/__init__.py", r'^__version__ = "(.*)"$')):
        found = re.search(pattern, (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE)
        if found is None or found[1] != version:
            raise SystemExit(f"{name} has version {found and found[1]!r}, the tag has {version!r}")
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    part = re.search(
        rf"^## {re.escape(version)} \(\d{{4}}-\d\d-\d\d\)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL
    )
    if part is None:
        raise SystemExit(f"CHANGELOG.md has no heading '## {version} (YYYY-MM-DD)'")
    return part[1].strip()


if __name__ == "__main__":
    print(notes(sys.argv[1].removeprefix("v")))
