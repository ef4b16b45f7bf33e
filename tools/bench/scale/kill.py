"""A campaign: replicas are killed while many clients send requests of mixed shapes. Every request must get a right answer, and
memory must not grow."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from tools.bench.scale.clients import Array, Heard, ask
from tools.bench.scale.cluster import actors, cluster, resident_mb, serving

MODEL = '<ir_version: 9, opset_import: ["": 18]> g (float[n,s] x) => (float[n,s] y) { y = Mul(x, x) }'


def request(number: int) -> tuple[dict[str, Array], Callable[[Array], bool]]:
    """A request with a shape and values that differ from the others'."""
    rng = np.random.default_rng(number)
    x = rng.integers(-1000, 1000, (rng.integers(1, 5), rng.integers(1, 17))).astype(np.float32)
    return {"x": x}, lambda y: np.array_equal(y, x * x)


class Killer(threading.Thread):
    """Kills one replica after another, and records the memory of the replicas that live and of the proxies."""

    def __init__(self, every: float) -> None:
        super().__init__(daemon=True)
        self._every, self._ended = every, threading.Event()
        self.kills = 0
        self.proxy_mb: list[float] = []
        self.replica_mb: list[float] = []

    def run(self) -> None:
        """Until `end`."""
        while not self._ended.wait(self._every):
            self.note()
            there = sorted(actors("kill#").values())
            if there:
                os.kill(there[self.kills % len(there)], signal.SIGKILL)
                self.kills += 1

    def note(self) -> None:
        """Record the memory in use now."""
        self.proxy_mb.append(sum(map(resident_mb, actors("SERVE_PROXY").values())))
        self.replica_mb.append(max(map(resident_mb, actors("kill#").values()), default=0.0))

    def end(self) -> None:
        """Stop killing."""
        self._ended.set()
        self.join()


def main(arguments: argparse.Namespace) -> int:
    """Run the campaign and print its results; status 1 where an answer was wrong or missing."""
    import onnx.parser
    from ray import serve

    import vkep.ray

    proto = onnx.parser.parse_model(MODEL).SerializeToString()
    with cluster(slots=4, threads=1), serving() as port:
        application = vkep.ray.deployment(
            proto,
            name="kill",
            num_replicas=arguments.workers,
            max_queued_requests=2 * arguments.clients,
            options={"rows": 64},
            ray_actor_options={"num_cpus": 0.5},
        )
        serve.run(application, name="kill")
        killer = Killer(arguments.every)
        killer.start()
        started = time.monotonic()
        url = f"http://127.0.0.1:{port}/v2/models/model/infer"
        heard = asyncio.run(ask(url, arguments.clients, arguments.seconds, request, retry=True))
        killer.end()
        killer.note()
        return say(heard, killer, time.monotonic() - started, arguments)


def say(heard: Heard, killer: Killer, seconds: float, arguments: Any) -> int:
    """Print the result."""
    again = sum(count for status, count in heard.statuses.items() if status != 200)
    print(f"{arguments.clients} clients, {arguments.workers} replicas, {killer.kills} killed in {seconds:.0f} s")
    print(f"answers: {len(heard.seconds)} ({len(heard.seconds) / seconds:.0f}/s), p50 {heard.percentile_ms(50):.0f} ms, "
          f"p99 {heard.percentile_ms(99):.0f} ms, longest {heard.percentile_ms(100):.0f} ms")  # fmt: skip
    print(
        f"statuses: {heard.statuses} ({again} asked again), wrong: {len(heard.wrong)}, unanswered: {heard.unanswered}"
    )
    print(
        f"memory, MB: proxy {[round(mb) for mb in killer.proxy_mb]}, largest replica {[round(mb) for mb in killer.replica_mb]}"
    )
    return int(bool(heard.wrong or heard.unanswered))
