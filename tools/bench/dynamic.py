"""``python -m tools.bench.dynamic``: the cost of sizes that are new to a session.

Each case feeds one session with a dynamic model sizes that it meets for the first time. Beside it, in turns, runs a session whose
model has these sizes as constants. Printed are, over the sizes:

- new: a run of a new size over a run of the model with constant sizes (median of the quotients). Runs of two other new sizes
  come before it;
- again: the same for a size that was seen before. A run of another seen size comes before both runs;
- host: milliseconds that a new size costs beyond a second run of it right after the first (median of the differences), and how
  many of them any change of size costs;
- holds: how many plans the session made, and what its arena holds at the end over what it held after the largest size.

    python -m tools.bench.dynamic --sizes 40
    python -m tools.bench.dynamic --signatures 1000
    python -m tools.bench.dynamic --far
    python -m tools.bench.dynamic --models

With ``--far`` the runs of small sizes by a plan that was made for large ones are compared with those by a plan that was made for
the sizes themselves.

With ``--models`` the models of `tools.bench.sizes.networks` (all, or those that are named) run ten random sizes each, plainly and
through ONNX Runtime. Printed are the plans that they made, a run of a new size over the same size again (the median from the
fourth size on, as a quotient and a difference, the latter also in processor time of the host), the pipelines compiled after the
third size, and the nodes on the CPU. Results are compared with those of ONNX Runtime's CPU provider. Missing files are exported
to ``--folder``, which needs torch, transformers, diffusers and onnxscript. ``--write`` puts the rows into a document's table.

With ``--signatures`` one session of bert_enc takes so many batches of differing lengths, the largest within the first eight, each
once; printed is what it has made and holds after the first eight, after each later plan, and at the end.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import vkep
import vkep.session.planning.sized_plans as sized_plans
from tools.bench.sizes.measure import Row, Task, lost, table, written
from tools.bench.sizes.measure import measure as measure_network
from tools.bench.sizes.networks import NETWORKS
from tools.bench.sizes.texts import text_model
from tools.models.catalog import Options, build_model
from tools.worker_pool import run_tasks
from vkep.models.language import ARCHITECTURES, language_model

Feeds = dict[str, np.ndarray]
Array = np.ndarray[Any, Any]
_RUNS = 5
_BEFORE = 2  #: runs of new sizes before the one that is timed
_BUSY = 0.2  #: seconds


@dataclass(frozen=True)
class Case:
    """A model whose inputs' shapes follow one number."""

    name: str
    build: Callable[[Options], onnx.ModelProto]
    dims: Callable[[int], Mapping[str, int]]  #: the model's named dimensions for a size
    sizes: Callable[[int, np.random.Generator], Sequence[int]]  #: so many different sizes at most, in any order


def _lengths(count: int, rng: np.random.Generator) -> Sequence[int]:
    return [int(n) for n in rng.permutation(np.arange(1, 125))[:count]]


LOOPS = (
    "loop",
    "growing loop",
    "scan",
)  #: their number of steps is their length: with constant sizes they are unrolled


def _loop(name: str, options: Options) -> onnx.ModelProto:
    return text_model(name)


def _trips(count: int, rng: np.random.Generator) -> Sequence[int]:
    return [int(n) for n in rng.permutation(np.arange(2, 80))[:count]]


def _steps(count: int, rng: np.random.Generator) -> Sequence[int]:
    return [int(n) for n in rng.permutation(np.arange(24, 24 + min(count, 96)))]


def _decoder(options: Options) -> onnx.ModelProto:
    """32 layers that compute next to nothing, with caches of a fixed size."""
    return language_model(replace(ARCHITECTURES["llama"], layers=32), "fp16" if options.float16 else "fp32")


CASES = (
    *[Case(f"{name}, 2 to 80 steps", partial(_loop, name), lambda n: {"t": n}, _trips) for name in LOOPS],
    Case(
        "bert_enc, lengths 1 to 128", partial(build_model, "bert_enc"), lambda n: {"batch": 2, "sequence": n}, _lengths
    ),
    Case("bert, lengths 1 to 128", partial(build_model, "bert"), lambda n: {"batch": 1, "sequence": n}, _lengths),
    Case("gpt2step, past of 24 and more", partial(build_model, "gpt2step"), lambda n: {"past": n}, _steps),
    Case(
        "decoder of 32 layers, mask of 24 and more",
        _decoder,
        lambda n: {"batch": 1, "length": 1, "past": 128, "total": n},
        _steps,
    ),
    Case(
        "mobilenetv2, batch",
        partial(build_model, "mobilenetv2"),
        lambda n: {"batch": n},
        lambda count, rng: range(2, 2 + min(count, 12)),
    ),
)


