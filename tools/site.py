"""Hooks of mkdocs.yml: pages outside ``docs/`` (CONTRIBUTING.md, examples) join the site, and links to them are followed.

The sources keep links that work in the repository. A link to a file that is no page becomes plain text.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
#: the page of the site, by the file of the repository
OUTSIDE = {
    **{name: f"project/{name}" for name in ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")},
    "README.md": "index.md",
    "registry/gpu_shared/README.md": "project/gpu_shared.md",
    **{f"examples/{path.name}": f"examples/{path.stem}.md" for path in sorted((ROOT / "examples").glob("*.py"))},
}
#: The search's query language excludes what follows a hyphen: `onnxruntime-gpu` would search for pages without "gpu". A hyphen
#: within a word becomes a space, as in the index.
_HYPHENS = """self.addEventListener("message", ({ data }) => {
  if (typeof data.data === "string") data.data = data.data.replace(/(?<=[^\\s"])-(?=[^\\s"])/g, " ");
});
"""
_LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def on_files(files: Any, config: Any) -> Any:
    """Add the pages from outside ``docs/``."""
    from mkdocs.structure.files import File

    for source, page in OUTSIDE.items():
        if page == "index.md":
            continue
        text = (ROOT / source).read_text(encoding="utf-8")
        if source.endswith(".py"):
            text = f"---\nsearch:\n  boost: 0.2\n---\n# {source}\n\n```python\n{text}```\n"  # guides are found first
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Turn the links of a page, which lead to files of the repository, into links between pages of the site."""
    uri: str = page.file.src_uri
    source = next((name for name, made in OUTSIDE.items() if made == uri and uri != "index.md"), f"docs/{uri}")
    kept = [found.group() for found in _FENCE.finditer(markdown)]
    parts = [_LINK.sub(lambda found: _link(found, source, uri), part) for part in _FENCE.split(markdown)]
    return "".join(part + fence for part, fence in zip(parts, [*kept, ""], strict=True))


def on_post_build(config: Any) -> None:
    """Let the search's worker read hyphens within words as spaces."""
    (worker,) = Path(config["site_dir"]).glob("assets/javascripts/workers/search.*.js")
    worker.write_text(_HYPHENS + worker.read_text(encoding="utf-8"), encoding="utf-8")


def _link(found: re.Match[str], source: str, uri: str) -> str:
    text, target = found.groups()
    path, mark, anchor = target.partition("#")
    if "://" in target or target.startswith("mailto:") or not path:
        return found.group()
    file = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
    page = OUTSIDE.get(file) or (file.removeprefix("docs/") if file.startswith("docs/") else None)
    if page is None:
        return text
    return f"[{text}]({posixpath.relpath(page, posixpath.dirname(uri) or '.')}{mark}{anchor})"
