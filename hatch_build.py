"""The project's URLs in the package's metadata: of the repository that builds it, which GitHub's workflows name."""

import os
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class ProjectUrls(MetadataHookInterface):
    """Called by hatchling. A build outside a workflow gives a package without URLs."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add ``urls``."""
        server, repository = os.environ.get("GITHUB_SERVER_URL"), os.environ.get("GITHUB_REPOSITORY")
        home = f"{server}/{repository}" if server and repository else None
        pages = {"Source": "", "Issues": "/issues", "Changelog": "/blob/main/CHANGELOG.md"}
        metadata["urls"] = {name: home + path for name, path in pages.items()} if home else {}
