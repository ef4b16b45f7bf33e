"""Draws networks, runs each at two sizes (or with two values), and compares vkep with ONNX Runtime and float64.

    python -m tools.fuzz.networks --graphs 1000 --seed 1 --type float16 --symbolic --jobs 64 --seconds 600 --save FOLDER

    python -m tools.fuzz.networks --model FOLDER/seed1-float16-3.onnx

A task is a batch of graphs, which Hypothesis draws; a failure ends its batch and is shrunk. ``--batch`` runs one again, and
``--model`` a network that was saved.
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx

from tools.discrete import take_for_discrete
from tools.fuzz.operators import outcomes
from tools.fuzz.worker import Outcome

#: graphs of a batch
_BATCH = 25
#: one of so many batches runs between guard pages, where shaders run on the host's processor
_GUARDED = 4
_LEAST_NODES = 5


@dataclass(frozen=True)
class Task:
    """What all batches of a campaign share."""

    seed: int
    kind: str
    symbolic: bool
    size: int
    end: float  #: when no graph is run any more (`time.time`)
    shrink_s: float
    folder: str
    passes: bool

    def path(self, number: int) -> Path:
        """Where a batch's graph lies while it runs, and afterwards if it failed."""
        return Path(self.folder) / f"seed{self.seed}-{self.kind}{'-symbolic' if self.symbolic else ''}-{number}.onnx"


@dataclass(frozen=True)
class Batch(Outcome):
    """The outcome of a batch: the number of graphs of each verdict."""

    counts: dict[str, int] = field(default_factory=dict)


class _Enough(BaseException):
    """The time for shrinking is over."""


