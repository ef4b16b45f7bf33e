"""A hub on this machine: the parts of Hugging Face's HTTP interface that downloads use, over a folder for each repository."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

#: branches of every repository; the commit of one is made from its name
REVISIONS = ("main", "v1")


def commit(revision: str) -> str:
    """The commit that a branch points to."""
    return hashlib.sha1(revision.encode()).hexdigest()


class Hub:
    """The server. ``asked`` has the paths of its requests; ``extra`` file names that listings have and folders do not."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked: list[str] = []
        self.extra: list[str] = []
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())

    @property
    def url(self) -> str:
        """Of the endpoint."""
        return f"http://127.0.0.1:{self.server.server_port}"

    def command(
        self, *arguments: object, cache: Path, given: str = "", **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run Python with this hub as the endpoint, a cache of its own, and ``given`` as standard input."""
        settings = {"HF_ENDPOINT": self.url, "HF_HOME": str(cache), "HF_HUB_DISABLE_TELEMETRY": "1", **environment}
        command = [sys.executable, *map(str, arguments)]
        return subprocess.run(
            command,
            env={**os.environ, **settings},
            input=given,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def _files(self, repository: str, revision: str) -> dict[str, Path] | None:
        folder = self.folder / repository
        if not folder.is_dir() or revision not in (*REVISIONS, *map(commit, REVISIONS)):
            return None
        found = {p.relative_to(folder).as_posix(): p for p in sorted(folder.rglob("*")) if p.is_file()}
        return found | {name: next(iter(found.values())) for name in self.extra}

    def _handler(hub) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self) -> None:
                self.do_GET()

            def do_GET(self) -> None:
                hub.asked.append(f"{self.command} {unquote(urlsplit(self.path).path)}")
                parts = unquote(urlsplit(self.path).path).strip("/").split("/")
                if parts[:2] == ["api", "models"]:
                    repository, what, revision = "/".join(parts[2:4]), *(parts[4:6] or ["revision", "main"])
                    files = hub._files(repository, revision)
                    if files is None:
                        known = (hub.folder / repository).is_dir()
                        self._answer(b"{}", 404, {"X-Error-Code": "RevisionNotFound" if known else "RepoNotFound"})
                    elif what == "tree":
                        self._json([self._entry(name, path) for name, path in files.items()])
                    else:
                        sha = revision if len(revision) == 40 else commit(revision)
                        self._json({"id": repository, "sha": sha, "siblings": [{"rfilename": n} for n in files]})
                    return
                files = hub._files("/".join(parts[:2]), parts[3]) or {}
                path = files.get("/".join(parts[4:]))
                if path is None:
                    self._answer(b"", 404, {"X-Error-Code": "EntryNotFound"})
                    return
                sha = parts[3] if len(parts[3]) == 40 else commit(parts[3])
                self._answer(path.read_bytes(), 200, {"ETag": f'"{_digest(path)}"', "X-Repo-Commit": sha})

            def _entry(self, name: str, path: Path) -> dict[str, object]:
                return {"type": "file", "path": name, "size": path.stat().st_size, "oid": _digest(path)}

            def _json(self, value: object) -> None:
                self._answer(json.dumps(value).encode(), 200, {"Content-Type": "application/json"})

            def _answer(self, body: bytes, status: int, headers: dict[str, str]) -> None:
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Nothing: tests print their own."""

        return Handler


def _digest(path: Path) -> str:
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0%b" % (len(content), content)).hexdigest()  # git's name of a file


@contextmanager
def hub_of(folder: Path) -> Iterator[Hub]:
    """Serve the folders OWNER/NAME in ``folder``."""
    hub = Hub(folder)
    thread = threading.Thread(target=hub.server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.server.shutdown()
        hub.server.server_close()
        thread.join()
