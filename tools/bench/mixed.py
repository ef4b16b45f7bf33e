"""``python -m tools.bench.mixed``: what a mixed model costs outside its delegates' GPU work.

The RFC's example (examples/mixed_delegates.py) and larger forms of it, split VGF -> Vulkan -> VGF. For each: the time of a
run; the time that the GPU spends inside the regions, by timestamps before, between and after them, in runs of their own that
alternate with the plain ones (timestamps cost time too); and the difference: checking and copying inputs and outputs,
submitting, waking up. Medians, and the fastest of each, which other work on the machine disturbs least.

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
import onnx
from onnx import TensorProto, helper, numpy_helper

from tools.bench.machine import machine_info

HEADINGS = (
    "input",
    "run us",
    "GPU us in regions",
    "outside us",
    "outside",
    "fastest: run, GPU us",
    "outside",
    "second: us",
    "outside",
    "error",
)
_CHANNELS = 3


@dataclass(frozen=True)
class Pair:
    """Microseconds of a run, and of the GPU inside the regions."""

    run_us: float
    gpu_us: float

    @property
    def outside_us(self) -> float:
        return self.run_us - self.gpu_us

    @property
    def outside(self) -> float:
        """Part of the run that is not GPU work inside the regions."""
        return self.outside_us / self.run_us

    def to_dict(self) -> dict[str, float]:
        return {**asdict(self), "outside_us": self.outside_us, "outside": self.outside}


@dataclass(frozen=True)
class Figures:
    """``median`` and ``fastest`` over plain runs and over runs with timestamps, which alternate; ``second`` is one run, with
    timestamps and so longer than a plain one; ``regions`` are titles and medians.
    """

    shape: tuple[int, ...]
    sync_mode: str
    runs: int
    median: Pair
    fastest: Pair
    second: Pair
    error: float
    regions: tuple[tuple[str, float], ...]

    def to_dict(self) -> dict[str, Any]:
        pairs = {name: getattr(self, name).to_dict() for name in ("median", "fastest", "second")}
        return {**asdict(self), **pairs}


def build_model(side: int) -> tuple[onnx.ModelProto, Any]:
    """The RFC's example for images of ``side`` by ``side``, and the same in numpy."""
    half = side // 2
    rng = np.random.default_rng(side)
    channels, rows = rng.permutation(_CHANNELS), rng.permutation(half)
    columns = np.tile(rng.permutation(half).reshape(1, 1, 1, half), (1, _CHANNELS, half, 1))
    nodes = [
        helper.make_node("Transpose", ["x"], ["turned"], perm=[0, 1, 3, 2]),
        helper.make_node("AveragePool", ["turned"], ["pooled"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Gather", ["pooled", "channels"], ["by_channel"], axis=1),
        helper.make_node("GatherElements", ["by_channel", "columns"], ["by_column"], axis=3),
        helper.make_node("Gather", ["by_column", "rows"], ["by_row"], axis=2),
        helper.make_node("Sin", ["by_row"], ["sin"]),
        helper.make_node("Cos", ["by_row"], ["cos"]),
        helper.make_node("Reciprocal", ["cos"], ["secant"]),
        helper.make_node("Mul", ["sin", "secant"], ["tangent"]),
        helper.make_node("Transpose", ["tangent"], ["y"], perm=[0, 1, 3, 2]),
    ]
    graph = helper.make_graph(
        nodes,
        "rfc_example",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, _CHANNELS, side, side))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, _CHANNELS, half, half))],
        [
            numpy_helper.from_array(channels, "channels"),
            numpy_helper.from_array(rows, "rows"),
            numpy_helper.from_array(columns, "columns"),
        ],
    )

    def reference(x: np.ndarray) -> np.ndarray:
        pooled = x.transpose(0, 1, 3, 2).reshape(1, _CHANNELS, half, 2, half, 2).mean((3, 5))
        picked = np.take_along_axis(pooled[:, channels], columns, 3)[:, :, rows]
        return np.tan(picked).transpose(0, 1, 3, 2)

    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), reference


def measure(side: int, sync_mode: str, runs: int, device: str | None) -> Figures:
    """Open a session, run twice, then ``runs`` plain runs in turn with as many with timestamps."""
    from vkep import InferenceSession

    model, reference = build_model(side)
    x = np.random.default_rng(0).uniform(-0.8, 0.8, (1, _CHANNELS, side, side)).astype(np.float32)
    with InferenceSession(
        model, prefer="vgf_first", sync_mode=sync_mode, device=device, token=f"bench mixed {sync_mode}"
    ) as session:
        where = [node.where for node in session.report().nodes]
        if where != ["vgf"] * 3 + ["vulkan"] + ["vgf"] * 6:
            raise SystemExit(f"the example does not split VGF -> Vulkan -> VGF here: {session.report()}")
        session.profile_regions({"x": x})  # the first run makes the recordings
        start = time.perf_counter()
        regions = session.profile_regions({"x": x})
        second = Pair((time.perf_counter() - start) * 1e6, _sum_us(regions))
        (y,) = session.run(None, {"x": x})
        error = float(np.abs(y - reference(x)).max())
        totals, inside = [], []
        for _ in range(runs):
            start = time.perf_counter()
            session.run(None, {"x": x})
            totals.append((time.perf_counter() - start) * 1e6)
            inside.append(session.profile_regions({"x": x}))
    sums = [_sum_us(run) for run in inside]
    return Figures(
        shape=x.shape,
        sync_mode=sync_mode,
        runs=runs,
        median=Pair(statistics.median(totals), statistics.median(sums)),
        fastest=Pair(min(totals), min(sums)),
        second=second,
        error=error,
        regions=tuple(
            (title, statistics.median(run[k][1] / 1e3 for run in inside)) for k, (title, _) in enumerate(regions)
        ),
    )


def _sum_us(regions: list[tuple[str, float]]) -> float:
    return sum(ns for _, ns in regions) / 1e3


#: opens the session; prints the seconds that took, and those of them that went into TOSA to VGF and into the pipelines
_START = """
import sys, time
from tools.bench.mixed import build_model
from vkep import InferenceSession
from vkep.session import graphs

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
model, _ = build_model(8)
start = time.perf_counter()
InferenceSession(model, prefer="vgf_first", device=sys.argv[1] or None)
print(time.perf_counter() - start, spent["mlir_to_vgf"], spent["VgfRunner"])
"""


def start_times(device: str | None) -> dict[str, tuple[float, ...]]:
    """Seconds to open the example's session in a process of its own, to convert its graphs, and to make their pipelines:
    with empty caches (the median of three), then with those that another process left.
    """
    cold, warm = [], []
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
                f"{f.median.run_us:.0f}",
                f"{f.median.gpu_us:.0f} ({' + '.join(f'{us:.0f}' for _, us in f.regions)})",
                f"{f.median.outside_us:.0f}",
                f"{f.median.outside:.1%}",
                f"{f.fastest.run_us:.0f}, {f.fastest.gpu_us:.0f}",
                f"{f.fastest.outside:.1%}",
                f"{f.second.run_us:.0f}",
                f"{f.second.outside:.1%}",
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
            "mixed": [f.to_dict() for f in figures],
        }
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
