"""What a reader types into the site's search, and the page that it must find first.

    python -m tools.site_search [build/site]    # after mkdocs build: exit status 1 where another page is first

The words are searched by the site's own search worker, run in node as a browser runs it (`tools/site_search.cjs`).
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: words by the page of ``docs/`` that answers
WORDS: Mapping[str, tuple[str, ...]] = {
    "guides/troubleshooting.md": (
        "troubleshooting", "faq", "telemetry", "roadmap", "pandas", "conda", "bug report", "train",
    ),
    "guides/drivers.md": (
        "install driver", "driver", "nvidia driver", "amd", "intel", "jetson", "wsl", "fedora", "windows", "macos",
    ),
    "guides/docker.md": ("docker", "container", "kubernetes", "podman"),
    "guides/choosing.md": ("choose engine", "ncnn", "llama.cpp", "tensorrt", "vllm", "openvino"),
    "guides/migrating.md": ("DirectML", "migrate", "onnxruntime gpu", "onnxruntime-gpu", "trtexec"),
    "guides/models.md": ("hugging face", "safetensors", "export model", "yolo", "ultralytics", "gguf"),
    "guides/versions.md": ("versions", "platforms", "extras", "musl"),
    "clients/one-line.md": ("fastembed", "chromadb", "rembg", "mlflow", "gradio", "silero-vad", "magika"),
    "clients/jupyter.md": ("jupyter", "notebook"),
    "devices.md": ("devices",),
    "generation.md": ("language models", "whisper"),
    "quickstart.md": ("quickstart",),
    "serving.md": ("openai", "serving"),
    "cli.md": ("vkep doctor", "vkep compare", "vkep cache"),
}  # fmt: skip


def wrong(found: Mapping[str, Sequence[str]], words: Mapping[str, Sequence[str]] = WORDS) -> list[str]:
    """A line for each word whose first page is another one. ``found``: the pages of the site by word, in order."""
    return [
        f"{word!r}: expected {page}, found {', '.join(found.get(word, [])[:3]) or 'nothing'}"
        for page, searched in words.items()
        for word in searched
        if [*found.get(word, []), ""][0] != page.removesuffix(".md") + ".html"
    ]


def search(site: Path, words: Sequence[str]) -> dict[str, list[str]]:
    """The pages that the site's search finds for each of the words. Raises ``CalledProcessError``."""
    command = ["node", str(ROOT / "tools" / "site_search.cjs"), str(site), *words]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found: dict[str, list[str]] = json.loads(printed)
    return found


def main(arguments: Sequence[str]) -> int:
    """Search every word; print the wrong ones."""
    if shutil.which("node") is None:
        print("left out: the search words, since node is not installed", file=sys.stderr)
        return 0
    words = [word for searched in WORDS.values() for word in searched]
    problems = wrong(search(Path(arguments[0]) if arguments else ROOT / "build" / "site", words))
    print("\n".join(problems) or f"each of {len(words)} search words finds its page first")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
