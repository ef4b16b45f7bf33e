"""Runs ONNX's node cases on the default device without features, under the validation layers: in as many combinations as it takes
for every two features to be on and off together, and alone. Exit code 1 where a case fails, a layer complains, or a case that the
baseline has whole on Vulkan is not.

python -m tools.without                 # every 20th case
python -m tools.without --every 100
python -m tools.without --list          # the combinations
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
from collections.abc import Sequence

from gpu_shared.instance import VALIDATION_VARIABLE
from gpu_shared.query import WITHOUT_VARIABLE

#: what kernels ask for, or SPIR-V of vkep's uses
FEATURES = (
    "int64",
    "float64",
    "int16",
    "int8",
    "float16",
    "storage_16bit",
    "storage_8bit",
    "subgroup_shuffle",
    "subgroup_ballot",
    "subgroup_arithmetic",
    "subgroup_size_control",
    "compute_full_subgroups",
    "integer_dot_product",
    "vulkan_memory_model",
)


def combinations(features: Sequence[str]) -> list[frozenset[str]]:
    """Sets of features to do without: any two are both there, both missing, and each missing alone in some of them."""
    missing = {
        (a, b, a_off, b_off)
        for a, b in itertools.combinations(features, 2)
        for a_off, b_off in itertools.product((False, True), repeat=2)
    }
    made: list[frozenset[str]] = []
    while missing:
        chosen: dict[str, bool] = {}
        a, b, a_off, b_off = min(missing)
        chosen |= {a: a_off, b: b_off}
        for name in features:  # each step covers the most of the missing combinations
            if name not in chosen:
                chosen[name] = _covered(missing, chosen, name, True) >= _covered(missing, chosen, name, False)
        missing = {m for m in missing if (chosen[m[0]], chosen[m[1]]) != m[2:]}
        made.append(frozenset(name for name, off in chosen.items() if off))
    return made


def _covered(missing: set[tuple[str, str, bool, bool]], chosen: dict[str, bool], name: str, off: bool) -> int:
    pairs = ({(name, other, off, is_off), (other, name, is_off, off)} for other, is_off in chosen.items())
    return sum(not pair.isdisjoint(missing) for pair in pairs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=20, help="every Nth case only")
    parser.add_argument("--list", action="store_true", help="print the combinations alone")
    options = parser.parse_args()
    failed = 0
    for without in combinations(FEATURES):
        names = ",".join(sorted(without))
        print(f"without {names or 'nothing'}", flush=True)
        if options.list:
            continue
        command = [
            sys.executable,
            "-m",
            "tools.backend_suite",
            "--check",
            "--kinds",
            "node",
            "--every",
            str(options.every),
        ]
        environment = {**os.environ, WITHOUT_VARIABLE: names, VALIDATION_VARIABLE: "1"}
        failed += subprocess.run(command, env=environment, check=False).returncode != 0
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
