"""``python -m tools.bench.mixed``: the cost of a mixed model outside its delegates' GPU work.

The RFC's example (examples/mixed_delegates.py) and larger forms of it, split VGF -> Vulkan -> VGF. For each the time of a run,
and two measures of what is no GPU work: the difference to the time inside the regions by the GPU's timestamps (in runs of their
own, for timestamps cost time too: a CPU driver finishes all work before it writes one, and so the figure is rather high), and
the time in which the host is at work in a plain run, that is, does not wait for the timeline: checking and copying inputs
and outputs, staging, submitting.

    python -m tools.bench.mixed --sizes 8 64 256 --runs 40 --json mixed.json
    python -m tools.bench.mixed --start                # a fresh process each: how long the session takes to open
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from examples import mixed_delegates as example
from gpu_shared.timeline import Timeline
from tools.bench.machine import machine_info

HEADINGS = (
    "input",
    "run us",
    "GPU us in regions",
    "outside",
    "host at work us",
    "of the run",
    "second: us",
    "host at work",
    "error",
)
_CHANNELS = 3


@dataclass(frozen=True)
class Run:
    """Microseconds of one run (wall clock), and those of them in which the host did not wait for the GPU."""

    total_us: float
    host_us: float

    @property
    def host_share(self) -> float:
        return self.host_us / self.total_us


@dataclass(frozen=True)
class Figures:
    """Medians over ``runs`` plain runs and as many with timestamps (``gpu_us``, ``regions``), which alternate; ``fastest_*``
    are the least of each; ``second`` is the second run of the session.
    """

    shape: tuple[int, ...]
    sync_mode: str
    runs: int
    run: Run
    gpu_us: float
    fastest_run_us: float
    fastest_gpu_us: float
    second: Run
    error: float
    regions: tuple[tuple[str, float], ...]

    @property
    def outside_share(self) -> float:
        """Part of the run that is not GPU work inside the regions."""
        return 1 - self.gpu_us / self.run.total_us


def orders(side: int) -> list[list[int]]:
    """Channels, rows and columns for the example's gathers, in a random order: for images of ``side`` by ``side``."""
    rng = np.random.default_rng(side)
    return [rng.permutation(count).tolist() for count in (_CHANNELS, side // 2, side // 2)]


def measure(side: int, sync_mode: str, runs: int, device: str | None) -> Figures:
    """Open a session, run twice, then ``runs`` plain runs in turn with as many with timestamps."""
    from vkep import InferenceSession

    picked = orders(side)
    x = np.random.default_rng(0).uniform(-0.8, 0.8, (1, _CHANNELS, side, side)).astype(np.float32)
    with InferenceSession(
        example.build_model(*picked),
        prefer="vgf_first",
        sync_mode=sync_mode,
        device=device,
        token=f"bench mixed {sync_mode}",
    ) as session:
        where = [node.where for node in session.report().nodes]
        if where != ["vgf"] * 3 + ["vulkan"] + ["vgf"] * 6:
            raise SystemExit(f"the example does not split VGF -> Vulkan -> VGF here: {session.report()}")
        (y,) = session.run(None, {"x": x})  # makes the recordings
        error = float(np.abs(y - example.reference(x, *picked)).max())
        second = _run(session, x)
        plain, inside = [], []
        for _ in range(runs):
            plain.append(_run(session, x))
            inside.append(session.profile_regions({"x": x}))
    sums = [_sum_us(run) for run in inside]
    return Figures(
        shape=x.shape,
        sync_mode=sync_mode,
        runs=runs,
        run=Run(statistics.median(r.total_us for r in plain), statistics.median(r.host_us for r in plain)),
        gpu_us=statistics.median(sums),
        fastest_run_us=min(r.total_us for r in plain),
        fastest_gpu_us=min(sums),
        second=second,
        error=error,
        regions=tuple(
            (title, statistics.median(run[k][1] / 1e3 for run in inside)) for k, (title, _) in enumerate(inside[0])
        ),
    )


def _run(session: Any, x: np.ndarray) -> Run:
    waited = 0.0
    wait = Timeline.wait

    def timed(self: Timeline, value: int | None = None, timeout_s: float | None = None) -> None:
        nonlocal waited
        start = time.perf_counter()
        wait(self, value, timeout_s)
        waited += time.perf_counter() - start

    Timeline.wait = timed  # type: ignore[method-assign]
    try:
        start = time.perf_counter()
        session.run(None, {"x": x})
        total = time.perf_counter() - start
    finally:
        Timeline.wait = wait  # type: ignore[method-assign]
    return Run(total * 1e6, (total - waited) * 1e6)


def _sum_us(regions: list[tuple[str, float]]) -> float:
    return sum(ns for _, ns in regions) / 1e3


#: opens the session; prints the seconds that took, and those of them that went into TOSA to VGF and into the pipelines
_START = """
import sys, time
from examples.mixed_delegates import build_model
from tools.bench.mixed import orders
from vkep import InferenceSession
from vkep.session.execution import vgf as vgf_executor

spent = {}


def timed(name):
    real = getattr(graphs, name)

    def call(*arguments):
        start = time.perf_counter()
        try:
            return real(*arguments)
        finally:
            spent[name] = spent.get(name, 0) + time.perf_counter() - start

    setattr(graphs, name, call)


timed("mlir_to_vgf")
timed("VgfRunner")
model = build_model(*orders(8))
start = time.perf_counter()
InferenceSession(model, prefer="vgf_first", device=sys.argv[1] or None)
print(time.perf_counter() - start, spent["mlir_to_vgf"], spent["VgfRunner"])
"""


def start_times(device: str | None) -> dict[str, tuple[float, ...]]:
    """Seconds to open the example's session in a process of its own, to convert its graphs, and to make their pipelines:
    with empty caches (the median of three), then with those that another process left.
    """
    cold: list[list[float]] = []
    warm: list[list[float]] = []
    for _ in range(3):
        with tempfile.TemporaryDirectory() as folder:
            for found in (cold, warm):
                done = subprocess.run(
                    [sys.executable, "-c", _START, device or ""],
                    env={**os.environ, "VKEP_CACHE_DIR": folder},
                    capture_output=True,
                    text=True,
                    check=True,
                )
                found.append([float(word) for word in done.stdout.split()[-3:]])
    names = {"cold": cold, "warm": warm}
    return {
        name: tuple(statistics.median(column) for column in zip(*rows, strict=True)) for name, rows in names.items()
    }


def table(figures: list[Figures]) -> str:
    """A Markdown table."""
    lines: list[tuple[str, ...]] = [HEADINGS, ("---",) * len(HEADINGS)]
    for f in figures:
        lines.append(
            (
                "x".join(map(str, f.shape)),
                f"{f.run.total_us:.0f}",
                f"{f.gpu_us:.0f} ({' + '.join(f'{us:.0f}' for _, us in f.regions)})",
                f"{f.outside_share:.1%}",
                f"{f.run.host_us:.0f}",
                f"{f.run.host_share:.1%}",
                f"{f.second.total_us:.0f}",
                f"{f.second.host_share:.1%}",
                f"{f.error:.1e}",
            )
        )
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[8, 64, 256, 512], help="sides of the square images")
    parser.add_argument("--sync-mode", default="timeline", choices=("timeline", "none"))
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--device", help="index, UUID or part of the name of a Vulkan device")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--start", action="store_true", help="measure only how long the session takes to open")
    arguments = parser.parse_args()
    if arguments.start:
        times = start_times(arguments.device)
        for name, (whole, converting, compiling) in times.items():
            print(
                f"{name}: {whole:.2f} s to open the session, {converting * 1e3:.1f} ms of them TOSA to VGF, "
                f"{compiling:.2f} s data graph pipelines"
            )
        result: dict[str, Any] = {"machine": machine_info(), "start": times}
    else:
        figures = [measure(side, arguments.sync_mode, arguments.runs, arguments.device) for side in arguments.sizes]
        print(table(figures))
        result = {
            "machine": machine_info(),
            "mixed": [{**asdict(f), "outside_share": f.outside_share} for f in figures],
        }
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
