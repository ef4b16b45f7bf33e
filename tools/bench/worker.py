"""The worker process: opens one model with one peer and runs it on command.

It is started by `tools.bench.remote.Worker`. Commands and replies are JSON, one a line, on two pipes of their own;
what the engines print goes to stderr.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from tools.bench.peers import peer_class
from tools.bench.peers.base import Peer, Unavailable, relative_error


def open_model(name: str, model: Path) -> tuple[Peer, dict[str, Any]]:
    """Open `model`, run it once, compare with the reference stored beside it.

    Returns:
        The peer, and what to report: milliseconds of opening and of the first run, error, placement, work, versions.
    """
    start = time.perf_counter()
    peer = peer_class(name)()
    imported = time.perf_counter()
    with np.load(model.with_suffix(".npz")) as stored:
        inputs = {key[3:]: stored[key] for key in stored if key.startswith("in_")}
        reference = {key[4:]: stored[key] for key in stored if key.startswith("out_")}
    before = time.perf_counter()
    peer.open(model, inputs)
    opened = time.perf_counter()
    result = peer.run()
    done = time.perf_counter()
    return peer, {
        "import_ms": (imported - start) * 1e3,
        "open_ms": (opened - before) * 1e3,
        "first_run_ms": (done - opened) * 1e3,
        "relative_error": relative_error(result, reference),
        "placement": peer.placement(),
        "work": peer.work(),
        "versions": peer.versions(),
    }


def run_model(peer: Peer, warm_s: float, count: int) -> list[float]:
    """Milliseconds of `count` runs, after at least one run, for this many seconds, that is not timed."""
    warm = time.perf_counter() + warm_s
    peer.repeat()
    while time.perf_counter() < warm:
        peer.repeat()
    times = []
    for _ in range(count):
        start = time.perf_counter()
        peer.repeat()
        times.append((time.perf_counter() - start) * 1e3)
    return times


def serve(commands: Any, replies: Any) -> None:
    """Answer commands until the pipe closes. A failure is a reply too: {"unavailable": why} or {"error": what}."""
    peer: Peer | None = None
    for line in commands:
        command = json.loads(line)
        answer: dict[str, Any]
        try:
            if command["do"] == "open":
                peer, answer = open_model(command["peer"], Path(command["model"]))
            elif command["do"] == "run" and peer is not None:
                answer = {"ms": run_model(peer, command["warm_s"], command["count"])}
            else:
                answer = {"error": f"unexpected command {command}"}
        except Unavailable as why:
            answer = {"unavailable": str(why)}
        except Exception as failure:  # any exception of an engine is reported
            answer = {"error": f"{type(failure).__name__}: {failure}"}
        replies.write(json.dumps(answer) + "\n")
        replies.flush()
    if peer is not None:
        peer.close()


def main() -> None:
    """Use the two pipes for commands and replies, and redirect the engines' output to stderr."""
    commands, replies = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    serve(commands, replies)


if __name__ == "__main__":
    main()
