"""ONNX Runtime's operator tests on vkep, from a checkout of its sources.

python -m tools.ort_suite FOLDER                      # everything; what is wrong, and a table by operator
python -m tools.ort_suite FOLDER --match 'Resize'     # cases whose operator or name matches
python -m tools.ort_suite FOLDER --models             # the model files of its test data
python -m tools.ort_suite FOLDER --models --through ort   # through ONNX Runtime, with vkep's provider before the CPU's
python -m tools.ort_suite FOLDER --json results.json  # every verdict
python -m tools.ort_suite FOLDER --baseline FILE      # compare with the verdicts of an earlier run (its --json)
python -m tools.ort_suite FOLDER --every 10           # every 10th case
python -m tools.ort_suite FOLDER --pack cases.xz      # write the cases down, and run none
python -m tools.ort_suite cases.xz --seconds 60       # run them where there is no ONNX Runtime; begin none after a minute
python -m tools.ort_suite FOLDER --write              # keep the counts for docs/operators.md; those of other operators stay

A case counts where ONNX Runtime's CPU provider gives what the test says; the others are counted as unread. The tests are
compiled (g++ or clang++) against a header that writes down what they say; the outcome is kept in --cache.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import re
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import platformdirs

from tools.ort_suite import judge, models, results
from tools.ort_suite.cases import Case
from tools.ort_suite.judge import CPU, ERROR, LOST, RAN, REFUSED, VERDICTS, VULKAN, WRONG, Verdict
from tools.ort_suite.packed import is_packed
from tools.ort_suite.packed import read as read_packed
from tools.ort_suite.packed import write as write_packed
from tools.ort_suite.record import Recorded, prepare, record
from tools.ort_suite.sources import root_of_tests, sources_of_tests
from tools.worker_pool import run_tasks

_Task = TypeVar("_Task")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.ort_suite", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="a checkout of ONNX Runtime's sources, or a file of --pack")
    parser.add_argument("--pack", type=Path, metavar="FILE", help="write the cases down (.xz), without running them")
    parser.add_argument("--models", action="store_true", help="the model files of its test data instead")
    parser.add_argument("--through", choices=("vkep", "ort"), default="vkep", help="what runs the model files")
    parser.add_argument("--match", default="", help="regular expression over operators and names")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="every Nth case only")
    parser.add_argument("--jobs", type=int, default=1, help="worker processes")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for one case")
    parser.add_argument("--seconds", type=float, help="begin no case after so long; cases go in no order then")
    parser.add_argument("--device", default="", help="with --write: a row of its own for a device that is not lavapipe")
    parser.add_argument("--json", type=Path, help="write every verdict here")
    parser.add_argument("--again", type=Path, help="verdicts of an earlier run (its --json), in place of running")
    parser.add_argument(
        "--write", action="store_true", help=f"keep the counts ({results.PATH.name}, {results.PAGE.name})"
    )
    parser.add_argument("--baseline", type=Path, help="verdicts of an earlier run: exit code 1 where a case is worse")
    parser.add_argument("--cache", type=Path, default=Path(platformdirs.user_cache_dir("vkep")) / "ort_suite")
    parser.add_argument("--quiet", action="store_true", help="counts only")
    args = parser.parse_args(argv)
    pattern = re.compile(args.match)
    started = time.perf_counter()
    verdicts: list[Verdict]
    if args.again:
        verdicts = [
            v for v in (Verdict(**entry) for entry in json.loads(args.again.read_text())) if _is_meant(v, pattern)
        ]
    elif args.models:
        files = models.model_files(root_of_tests(args.folder))
        verdicts = _run(
            [f for f in files if pattern.search(str(f))][:: args.every],
            models.on_vkep if args.through == "vkep" else models.through_ort,
            models.lost,
            args,
            "model files",
        )
    else:
        packed = is_packed(args.folder)
        cases = read_packed(args.folder) if packed else read_cases(args.folder, args.cache, args.jobs)
        cases = [c for c in cases if pattern.search(f"{c.operator} {c.name}")][:: args.every]
        understood = cases if packed else _understood(cases, args)
        if args.pack:
            print(f"{write_packed(understood, args.pack)} of {len(understood)} cases in {args.pack}")
            return 0
        if args.seconds:
            random.Random(0).shuffle(understood)
        verdicts = _run(understood, judge.on_vkep, _lost, args, "cases")
    _print_table(verdicts)
    print(f"{time.perf_counter() - started:.0f} s")
    if args.json:
        args.json.write_text(json.dumps([dataclasses.asdict(v) for v in verdicts], indent=1))
    if args.write:
        through = results.MODELS if args.through == "vkep" else results.MODELS_THROUGH_ORT
        results.keep(through if args.models else results.CASES, verdicts, device=args.device)
        results.PAGE.write_text(results.replaced(results.PAGE.read_text()))
    return compare(verdicts, args.baseline) if args.baseline else 0


def read_cases(folder: Path, cache: Path, jobs: int) -> list[Case]:
    """Every case of the test files under ``folder``; prints how many tests could not be read."""
    prepare(cache)
    files = sources_of_tests(folder)
    with ThreadPoolExecutor(max(1, jobs)) as pool:
        recorded: list[Recorded] = list(pool.map(lambda f: record(f, folder, cache), files))
    cases = []
    for entry in recorded:
        runs: dict[str, int] = defaultdict(int)
        for one in entry.records:
            number, runs[one["test"]] = runs[one["test"]], runs[one["test"]] + 1
            cases.append(Case(f"{entry.file}:{one['test']}#{number}", one))
    tests = sum(r.tests for r in recorded)
    left_out = sum(len(r.left_out) for r in recorded)
    early = sum(len(r.ended_early) for r in recorded)
    print(
        f"{len(files)} files, {tests} tests: {len(cases)} cases read; {left_out} tests left out, which do not compile "
        f"against the recorder, {early} ended early"
    )
    return cases


def _is_meant(verdict: Verdict, pattern: re.Pattern[str]) -> bool:
    return bool(pattern.search(f"{verdict.operator} {verdict.name}"))


def _understood(cases: Sequence[Case], args: argparse.Namespace) -> list[Case]:
    """The cases that ONNX Runtime's CPU provider bears out; verdicts are kept in the cache, by case and version."""
    import onnxruntime

    path = args.cache / f"onnxruntime-{onnxruntime.__version__}.json"
    known: dict[str, list[str]] = json.loads(path.read_text()) if path.exists() else {}
    fresh = [c for c in cases if not c.why_not and c.digest not in known]
    by_name = {c.name: c.digest for c in fresh}
    for v in run_tasks(fresh, judge.on_cpu_provider, _lost, jobs=args.jobs, timeout=args.timeout):
        known[by_name[v.name]] = [v.verdict, v.reason]
    path.write_text(json.dumps(known))
    verdicts = {c.name: ["strange", c.why_not] if c.why_not else known[c.digest] for c in cases}
    counts = Counter(v[0] for v in verdicts.values())
    print("on ONNX Runtime's CPU provider: " + ", ".join(f"{n} {what}" for what, n in counts.most_common()))
    if args.json:
        unread = {n: v for n, v in verdicts.items() if v[0] not in (judge.RIGHT, judge.FAILS)}
        args.json.with_suffix(".unread.json").write_text(json.dumps(unread, indent=1))
    return [c for c in cases if verdicts[c.name][0] in (judge.RIGHT, judge.FAILS)]


