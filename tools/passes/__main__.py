"""Checks that passes keep the results of operations: a second opinion by the interpreter (`tools.passes.interpreter`).

python -m tools.passes --check resnet18             # models of the catalog and steps of decoders whose names contain a text
python -m tools.passes --check model.onnx           # a file
python -m tools.passes --check ""                   # all of the catalog, and the steps
python -m tools.passes --cases attention            # ONNX's node cases whose names contain a text ("": all)
python -m tools.passes --random 100 --seed 1        # random networks: ``python -m tools.fuzz.networks --passes``

Each is planned for three devices (`tools.plan_devices`) and interpreted on random inputs. Prints the first pass that changes a
result with the operations that it made, and what could not be interpreted. Exits with 1 where a pass changes a result.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator

import onnx

from tools.fuzz.networks.__main__ import main as networks
from tools.passes.check import Report
from tools.passes.models import check_case, check_model, check_planned, node_cases, planned
from tools.plan_devices import DEVICES


def reports(options: argparse.Namespace) -> Iterator[tuple[str, Report]]:
    """Each model on each device."""
    for text in options.check:
        if text.endswith(".onnx"):
            for device, caps in DEVICES.items():
                yield f"{text} on {device}", check_model(onnx.load(text), caps, {}, options.seed)
            continue
        for planned_case in planned(text):
            for device, caps in DEVICES.items():
                yield f"{planned_case.name} on {device}", check_planned(planned_case, caps, options.seed)
    for text in options.cases:
        for name, case in node_cases(text):
            for device, caps in DEVICES.items():
                yield f"{name} on {device}", check_case(case, caps, options.seed)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", nargs="+", default=[], metavar="MODEL")
    parser.add_argument("--cases", nargs="+", default=[], metavar="TEXT")
    parser.add_argument("--random", type=int, default=0, metavar="N")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if not (options.check or options.cases or options.random):
        parser.error("name models or cases")
    failed = options.random and networks(["--passes", "--graphs", str(options.random), "--seed", str(options.seed)])
    if not (options.check or options.cases):
        return int(failed)
    islands = passes = differences = compared = refused = 0
    missing: Counter[str] = Counter()
    for name, report in reports(options):
        islands, passes, compared = islands + report.islands, passes + report.passes, compared + report.compared
        refused += report.refused
        missing += report.not_interpreted
        differences += len(report.differences)
        for difference in report.differences:
            print(f"{name}: {difference}", flush=True)
    print(f"{islands} islands, {passes} passes that changed operations, {differences} with other results")
    print(f"{refused} islands whose data breaks a specification, of which only the faults were compared")
    print(f"{compared} results of operations before their passes were compared with expected ones")
    for reason, count in missing.most_common():
        print(f"not interpreted ({count} islands): {reason}")
    return 1 if differences or failed else 0


if __name__ == "__main__":
    sys.exit(main())
