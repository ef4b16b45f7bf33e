"""``python -m tools.bench.codes MODEL ...``: quantized models by matrices of int8 and by those of float16, in turns.

The models are files of `python -m tools.models --form QDQ`, with their inputs beside them. For each the median milliseconds of a
run from numpy to numpy, with codes in int8 (where the device has such matrices) and in float16, and the largest difference of
the results, as a share of the largest one.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import patch

import numpy as np

import vkep
from vkep.kernels.matmul.cooperative_tiles import codes_are_faster

WAYS = ("int8", "float16")


def measure(model: Path, rounds: int) -> dict[str, tuple[float, np.ndarray]]:
    """By way the median milliseconds of a run, and the first result."""
    inputs = np.load(model.with_suffix(".npz"))
    sessions: dict[str, vkep.InferenceSession] = {}
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    feed: dict[str, np.ndarray] = {}
    with tempfile.TemporaryDirectory() as cache:
        for way in WAYS:
            with patch("vkep.ops.codes.codes_are_faster", codes_are_faster if way == "int8" else lambda caps: False):
                sessions[way] = vkep.InferenceSession(model, cache_dir=Path(cache, way))
                feed = {i.name: inputs[f"in_{i.name}"] for i in sessions[way].get_inputs()}
                for _ in range(5):
                    sessions[way].run(None, feed)
        for _ in range(rounds):
            for way, session in sessions.items():
                start = time.perf_counter()
                session.run(None, feed)
                times[way].append(1e3 * (time.perf_counter() - start))
        results = {way: np.asarray(session.run(None, feed)[0]) for way, session in sessions.items()}
        for session in sessions.values():
            session.close()
    return {way: (statistics.median(times[way]), results[way]) for way in WAYS}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--rounds", type=int, default=100)
    args = parser.parse_args(arguments)
    for model in args.models:
        found = measure(model, args.rounds)
        (codes, y), (halves, z) = found["int8"], found["float16"]
        error = float(np.abs(y - z).max() / max(float(np.abs(z).max()), 1e-30))
        print(
            f"{model.stem:30} int8 {codes:.3f} ms, float16 {halves:.3f} ms: {halves / codes:.2f}x, differ by {error:.1e}"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