def _run(
    tasks: Sequence[_Task],
    run: Callable[[_Task], Verdict],
    lost: Callable[[_Task, str], Verdict],
    args: argparse.Namespace,
    what: str,
) -> list[Verdict]:
    print(f"{len(tasks)} {what}", flush=True)
    verdicts = []
    until = time.monotonic() + args.seconds if args.seconds else None
    for v in run_tasks(tasks, run, lost, jobs=args.jobs, timeout=args.timeout, until=until):
        verdicts.append(v)
        if v.verdict in (LOST, WRONG, ERROR, RAN) and not args.quiet:
            print(f"{v.verdict.upper()} {v.operator} {v.name}: {v.text}: {v.reason}", flush=True)
    return sorted(verdicts, key=lambda v: v.name)


def _lost(case: Case, why: str) -> Verdict:
    return Verdict(case.name, case.operator, LOST, why, case.text, case.must_fail)


def _print_table(verdicts: Iterable[Verdict]) -> None:
    groups: dict[str, Counter[str]] = defaultdict(Counter)
    for v in verdicts:
        groups[v.operator][v.verdict] += 1
        groups["all"][v.verdict] += 1
    print(f"{'operator':<44}{'cases':>7}" + "".join(f"{k:>10}" for k in VERDICTS))
    for name in [*sorted(n for n in groups if n != "all"), "all"]:
        counts = groups[name]
        print(f"{name:<44}{counts.total():>7}" + "".join(f"{counts[k] or '':>10}" for k in VERDICTS))


def compare(verdicts: Iterable[Verdict], path: Path) -> int:
    """Print the cases that are worse than in the baseline, and the number of better ones; returns 1 where any is
    worse."""
    before: dict[str, str] = {v["name"]: v["verdict"] for v in json.loads(path.read_text())}
    rank: dict[str, Any] = {VULKAN: 0, REFUSED: 0, CPU: 1}
    order = {k: rank.get(k, 2 + VERDICTS.index(k)) for k in VERDICTS}
    changes = [(v, before[v.name]) for v in verdicts if v.name in before and v.verdict != before[v.name]]
    worse = [(v, was) for v, was in changes if order[v.verdict] > order[was]]
    for v, was in worse:
        print(f"WORSE {v.operator} {v.name}: {was}, now {v.verdict}: {v.reason}")
    print(f"{len(worse)} worse, {len(changes) - len(worse)} better than {path}")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
