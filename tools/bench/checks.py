"""``python -m tools.bench.checks``: the cost of checking a run's data (`vkep.SessionOptions.check_data`).

Each model is open twice, with the checks and without, and both sessions run in turns. Printed are medians. A model without
operators that check anything shows the noise. The first one is a table of 30,000 rows of 768 floats read at 512 indices, which is
nothing but checked work.

    python -m tools.bench.checks models/gpt2step.onnx models/bert_enc.onnx --rounds 200
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

import vkep
from tools.bench.measure import runs_a_turn

_ROWS, _WIDTH, _INDICES = 30_000, 768, 512
Feeds = dict[str, np.ndarray]


def table_reader() -> tuple[onnx.ModelProto, Feeds]:
    """One Gather, and inputs for it."""
    rng = np.random.default_rng(0)
    table = numpy_helper.from_array(rng.random((_ROWS, _WIDTH), np.float32), "table")
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "at"], ["y"], "read")],
        "reader",
        [helper.make_tensor_value_info("at", onnx.TensorProto.INT64, [_INDICES])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [_INDICES, _WIDTH])],
        [table],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    return model, {"at": rng.integers(0, _ROWS, _INDICES)}


def model_file(path: Path) -> tuple[onnx.ModelProto | Path, Feeds]:
    """A model with the inputs in the .npz beside it (keys ``in_NAME``)."""
    arrays = np.load(path.with_suffix(".npz"))
    return path, {name.removeprefix("in_"): arrays[name] for name in arrays.files if name.startswith("in_")}


@dataclass(frozen=True)
class Cost:
    """Medians over turns: the milliseconds of a run, and the percentage that the checks add, by the wall clock and by
    the processor time of all threads (which includes a CPU driver's). Other programs on the machine disturb the
    processor time less."""

    with_checks_ms: float
    without_ms: float
    wall_percent: float
    processor_percent: float


def measure(model: onnx.ModelProto | Path, feeds: Feeds, rounds: int) -> Cost:
    """Run a model with and without the checks, in turns."""
    with vkep.InferenceSession(model) as checked, vkep.InferenceSession(model, check_data=False) as free:
        sessions = (checked, free)
        runs = runs_a_turn(min(_turn(session, feeds, 3)[0] for session in sessions))
        turns = []
        for number in range(rounds):
            first = _turn(
                sessions[number % 2], feeds, runs
            )  # alternate the order, so that each finds the other's data in the caches equally often
            second = _turn(sessions[1 - number % 2], feeds, runs)
            turns.append((second, first) if number % 2 else (first, second))
    with_checks, without = (statistics.median(turn[which][0] for turn in turns) for which in (0, 1))
    wall, processor = (100 * (statistics.median(a[kind] / b[kind] for a, b in turns) - 1) for kind in (0, 1))
    return Cost(with_checks, without, wall, processor)


def _turn(session: vkep.InferenceSession, feeds: Feeds, runs: int) -> tuple[float, float]:
    """Milliseconds of a run, by the clock and of the processor: the mean of several runs."""
    began, worked = time.perf_counter(), time.process_time()
    for _ in range(runs):
        session.run(None, feeds)
    return 1e3 * (time.perf_counter() - began) / runs, 1e3 * (time.process_time() - worked) / runs


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", type=Path, help=".onnx files with their .npz beside them")
    parser.add_argument("--rounds", type=int, default=100, help="turns of both sessions (default: 100)")
    given = parser.parse_args()
    cases: list[tuple[str, onnx.ModelProto | Path, Feeds]] = [("table", *table_reader())]
    cases += [(path.stem, *model_file(path)) for path in given.models]
    for name, model, feeds in cases:
        cost = measure(model, feeds, given.rounds)
        print(
            f"{name:12} {cost.with_checks_ms:9.4f} ms with checks, {cost.without_ms:9.4f} ms without: "
            f"{cost.wall_percent:+.2f}% of the time, {cost.processor_percent:+.2f}% of the processor's"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
