"""``python -m tools.bench.waiting``: what it brings that a wait for a GPU asks for the result before it blocks.

Each case runs one model again and again, right away or after a pause of the caller, with different limits of the time that a
wait asks (`gpu_shared.timeline.set_polling`; 0: it blocks at once). Printed are the microseconds of a run (median and slowest
tenth), and those of processor time that the process spends on one. The limits take turns.

A second table: another thread of Python counts while the model runs. Printed are how much of its speed alone it keeps, and how
many runs there are in a second.

    python -m tools.bench.waiting --runs 200
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from onnx import ModelProto, TensorProto, helper

import vkep
from gpu_shared import timeline
from tools.bench.dynamic import inputs
from tools.models.catalog import build_model

#: seconds
LIMITS = (0.0, 1e-4, 1e-3, 1e-2)
PAUSES = (0.0, 2e-3, 2e-2)
_ROUNDS = 3


def relu() -> ModelProto:
    """One operator on 1024 elements."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1024]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "relu", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


CASES: dict[str, Callable[[], ModelProto]] = {
    "relu of 1024": relu,
    "gpt2step": lambda: build_model("gpt2step"),
    "bert_enc": lambda: build_model("bert_enc"),
}


def timed(run: Callable[[], object], runs: int, pause: float) -> tuple[list[float], float]:
    """Microseconds of each run, and of processor time for one."""
    times, cpu = [], time.process_time()
    for _ in range(runs):
        time.sleep(pause)
        start = time.perf_counter()
        run()
        times.append(1e6 * (time.perf_counter() - start))
    return times, 1e6 * (time.process_time() - cpu) / runs


def latencies(run: Callable[[], object], runs: int) -> Iterator[str]:
    """The columns of a case: for each pause those of each limit."""
    for pause in PAUSES:
        times: dict[float, list[float]] = {limit: [] for limit in LIMITS}
        cpu: dict[float, list[float]] = {limit: [] for limit in LIMITS}
        for _ in range(_ROUNDS):
            for limit in LIMITS:
                timeline.set_polling(limit)
                found, spent = timed(run, max(runs // (1 if pause < 0.01 else 5), 1), pause)
                times[limit] += found
                cpu[limit].append(spent)
        for limit in LIMITS:
            worst = float(np.quantile(times[limit], 0.9))
            yield (
                f"{1e3 * pause:g} | {1e3 * limit:g} | {statistics.median(times[limit]):.0f} | {worst:.0f} | "
                f"{statistics.median(cpu[limit]):.0f}"
            )


def beside(run: Callable[[], object], seconds: float) -> tuple[float, float]:
    """Counts a second of another thread, and runs a second."""
    counted, runs, ends = 0, 0, time.perf_counter() + seconds

    def count() -> None:
        nonlocal counted
        while time.perf_counter() < ends:
            counted += 1

    thread = threading.Thread(target=count)
    thread.start()
    while time.perf_counter() < ends:
        run()
        runs += 1
    thread.join()
    return counted / seconds, runs / seconds


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench.waiting", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--runs", type=int, default=100, help="of each limit, three times")
    given = parser.parse_args(arguments)
    usual = timeline._POLLING
    print(
        "| case | pause ms | asks ms | run us | slowest tenth us | processor us |",
        "|---|---|---|---|---|---|",
        sep="\n",
    )
    lines = []
    try:
        for name, build in CASES.items():
            with vkep.InferenceSession(build(), save_plans=False) as session:
                feeds = inputs(session, {}, np.random.default_rng(0))

                def run(session: vkep.InferenceSession = session, feeds: dict[str, np.ndarray] = feeds) -> object:
                    return session.run(None, feeds)

                for _ in range(20):
                    run()
                for line in latencies(run, given.runs):
                    print(f"| {name} | {line} |", flush=True)
                alone, _ = beside(lambda: time.sleep(0.01), 0.3)
                for limit in LIMITS:
                    timeline.set_polling(limit)
                    counts, runs = beside(run, 0.3)
                    lines.append(f"| {name} | {1e3 * limit:g} | {counts / alone:.2f} | {runs:.0f} |")
    finally:
        timeline._POLLING = usual
    print("\n| case | asks ms | speed of another thread | runs in a second |", "|---|---|---|---|", *lines, sep="\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
