"""The parent's side of a worker process."""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent


class WorkerFailed(Exception):
    """The worker answered with an error, died or took too long; the message says which."""


class PeerUnavailable(Exception):
    """The peer cannot run here, or not this model."""


class Worker:
    """A worker process with one peer. Use as a context manager: leaving ends the process."""

    def __init__(self, peer: str, environment: dict[str, str], timeout: float) -> None:
        self.peer = peer
        self.started = time.perf_counter()
        self._timeout = timeout
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (closed by close)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tools.bench.worker"],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        # A thread reads, because a pipe cannot be waited on with a timeout on every platform.
        self._answers: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put("")

    def ask(self, **command: Any) -> dict[str, Any]:
        """Send one command and wait for its answer.

        Raises:
            PeerUnavailable: if the peer says that it cannot.
            WorkerFailed: if it failed, died (with the end of its log) or did not answer in time.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
            line = self._answers.get(timeout=self._timeout)
        except queue.Empty:
            self._process.kill()
            raise WorkerFailed(f"no answer to {command['do']!r} in {self._timeout:.0f} s") from None
        except BrokenPipeError:
            line = ""
        if not line:
            raise WorkerFailed(f"the process ended with code {self._process.wait()}: {self.log_end()}")
        answer: dict[str, Any] = json.loads(line)
        if "unavailable" in answer:
            raise PeerUnavailable(answer["unavailable"])
        if "error" in answer:
            raise WorkerFailed(answer["error"])
        return answer

    def log_end(self, characters: int = 300) -> str:
        """The end of what the worker printed."""
        self._log.seek(0)
        return self._log.read().decode(errors="replace").strip()[-characters:]

    def close(self) -> None:
        """End the process: by closing its pipe, or by force when that does not help."""
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
