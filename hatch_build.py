"""The project's URLs and README in the package's metadata: links lead to the repository that builds it, which GitHub's
workflows name."""

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")


class ProjectUrls(MetadataHookInterface):
    """Called by hatchling. A build outside a workflow gives a package without URLs, and a README without links to files."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add ``urls`` and ``readme``."""
        server, repository = os.environ.get("GITHUB_SERVER_URL"), os.environ.get("GITHUB_REPOSITORY")
        home = f"{server}/{repository}" if server and repository else None
        pages = {"Source": "", "Issues": "/issues", "Changelog": "/blob/main/CHANGELOG.md"}
        metadata["urls"] = {name: home + path for name, path in pages.items()} if home else {}
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        ref = os.environ.get("GITHUB_REF_NAME", "main") if os.environ.get("GITHUB_REF_TYPE") == "tag" else "main"
        metadata["readme"] = {"content-type": "text/markdown", "text": absolute_links(text, home, ref)}


def absolute_links(text: str, home: str | None, ref: str = "main") -> str:
    """Markdown whose links to files of the repository lead to ``home`` at ``ref``. Without ``home`` links become plain
    text, and pictures are left out: on a package index they would be dead."""

    def absolute(found: re.Match[str]) -> str:
        picture, label, target = found.groups()
        if "://" in target or target.startswith("#"):
            return found.group()
        if home is None:
            return "" if picture else label
        return f"{picture}[{label}]({home}/{'raw' if picture else 'blob'}/{ref}/{target})"

    return _LINK.sub(absolute, text)