def run_batch(task: Task, number: int, context: Any, say: Callable[[str], None]) -> Batch:
    """Draw and judge a batch of graphs; a failure is shrunk, and saved."""
    from hypothesis import HealthCheck, Phase, assume, given, seed, settings

    from tools.fuzz.networks.compare import first_wrong, judge, judge_passes, save
    from tools.fuzz.networks.graph import Network
    from tools.fuzz.networks.strategy import networks

    judging = judge_passes if task.passes else judge
    counts: Counter[str] = Counter()
    guarding = number % _GUARDED == _GUARDED - 1 and "llvmpipe" in context.capabilities.name
    failures: list[tuple[Network, str, str]] = []
    stop = 0.0

    @seed(hash((task.seed, number, task.symbolic, len(task.kind))))
    @settings(
        max_examples=task.size, database=None, deadline=None, phases=[Phase.generate, Phase.shrink], report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(networks(task.kind, task.symbolic))
    def check(network: Network) -> None:
        nonlocal stop
        assume(failures or network.size >= _LEAST_NODES)  # fewer only where a failure is shrunk
        if not failures and time.time() > task.end:
            return
        if failures and time.monotonic() > stop:
            raise _Enough
        onnx.save(network.model, task.path(number))
        say("vkep")
        verdict = judging(network, context, guarding)
        if not failures:
            counts.update([verdict.kind, "graphs"])
            counts["nodes"] += network.size
            counts["between guard pages"] += guarding
            counts["in place"] += bool(network.over)
            if verdict.declined:
                counts["not interpreted" if task.passes else "with nodes on the CPU"] += 1
                counts[f"declined: {verdict.declined[:160]}"] += 1
        if verdict.is_failure:
            if not failures:
                stop = time.monotonic() + task.shrink_s
            failures.append((network, verdict.kind, verdict.text))
            raise AssertionError(verdict.kind)

    try:
        check()
    except (Exception, _Enough) as error:
        if not failures:
            raise
        del error
    path = task.path(number)
    if not failures:
        path.unlink(missing_ok=True)
        return Batch("network", number, "", "", "", "", "", counts=dict(counts))
    network, kind, text = min(failures, key=lambda failure: len(failure[0].model.SerializeToString()))
    save(network, path)
    say("vkep")
    where = f"{text}\n    first wrong: {first_wrong(network, context, judging)}"
    return Batch("network", number, kind, where, "", "", repr(network), counts=dict(counts))


def _describe(task: Task, number: int) -> tuple[str, str]:
    return "network", f"batch {number}: {task.path(number)}"


def _again(path: Path) -> int:
    """Judge a network that was saved, and print its verdict and the first node that is wrong."""
    import gpu_shared
    from tools.fuzz.networks.compare import first_wrong, judge, load

    network = load(path)
    with gpu_shared.SharedGpuContext.create({"gpu_shared_context_token": "networks"}) as context:
        verdict = judge(network, context)
        print(network)
        print(f"{verdict.kind}: {verdict.text}")
        if verdict.is_failure:
            print(f"first wrong: {first_wrong(network, context)}")
    return int(verdict.is_failure)


def report(counts: Counter[str]) -> str:
    """A line of counts, and the reasons of nodes on the CPU."""
    kinds = (
        "right",
        "refused",
        "wrong",
        "refused alone",
        "exception",
        "crash",
        "hang",
        "in place",
        "with nodes on the CPU",
    )
    texts = [f"{counts[kind]} {kind}" + (" by both" if kind == "refused" else "") for kind in kinds]
    lines = [f"{counts['graphs']} graphs, {counts['nodes']} nodes: {', '.join(texts)}"]
    return "\n".join([*lines, *(f"    {n} {text}" for text, n in counts.most_common() if text.startswith("declined:"))])


def _environment(jobs: int, discrete: bool) -> None:
    """One driver's thread for each of many workers; and code of lavapipe's that is not optimized, since compiling takes most of
    the time. A GPU's kernels need its wider subgroups; its cache does not tell the widths apart."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("LP_NUM_THREADS", "1" if jobs > 1 else "2")
    os.environ.setdefault("GALLIVM_PERF", "nopt")
    os.environ.setdefault("LP_NATIVE_VECTOR_WIDTH", "256" if discrete else "128")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--type", default="float32", choices=["float32", "float16", "mixed"])
    parser.add_argument("--symbolic", action="store_true", help="sizes are symbols; the second run has others")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=1e9, help="no graph is run after that")
    parser.add_argument("--shrink", type=float, default=60, help="seconds to shrink a failure")
    parser.add_argument("--save", type=Path, help="a folder for models that fail, with their inputs")
    parser.add_argument("--batch", type=int, help="only this batch")
    parser.add_argument("--passes", action="store_true", help="check the passes of plans for imaginary devices instead")
    parser.add_argument("--discrete", action="store_true", help="take the driver's device for a discrete GPU")
    parser.add_argument("--model", type=Path, help="judge a saved network")
    args = parser.parse_args(arguments)
    _environment(args.jobs, args.discrete)
    if args.discrete:
        take_for_discrete(setattr)
    if args.model is not None:
        return _again(args.model)
    end, counts, failed = time.time() + args.seconds, Counter[str](), 0

    def numbers() -> Iterator[int]:
        for number in range(-(-args.graphs // _BATCH)) if args.batch is None else [args.batch]:
            if time.time() > end:
                return
            yield number

    with tempfile.TemporaryDirectory() as scratch:
        folder = args.save or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        task = Task(
            args.seed, args.type, args.symbolic, min(_BATCH, args.graphs), end, args.shrink, str(folder), args.passes
        )
        working = functools.partial(run_batch, task), functools.partial(_describe, task)
        for outcome in outcomes(*working, numbers(), args.jobs):
            counts.update(
                outcome.counts if isinstance(outcome, Batch) else {outcome.ours or outcome.verdict: 1, "graphs": 1}
            )
            if outcome.verdict:
                failed += 1
                print(f"{outcome.verdict}: batch {outcome.number} of seed {args.seed}: {outcome.case}", flush=True)
                print(f"    {outcome.text}", flush=True)
    print(report(counts))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