@dataclass
class Times:
    """Milliseconds of each run, by the run's size."""

    new: list[float] = field(default_factory=list)
    again: list[float] = field(default_factory=list)
    same: list[float] = field(default_factory=list)  #: right after a run of the same size
    fixed: list[float] = field(default_factory=list)

    def quotient(self, times: Sequence[float]) -> float:
        return statistics.median([a / b for a, b in zip(times, self.fixed, strict=True)])

    @staticmethod
    def difference(more: Sequence[float], less: Sequence[float]) -> float:
        return statistics.median([a - b for a, b in zip(more, less, strict=True)])


def inputs(session: vkep.InferenceSession, dims: Mapping[str, int], rng: np.random.Generator) -> Feeds:
    """Inputs with these sizes: random numbers, and integers of 1."""
    made: Feeds = {}
    for info in session.get_inputs():
        shape = [dims[d] if isinstance(d, str) else int(d or 1) for d in info.shape or ()]
        if "int" in info.type:
            made[info.name] = np.ones(shape, np.int64)  # ids, and masks that hide nothing
        else:
            made[info.name] = rng.standard_normal(shape).astype(np.float16 if "float16" in info.type else np.float32)
    return made


def run(session: vkep.InferenceSession, feeds: Feeds) -> float:
    """Milliseconds of one run, on arrays that were just written."""
    feeds = {name: array.copy() for name, array in feeds.items()}
    start = time.perf_counter()
    session.run(None, feeds)
    return 1e3 * (time.perf_counter() - start)


def fixed_session(case: Case, size: int, options: Options) -> vkep.InferenceSession:
    """A session whose model has the sizes as constants."""
    proto = case.build(options)
    dims = case.dims(size)
    for value in proto.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_value = dims[dim.dim_param]
    return vkep.InferenceSession(proto)


def measure(case: Case, count: int, options: Options) -> tuple[Times, str]:
    """Times over new sizes, and the session's memory at the end."""
    rng = np.random.default_rng(0)
    times = Times()
    with vkep.InferenceSession(case.build(options)) as session:
        sizes = case.sizes(count * (_BEFORE + 1), rng)
        held = _warmed(session, case, sizes, rng)
        other = inputs(session, case.dims(max(sizes) + 3), rng)
        for first in range(0, len(sizes) - _BEFORE, _BEFORE + 1):
            *before, feeds = [inputs(session, case.dims(n), rng) for n in sizes[first : first + _BEFORE + 1]]
            with fixed_session(case, sizes[first + _BEFORE], options) as fixed:
                run(fixed, feeds)
                _keep_busy(lambda: run(session, other))
                for new in before:
                    run(session, new)
                times.new.append(run(session, feeds))
                found: tuple[list[float], list[float], list[float]] = [], [], []
                for _ in range(_RUNS):
                    run(session, other)
                    found[0].append(run(session, feeds))
                    found[1].append(run(session, feeds))
                    run(session, other)
                    found[2].append(run(fixed, feeds))
                for kept, values in zip((times.again, times.same, times.fixed), found, strict=True):
                    kept.append(statistics.median(values))
        memory = _held(session) / max(held, 1)
        note = f"{session._parts.graph.plan_count} plans, memory {memory:.2f}"
    return times, note


def _keep_busy(work: Callable[[], object]) -> None:
    """Work until a GPU that was idle has its clock back."""
    ends = time.perf_counter() + _BUSY
    while time.perf_counter() < ends:
        work()


def _warmed(session: vkep.InferenceSession, case: Case, sizes: Sequence[int], rng: np.random.Generator) -> int:
    """Run the smallest and the largest size, and some sizes that the case does not use. Returns the bytes that the
    arena holds after that."""
    for size in (max(sizes) + 1, max(sizes) + 2, max(sizes) + 3, max(sizes) + 4, max(sizes) + 1):
        run(session, inputs(session, case.dims(size), rng))
    return _held(session)


def many(count: int) -> Iterator[str]:
    """The table of one session that runs ``count`` signatures, each once."""
    rng = np.random.default_rng(1)
    pairs = [(batch, length) for batch in range(1, 9) for length in range(1, 129)]
    chosen = [pairs[k] for k in rng.permutation(len(pairs))[:count]]
    largest = (8, 128)
    chosen = [*chosen[:4], largest, *[pair for pair in chosen[4:] if pair != largest]][:count]
    yield "| signatures | the last one | plans | arena MiB | MiB at most |"
    yield "|---|---|---|---|---|"
    with vkep.InferenceSession(build_model("bert_enc", Options(dynamic=True))) as session:
        made = 0
        for k, (batch, length) in enumerate(chosen, 1):
            run(session, inputs(session, {"batch": batch, "sequence": length}, rng))
            last, made = made, session._parts.graph.plan_count
            if k in (8, len(chosen)) or (k > 8 and made > last):
                arena = session.memory().arena
                sizes = (arena.bytes_in_use, arena.max_bytes_in_use)
                held, most = (f"{size / 2**20:.1f}" for size in sizes)
                yield f"| {k} | {batch} of {length} | {session._parts.graph.plan_count} | {held} | {most} |"


