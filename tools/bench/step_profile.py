"""What a step of a language model consists of: the host's time, and the GPU's by kind of dispatch.

    python -m tools.bench.step_profile FOLDER [--sequences 1] [--cached 512] [--steps 16] [--lines 24] [--json FILE]

Prompts are random tokens; ``--cached`` is the length of each. First some steps are timed as they run: the median, and the
processor time of the thread that steps. Then as many run with timestamps around every dispatch, with the barriers of the plan.
Dispatches of one kernel and grid, whose labels differ in numbers alone, are one line, with their time in the median step.
Dispatches without a barrier between them overlap, and each counts with its whole time. Gaps are what the GPU waited between two
dispatches. ``limit`` is the time that the operands' bytes and the arithmetic take at the device's measured rates.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from vkep.device.measure.limits import device_limits
from vkep.generation import Batch, Generator, Sampling
from vkep.generation.pace import LEAST_CHUNK
from vkep.session.execution.executor import IslandExecutor
from vkep.session.reports.tracing import GpuSpan, Tracer

#: steps before those that count
_WARM = 6


@dataclass
class Line:
    """Dispatches of one kind in a step. Times are microseconds of all of them together."""

    label: str
    kernel: str
    candidate: str
    grid: tuple[int, int, int]
    count: int
    barriers: int
    microseconds: float
    limit: float

    def __str__(self) -> str:
        grid = "x".join(map(str, self.grid))
        return (
            f"{self.microseconds:9.1f} us {self.count:4d} x {self.microseconds / self.count:7.2f} "
            f"limit {self.limit / self.count:7.2f} {self.barriers:4d} barriers  {self.kernel} {grid} "
            f"{self.candidate}: {self.label}"
        )


@dataclass
class StepProfile:
    """A step of ``sequences``. ``wall`` and ``host``: microseconds of a step as it runs, and of its thread's processor time;
    ``span``: microseconds from the first dispatch to the end of the last, of which ``gaps`` none ran."""

    sequences: int
    wall: float
    host: float
    span: float
    gaps: float
    lines: list[Line]

    def __str__(self) -> str:
        dispatches, barriers = (sum(getattr(line, name) for line in self.lines) for name in ("count", "barriers"))
        return (
            f"{self.sequences} sequences: {self.wall:.0f} us a step ({self.sequences / self.wall * 1e6:.0f} tokens a second), "
            f"the host's thread {self.host:.0f} us; GPU {self.span:.0f} us, {self.gaps:.0f} of them between dispatches; "
            f"{dispatches} dispatches, {barriers} barriers"
        )


def profile(folder: Path, sequences: int, cached: int, steps: int) -> StepProfile:
    """Profile a folder's decoder. Raises as `Generator`, and ``ValueError`` where the queue has no timestamps."""
    with Generator(folder, max_sequences=sequences) as generator:
        random, decoder = np.random.default_rng(0), generator.decoder
        batch = generator.batch(sequences)
        settings = Sampling(
            temperature=0, max_tokens=sequences * -(-cached // LEAST_CHUNK) + 3 * (steps + _WARM), ignore_end=True
        )
        for _ in range(sequences):
            batch.add([int(t) for t in random.integers(0, decoder.vocabulary, cached)], settings)
        while any(not answer.tokens for answer in batch.in_progress):
            batch.step()
        wall, host = _timed(batch, steps)
        batch.runs_ahead = False  # a step's dispatches run within it
        delegate, found = decoder.sessions[0]._parts.delegate, []
        tracer = Tracer(delegate, [])
        try:
            for session in decoder.sessions:
                session._parts.watch = tracer
            for step in range(_WARM + steps):  # the first one records
                tracer.run.gpu.clear()
                batch.step()
                if step >= _WARM:
                    found.append(list(tracer.run.gpu))
        finally:
            for session in decoder.sessions:
                session._parts.watch = None
            batch.close()
        limits = device_limits(delegate.capabilities)
        best = [[limits.of_dispatch(i.plan, d) for d in i.plan.dispatches] for i in tracer.islands]
        spans, gaps = zip(*map(_span_and_gaps, found), strict=True)
        return StepProfile(
            sequences,
            wall,
            host,
            statistics.median(spans),
            statistics.median(gaps),
            _lines(tracer.islands, found, best),
        )


def _timed(batch: Batch, steps: int) -> tuple[float, float]:
    """Microseconds of a step, and of its thread's processor time."""
    for _ in range(_WARM):
        batch.step()
    walls, began = [], time.thread_time()
    for _ in range(steps):
        start = time.perf_counter()
        batch.step()
        walls.append(time.perf_counter() - start)
    return statistics.median(walls) * 1e6, (time.thread_time() - began) / steps * 1e6


def _span_and_gaps(spans: list[GpuSpan]) -> tuple[float, float]:
    ordered = sorted(spans, key=lambda span: span.start)
    end, gaps = ordered[0].start, 0.0
    for span in ordered:
        gaps += max(0.0, span.start - end)
        end = max(end, span.end)
    return (end - ordered[0].start) / 1e3, gaps / 1e3


def _lines(islands: list[IslandExecutor], steps: list[list[GpuSpan]], limits: list[list[float]]) -> list[Line]:
    """The kinds of dispatches, the longest first."""
    times: dict[tuple[int, int], list[float]] = {}
    for spans in steps:
        for span in spans:
            times.setdefault((span.island, span.dispatch), []).append(span.end - span.start)
    kinds: dict[tuple[object, ...], Line] = {}
    for (island, index), taken in times.items():
        if index < 0:
            continue
        plan = islands[island].plan
        dispatch = plan.dispatches[index]
        label, source = re.sub(r"_?[0-9]+", "", dispatch.label), plan.pipelines[dispatch.pipeline].shader.source
        key = label, source, dispatch.candidate, dispatch.grid
        line = kinds.setdefault(key, Line(label, source, dispatch.candidate, dispatch.grid, 0, 0, 0.0, 0.0))
        line.count += 1
        line.barriers += dispatch.barrier
        line.microseconds += statistics.median(taken) / 1e3
        line.limit += limits[island][index] / 1e3
    return sorted(kinds.values(), key=lambda line: -line.microseconds)


def _printed(made: StepProfile, lines: int) -> Iterator[str]:
    yield str(made)
    yield from map(str, made.lines[:lines])
    if made.lines[lines:]:
        yield f"{sum(line.microseconds for line in made.lines[lines:]):9.1f} us in {len(made.lines) - lines} more kinds"


def main(arguments: list[str] | None = None) -> int:
    """Print a step's parts."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.bench.step_profile", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("folder", type=Path, help="a folder of onnxruntime-genai's builder or optimum")
    parser.add_argument("--sequences", type=int, default=1, help="answers at once (1)")
    parser.add_argument("--cached", type=int, default=512, help="tokens of each prompt (512)")
    parser.add_argument("--steps", type=int, default=16, help="steps that count (16)")
    parser.add_argument("--lines", type=int, default=24, help="kinds of dispatches that are printed (24)")
    parser.add_argument("--json", type=Path, help="write everything measured to this file")
    given = parser.parse_args(arguments)
    made = profile(given.folder, given.sequences, given.cached, given.steps)
    print("\n".join(_printed(made, given.lines)), flush=True)
    if given.json is not None:
        given.json.write_text(json.dumps(asdict(made), indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
