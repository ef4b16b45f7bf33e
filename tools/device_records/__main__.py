"""Plans the model catalog and ONNX's node cases for each record of `records`, checks that the plans stay within it, and says what
the device declines.

python -m tools.device_records                 # all; exits with 1 where a plan leaves a record
python -m tools.device_records --every 10      # every tenth case
python -m tools.device_records --write         # the tables of docs/devices.md
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import onnx

from gpu_shared.capabilities import DeviceCapabilities
from tools.backend_suite.cases import load_cases
from tools.device_records.records import RECORDS
from tools.device_records.within import Checker
from tools.models.catalog import build_model
from tools.plan_cases import catalog
from vkep import dtypes
from vkep.errors import VkepError
from vkep.graph import load_model
from vkep.ir.infer import Known
from vkep.ir.program import IslandStep, Program, ValueSpec
from vkep.placement.partition import lower
from vkep.shaders.library import ShaderLibrary

PAGE = Path(__file__).resolve().parents[2] / "docs" / "devices.md"
BEGIN, END = "<!-- tables: python -m tools.device_records --write -->", "<!-- end of tables -->"


@dataclass
class Found:
    """The results for one record: nodes by place, the declined nodes, and the plans that exceed the record."""

    placed: Counter[str] = field(default_factory=Counter)
    declined: Counter[tuple[str, str]] = field(default_factory=Counter)  #: by case and node
    beyond: list[str] = field(default_factory=list)


def models(every: int) -> Iterator[tuple[str, onnx.ModelProto]]:
    """The models of the catalog, and the node cases of which the session takes all inputs."""
    whole = [(name, lambda m=model, o=options: build_model(m, o)) for name, model, options in catalog()]
    cases = [(name, case.model) for name, case in load_cases().items() if case.kind == "node"]
    for name, make in [*whole, *cases][::every]:
        yield name, make()


def planned(model: onnx.ModelProto, caps: DeviceCapabilities) -> Program | None:
    """The program for the model's own input shapes; None for a model that takes no plain tensors or is refused."""
    try:
        loaded = load_model(model.SerializeToString())
        known: dict[str, Known] = dict(loaded.graph.weights)
        for value in loaded.graph.inputs:
            dtype = dtypes.from_onnx(value.elem_type)
            if dtype is None:
                return None
            known[value.name] = ValueSpec(dtype, tuple(d if isinstance(d, int) else 2 for d in value.shape or ()))
        return lower(loaded.graph.nodes, known, [v.name for v in loaded.graph.outputs], loaded.opsets, caps)
    except VkepError:
        return None


def survey(every: int = 1, records: Mapping[str, DeviceCapabilities] = RECORDS) -> dict[str, Found]:
    """Plan every model for each record."""
    found = {name: Found() for name in records}
    library = ShaderLibrary()
    checkers = {name: Checker(caps, library) for name, caps in records.items()}
    for case, model in models(every):
        for name, caps in records.items():
            program = planned(model, caps)
            if program is None:
                continue
            for placement in program.placements:
                found[name].placed[placement.where] += 1
                if placement.where == "cpu":
                    found[name].declined[placement.node.op_type, re.sub(r"\d+", "#", placement.reason)] += 1
            for step in program.steps:
                if isinstance(step, IslandStep):
                    found[name].beyond += [f"{case}: {problem}" for problem in checkers[name].beyond(step.plan)]
    return found


def tables(found: Mapping[str, Found]) -> str:
    """The tables of docs/devices.md."""
    first = next(iter(found))
    optional = sorted(RECORDS[first].features | {"float16"})
    lines = ["| record | subgroup | lanes a workgroup | shared memory | lacks | nodes declined | beyond the first |"]
    lines.append("|---|---|---|---|---|---|---|")
    for name, one in found.items():
        caps = RECORDS[name]
        sizes = f"{caps.subgroup_size} ({caps.min_subgroup_size} to {caps.max_subgroup_size})"
        lacks = ", ".join(f for f in optional if f not in caps.features) or "nothing"
        more = one.declined - found[first].declined
        total = sum(one.placed.values())
        lines.append(
            f"| {name} | {sizes} | {caps.max_workgroup_invocations} | {caps.max_shared_memory_bytes >> 10} KiB | {lacks} "
            f"| {one.placed['cpu']} of {total} | {sum(more.values())} |"
        )
    for name, one in found.items():
        more = one.declined - found[first].declined
        if more:
            lines += ["", f"{name}:", ""]
            lines += [f"- {op}: {reason} ({count})" for (op, reason), count in sorted(more.items())]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=1, help="every Nth model and case only")
    parser.add_argument("--write", action="store_true", help="write the tables of docs/devices.md")
    options = parser.parse_args()
    found = survey(options.every)
    made = tables(found)
    if options.write:
        page = PAGE.read_text(encoding="utf-8")
        head, _, rest = page.partition(BEGIN)
        PAGE.write_text(f"{head}{BEGIN}\n{made}\n{END}{rest.partition(END)[2]}", encoding="utf-8")
    else:
        print(made)
    problems = [f"{name}: {problem}" for name, one in found.items() for problem in one.beyond]
    print(*problems, sep="\n", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