#: model, its dimensions, the sizes that a plan is made for, and those that it runs
FAR = (
    ("bert_enc", ("batch", "sequence"), (7, 127), ((7, 15), (7, 9), (7, 7), (7, 3), (7, 1), (1, 1))),
    ("gpt2step", ("past",), (509,), ((63,), (31,), (15,), (7,))),
)


def far() -> Iterator[str]:
    """The table of sizes that a plan runs far from its own."""
    yield "| case | plan for | runs | times as large | ms by it | ms by their own | ratio |"
    yield "|---|---|---|---|---|---|---|"
    for name, dims, large, runs in FAR:
        with _planned_for(name, dims, large) as one:
            for sizes in runs:
                with _planned_for(name, dims, sizes) as other:
                    feeds = inputs(one, dict(zip(dims, sizes, strict=True)), np.random.default_rng(1))
                    times = [(run(one, feeds), run(other, feeds)) for _ in range(3 + 4 * _RUNS)][3:]
                times_as_large = max(a / b for a, b in zip(large, sizes, strict=True))
                theirs, own = (statistics.median(found) for found in zip(*times, strict=True))
                ratio = statistics.median([a / b for a, b in times])
                yield f"| {name} | {large} | {sizes} | {times_as_large:.0f} | {theirs:.2f} | {own:.2f} | {ratio:.2f} |"


def _planned_for(name: str, dims: Sequence[str], sizes: Sequence[int]) -> vkep.InferenceSession:
    """A session whose only plan with sizes is made for these (for 2 where they are 1), and serves any others."""
    sized_plans._FAR = 1 << 30
    session, rng = vkep.InferenceSession(build_model(name, Options(dynamic=True))), np.random.default_rng(0)
    for more in (2, 0):  # all dimensions differ
        run(session, inputs(session, {d: max(n, 2) + more for d, n in zip(dims, sizes, strict=True)}, rng))
    return session


def _held(session: vkep.InferenceSession) -> int:
    return session.memory().arena.bytes_in_use


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench.dynamic", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--sizes", type=int, default=40, help="new sizes a case (default: 40)")
    parser.add_argument("--float16", action="store_true")
    parser.add_argument("--only", help="cases whose name has this in it")
    parser.add_argument("--signatures", type=int, help="so many signatures of one session instead")
    parser.add_argument("--far", action="store_true", help="plans that run sizes far from their own instead")
    parser.add_argument("--models", nargs="*", choices=NETWORKS, help="models of many kinds instead (all by default)")
    parser.add_argument("--ways", nargs="+", choices=("plain", "ort"), default=["plain", "ort"], help="how they run")
    parser.add_argument("--folder", type=Path, default=Path("models/sizes"), help="of their files (models/sizes)")
    parser.add_argument("--timeout", type=float, default=300, help="seconds for one of them (default: 300)")
    parser.add_argument("--json", type=Path, help="write what was measured of them to this file")
    parser.add_argument("--write", type=Path, help="replace their rows in the table of this file (docs/shapes.md)")
    given = parser.parse_args(arguments)
    if given.models is not None:
        return _models(given.models or list(NETWORKS), given)
    lines = _lines(given.sizes, given.only or "", Options(dynamic=True, float16=given.float16))
    for line in far() if given.far else many(given.signatures) if given.signatures else lines:
        print(line, flush=True)
    return 0


def _models(names: Sequence[str], given: argparse.Namespace) -> int:
    """Measure them one at a time, each in a process of its own. 1 where one is slower than its bar or has wrong results."""
    tasks = [Task(name, given.folder, way == "ort") for name in names for way in given.ways]
    rows: list[Row] = []
    for row in run_tasks(tasks, measure_network, lost, jobs=1, timeout=given.timeout):
        rows.append(row)
        print(
            f"{row.name}{', by ONNX Runtime' * row.by_ort}: {row.note or ', '.join(row.faults) or 'ok'}",
            file=sys.stderr,
        )
        if given.json:
            given.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    print(*table(rows), sep="\n")
    if given.write:
        given.write.write_text(written(given.write.read_text(encoding="utf-8"), rows), encoding="utf-8")
    return int(any(row.faults for row in rows))


def _lines(count: int, only: str, options: Options) -> Iterator[str]:
    yield "| case | fixed ms | new | again | host ms | of a change | holds |"
    yield "|---|---|---|---|---|---|---|"
    for case in CASES:
        if only in case.name:
            t, note = measure(case, count, options)
            yield (
                f"| {case.name} | {statistics.median(t.fixed):.2f} | {t.quotient(t.new):.3f} | {t.quotient(t.again):.3f} "
                f"| {t.difference(t.new, t.same):.3f} | {t.difference(t.again, t.same):.3f} | {note} |"
            )


if __name__ == "__main__":
    raise SystemExit(main())
