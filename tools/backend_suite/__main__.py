"""One command for the suite: runs it, prints counts, writes ``docs/operators.md`` and the baseline.

python -m tools.backend_suite                     # everything; prints counts and what failed
python -m tools.backend_suite --match 'resize'    # cases whose name matches
python -m tools.backend_suite --write             # also docs/operators.md and the baseline
python -m tools.backend_suite --check             # exit code 1 where a case of the baseline is lost, or any case fails
python -m tools.backend_suite --through ort       # the same through ONNX Runtime with vkep's provider; has its own baseline
python -m tools.backend_suite --through ort-kernels   # with each node run by a kernel of ONNX Runtime's registry
python -m tools.backend_suite --every 25          # every 25th case only
python -m tools.backend_suite --device NAME       # keep the counts as another device's, for a row of the page
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from pathlib import Path

from tools.backend_suite import baseline, table
from tools.backend_suite.cases import KINDS, load_cases
from tools.backend_suite.outcome import FAILED, STATES, Outcome, counts
from tools.backend_suite.worker import RUNNERS, run_cases
from tools.ort_suite import results
from tools.ort_suite.judge import WRONG, Verdict


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.backend_suite", description=__doc__.splitlines()[0])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--match", default="", help="regular expression over case names")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="every Nth case only")
    parser.add_argument("--through", choices=RUNNERS, default="vkep", help="what runs the cases (default: vkep)")
    parser.add_argument("--jobs", type=int, default=1, help="worker processes")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds for one case")
    parser.add_argument("--seconds", type=float, help="begin no case after so long")
    parser.add_argument("--results", type=Path, help="write every outcome here, as JSON lines")
    parser.add_argument("--write", action="store_true", help=f"write the baseline (and {table.PATH.name})")
    parser.add_argument("--device", default="", help=f"keep the counts as this device's ({results.PATH.name})")
    parser.add_argument("--check", action="store_true", help="fail where a case fails, or leaves the baseline")
    parser.add_argument("--quiet", action="store_true", help="counts only")
    args = parser.parse_args(argv)

    pattern = re.compile(args.match)
    names = [n for n, c in load_cases().items() if c.kind in args.kinds and pattern.search(n)][:: args.every]
    started = time.perf_counter()
    outcomes: list[Outcome] = []
    stopped = False
    try:
        until = time.monotonic() + args.seconds if args.seconds else None
        for outcome in run_cases(names, jobs=args.jobs, timeout=args.timeout, through=args.through, until=until):
            outcomes.append(outcome)
            if outcome.state == FAILED and not args.quiet:
                print(f"FAILED {outcome.name}: {outcome.reasons[0]}", flush=True)
    except KeyboardInterrupt:
        stopped = True
    outcomes.sort(key=lambda o: names.index(o.name))
    print_counts(outcomes, time.perf_counter() - started)
    if args.results:
        args.results.write_text("".join(baseline.to_json(o) + "\n" for o in outcomes))
    if stopped:
        print(f"stopped: {len(outcomes)} of {len(names)} cases had run")
        return 130
    if args.device:
        results.keep(results.SUITE, [_verdict(o) for o in outcomes], device=args.device)
    path = baseline.PATHS.get(args.through)
    if args.write:
        if path is None:
            parser.error(f"there is no baseline of {args.through}")
        if len(names) != len(load_cases()):
            parser.error("--write needs the whole suite: leave --match, --kinds and --every out")
        if args.through == "vkep":
            table.write(outcomes)
        baseline.write(outcomes, path)
    if args.check:
        lost = baseline.regressions(outcomes, path) if path is not None else []
        for line in lost:
            print(f"REGRESSED {line}")
        return 1 if lost or counts(outcomes)[FAILED] else 0
    return 0


def _verdict(outcome: Outcome) -> Verdict:
    state = WRONG if outcome.state == FAILED else outcome.state
    return Verdict(outcome.name, outcome.operator, state, outcome.reasons[0] if outcome.reasons else "")


def print_counts(outcomes: list[Outcome], seconds: float) -> None:
    """A line for each kind and one for all."""
    header = f"{'kind':<20}{'cases':>7}{'Vulkan':>8}{'of them folded':>16}{'some CPU':>10}{'declined':>10}{'failed':>8}"
    print(header)
    for kind in (*KINDS, "all"):
        part = [o for o in outcomes if kind in ("all", o.name.partition("/")[0])]
        if part:
            by_state = counts(part)
            vulkan, cpu, declined, failed = (by_state[s] for s in STATES)
            folded = sum(o.folded for o in part)
            print(f"{kind:<20}{len(part):>7}{vulkan:>8}{folded:>16}{cpu:>10}{declined:>10}{failed:>8}")
    print(f"{seconds:.0f} s")


if __name__ == "__main__":
    sys.exit(main())
