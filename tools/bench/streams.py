"""``python -m tools.bench.streams``: the cost of a chunk of a model with states.

    python -m tools.bench.streams [--streams 1 8] [--chunks 60] [--model FILE --feed NAME=SHAPE --constant NAME=N]

Sessions take turns, chunk by chunk: `vkep.streaming` with the states on the device; `vkep.InferenceSession.run` with all states
as arrays, in and out; ONNX Runtime's CPU with one thread. Printed are the milliseconds of a chunk (median, and the fastest), the
bytes across the bus for each chunk, the plans, and the largest difference from ONNX Runtime; with ``--device-time`` also the
device's own milliseconds, the sum over the dispatches, each timed alone (on a GPU). Without ``--model`` the models are those of
`vkep.models.streams`.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx

import vkep
from tools.ort_cpu import cpu_session
from vkep.cli.inputs import parse_sizes
from vkep.models.streams import CHUNKS, FEATURES, FRAMES, recognizer, voice_activity
from vkep.streaming import StreamingSession

#: chunks before the measurement: plans are made, and caches are warm
_WARM = 5
Array = np.ndarray[Any, Any]


class Case(NamedTuple):
    """A model, the shapes of its float32 inputs (0: the number of streams), and constant inputs."""

    model: onnx.ModelProto | str
    feeds: Mapping[str, Sequence[int]]
    constants: Mapping[str, int]


CASES: dict[str, Callable[[], Case]] = {
    "voice activity": lambda: Case(voice_activity(), {"input": (0, CHUNKS[16000])}, {"sr": 16000}),
    "recognizer": lambda: Case(recognizer(), {"x": (0, FRAMES, FEATURES)}, {}),
}


class _Apart:
    """States that are the caller's arrays."""

    def __init__(
        self, run: Callable[[Mapping[str, Any]], Sequence[Array]], outputs: Sequence[str], states: Any
    ) -> None:
        self._run, self._outputs, self._states = run, outputs, dict(states)

    def step(self, feeds: Mapping[str, Any], pairs: Mapping[str, str]) -> Array:
        results = dict(zip(self._outputs, self._run({**feeds, **self._states}), strict=True))
        self._states = {name: results.pop(output) for output, name in pairs.items()}
        return next(iter(results.values()))


def measure(name: str, case: Case, streams: int, chunks: int, device_time: bool) -> str:
    """One line of the table."""
    model = case.model if isinstance(case.model, str) else case.model.SerializeToString()
    random = np.random.default_rng(0)
    with (
        StreamingSession(model, streams=streams, constants=case.constants) as ours,
        vkep.InferenceSession(model) as plain,
    ):
        theirs = cpu_session(onnx.load(model) if isinstance(model, str) else model)
        with ours.copy() as first:
            states = {n: t.numpy() for n, t in first.tensors.items()}
        outputs = [o.name for o in plain.get_outputs()]
        fixed = {n: np.array(v) for n, v in case.constants.items()}
        arrays = _Apart(lambda feeds: plain.run(None, feeds), outputs, states)
        runtime = _Apart(lambda feeds: theirs.run(None, feeds), outputs, states)
        ways: dict[str, Callable[[dict[str, Array]], Array]] = {
            "states": lambda feeds: ours.run(None, feeds)[0],
            "arrays": lambda feeds: arrays.step({**feeds, **fixed}, ours.states),
            "runtime": lambda feeds: runtime.step({**feeds, **fixed}, ours.states),
        }
        times: dict[str, list[float]] = {way: [] for way in ways}
        worst = 0.0
        for chunk in range(chunks + _WARM):
            feeds = {
                n: random.standard_normal([d or streams for d in shape], np.float32) for n, shape in case.feeds.items()
            }
            made = {}
            for way, run in ways.items():
                start = time.perf_counter()
                made[way] = run(feeds)
                if chunk >= _WARM:
                    times[way].append(1e3 * (time.perf_counter() - start))
            worst = max(worst, *(float(np.abs(made[way] - made["runtime"]).max()) for way in ("states", "arrays")))
        device = f" {sum(map(sum, plain.profile({**feeds, **fixed, **states}))) / 1e6:.2f} |" if device_time else ""
        kept = sum(a.nbytes for a in states.values())
        crossing = sum(a.nbytes for a in feeds.values()) + made["states"].nbytes
        middle = {way: f"{statistics.median(found):.2f} ({min(found):.2f})" for way, found in times.items()}
        return (
            f"| {name}, states: {len(states)} | {streams} | {middle['states']} | {middle['arrays']} "
            f"| {middle['runtime']} | {crossing / 1024:.1f} | {(crossing + 2 * kept) / 1024:.1f} "
            f"| {ours.session._parts.graph.plan_count} | {worst:.0e} |{device}"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench.streams", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--chunks", type=int, default=60)
    parser.add_argument("--device-time", action="store_true")
    parser.add_argument("--model", help="a file instead of the models of vkep.models.streams")
    parser.add_argument(
        "--feed", action="append", default=[], metavar="NAME=SHAPE", help="a float32 input: x=0,16,80 (0: the streams)"
    )
    parser.add_argument("--constant", action="append", default=[], metavar="NAME=N")
    given = parser.parse_args(arguments)
    cases = CASES
    if given.model:
        shapes = {n: tuple(map(int, s.split(","))) for n, _, s in (feed.partition("=") for feed in given.feed)}
        one = Case(given.model, shapes, parse_sizes(given.constant, "--constant", "NAME=N"))
        cases = {given.model: lambda: one}
    print("| model | streams | states on the device, ms | as arrays, ms | ONNX Runtime's CPU, ms "
          "| KiB a chunk | as arrays | plans | difference |" + " device's time, ms |" * given.device_time)  # fmt: skip
    print("|---" * (9 + given.device_time) + "|")
    for name, build in cases.items():
        for streams in given.streams:
            print(measure(name, build(), streams, given.chunks, given.device_time), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
