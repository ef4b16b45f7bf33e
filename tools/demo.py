"""The demo: runs a real model on Vulkan and prints what ran where, how fast and how close to the reference.

    ./tools/demo.sh [--model NAME] [--runs N] [--folder FOLDER]

The model is made on the first run (tools/models; MobileNetV2 unless another is named), with the reference outputs that
onnxruntime's CPU provider gives, or onnx's own evaluator where onnxruntime is not installed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

import numpy as np
from rich.console import Console

import vkep
from tools.bench.peers.base import relative_error
from tools.models.catalog import BENCHMARKS, write_model
from vkep.models.builder import Array

TOLERANCE = 1e-4  # relative, float32


def main(arguments: list[str] | None = None) -> int:
    """Run the demo. Exit code 1 when the result is too far from the reference."""
    parser = argparse.ArgumentParser(prog="tools/demo.sh", description="Run a real model on Vulkan.")
    parser.add_argument("--model", choices=list(BENCHMARKS), default="mobilenetv2", metavar="NAME",
                        help=f"one of: {', '.join(BENCHMARKS)}")  # fmt: skip
    parser.add_argument("--runs", type=int, default=20, help="timed runs (default: 20)")
    parser.add_argument("--folder", type=Path, default=Path("models"), help="where models are kept (default: models)")
    given = parser.parse_args(arguments)
    if given.runs < 1:
        parser.error(f"--runs must be at least 1, got {given.runs}")
    console = Console() if sys.stdout.isatty() else Console(width=120)

    path = given.folder / f"{given.model}.onnx"
    if not (path.exists() and path.with_suffix(".npz").exists()):
        console.print(f"Making {path} and its reference outputs ...")
        write_model(given.model, given.folder)
    with np.load(path.with_suffix(".npz")) as stored:
        inputs = {key[3:]: stored[key] for key in stored if key.startswith("in_")}
        reference = {key[4:]: stored[key] for key in stored if key.startswith("out_")}

    console.rule("devices")
    for device in vkep.devices():
        console.print(str(device))

    console.rule(f"{given.model} on Vulkan")
    start = time.perf_counter()
    session = vkep.InferenceSession(path)
    opened = time.perf_counter()
    names = [output.name for output in session.get_outputs()]
    result = dict(zip(names, session.run(None, inputs), strict=True))
    first = time.perf_counter()
    times = _time_runs(session, inputs, given.runs)
    console.print(str(session.report()), markup=False)

    error = relative_error(result, reference)
    close_enough = error <= TOLERANCE
    console.rule("how fast, how close")
    console.print(f"open           {(opened - start) * 1e3:9.2f} ms")
    console.print(f"first run      {(first - opened) * 1e3:9.2f} ms")
    console.print(
        f"run            {statistics.median(times):9.2f} ms median of {len(times)} "
        f"({min(times):.2f} to {max(times):.2f}), numpy in and out"
    )
    console.print(
        f"relative error {error:9.1e}    against the CPU reference, "
        f"{'within' if close_enough else 'NOT within'} {TOLERANCE:g}"
    )
    session.close()
    return 0 if close_enough else 1


def _time_runs(session: vkep.InferenceSession, inputs: dict[str, Array], runs: int) -> list[float]:
    """Milliseconds of each of `runs` runs."""
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        session.run(None, inputs)
        times.append((time.perf_counter() - start) * 1e3)
    return times


if __name__ == "__main__":
    sys.exit(main())
