"""Prints the conditions under which a plan with sizes is valid, and the place in the lowering that needed each.

python -m tools.size_conditions bert --size sequence=37    # a model of the catalog, or an .onnx file
python -m tools.size_conditions --cases                    # ONNX's node cases with all input dimensions as sizes
python -m tools.size_conditions --cases test_conv          # those whose name has that in it, with their conditions
"""

from __future__ import annotations

import argparse
import collections
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gpu_shared.capabilities import DeviceCapabilities
from tools.backend_suite.cases import load_cases
from tools.models.catalog import CATALOG, Options, build_model
from tools.plan_devices import DEVICES
from vkep import dtypes
from vkep.errors import VkepError
from vkep.graph import load_model
from vkep.graph.model import Model
from vkep.ir.infer import Known
from vkep.ir.program import DeferredStep, Over, Program, ValueSpec
from vkep.placement.partition import lower
from vkep.placement.size_report import LocatedTrace
from vkep.session.planning.planned_graph import known_value
from vkep.session.planning.sized_plans import numbers_of, with_sizes
from vkep.sizes import Trace

#: size of a symbolic dimension where none is given
_USUAL = 37


@dataclass(frozen=True)
class Case:
    """A model, its inputs for the current sizes, and which of the inputs' numbers (`numbers_of`) are sizes, by name."""

    model: Model
    inputs: Mapping[str, Known]
    places: Mapping[str, Sequence[int]]
    over: Over = ()  #: outputs that are written to an input's memory

    @property
    def sizes(self) -> dict[str, int]:
        """The current sizes."""
        values = numbers_of(self.inputs).values
        return {name: values[places[0]] for name, places in self.places.items()}

    def at(self, sizes: Mapping[str, Any]) -> dict[str, Known]:
        """The inputs for other sizes: integers, or a trace's sizes."""
        return with_sizes(self.inputs, {place: sizes[name] for name, places in self.places.items() for place in places})

    def lowered(self, sizes: Mapping[str, Any], caps: DeviceCapabilities, trace: Trace | None = None) -> Program:
        """The model planned for these sizes."""
        known: dict[str, Known] = {**self.model.graph.weights, **self.at(sizes)}
        outputs = [v.name for v in self.model.graph.outputs]
        return lower(self.model.graph.nodes, known, outputs, self.model.opsets, caps, trace=trace, over=self.over)

    def with_trace(self, trace: Trace, caps: DeviceCapabilities, at: Mapping[str, int] | None = None) -> Program:
        """The model planned with sizes, which are the trace's symbols in the order of ``places``."""
        sizes = at or self.sizes
        return self.lowered({name: trace.symbol(sizes[name]) for name in self.places}, caps, trace)


def declared(model: Model, sizes: Mapping[str, int]) -> Case:
    """A model with its symbolic dimensions as sizes: `_USUAL` where ``sizes`` has none."""
    inputs: dict[str, Known] = {}
    names: list[str | None] = []
    for info in model.graph.inputs:
        dtype = dtypes.from_onnx(info.elem_type)
        if dtype is None or info.shape is None:
            raise ValueError(f"{info.name}: expected a tensor of a known rank")
        here = [d if isinstance(d, str) else None for d in info.shape]
        shape = [d if isinstance(d, int) else sizes.get(d or "", _USUAL) for d in info.shape]
        inputs[info.name] = ValueSpec(dtype, tuple(shape))
        names += here
    return Case(model, inputs, _by_name(names))


def of_values(model: Model, values: Mapping[str, np.ndarray], caps: DeviceCapabilities) -> Case:
    """A model with its inputs' dimensions above 1 as sizes, equal ones as the same; so are the whole numbers that a plan depends
    on by content.
    """
    asked: set[str] = set()
    while True:
        inputs = {name: known_value(value, name, name in asked) for name, value in values.items()}
        program = Case(model, inputs, {}).lowered({}, caps)
        waits = {n for step in program.steps if isinstance(step, DeferredStep) for n in step.values}
        more = (waits & values.keys()) - asked
        if not more:
            break
        asked |= more
    return Case(model, inputs, _by_name([f"d{n}" if n > 1 else None for n in numbers_of(inputs).values]))


def _by_name(names: Sequence[str | None]) -> dict[str, list[int]]:
    places: dict[str, list[int]] = {}
    for place, name in enumerate(names):
        if name is not None:
            places.setdefault(name, []).append(place)
    return places


def node_cases(part: str = "") -> Iterator[tuple[str, Case]]:
    """ONNX's node cases whose name has ``part`` in it and whose inputs are tensors with sizes."""
    for name, case in load_cases().items():
        if case.kind != "node" or part not in name:
            continue
        proto = case.model()
        try:
            model = load_model(proto.SerializeToString())
            names = [v.name for v in model.graph.inputs]
            values = dict(zip(names, next(iter(case.data(proto)))[0], strict=True))
            if not all(isinstance(v, np.ndarray) and v.dtype != object for v in values.values()):
                continue
            made = of_values(model, values, DEVICES["cpu"])
        except (VkepError, ValueError, TypeError):
            continue
        if made.places:
            yield name.removeprefix("node/"), made


ONE, SOME, NONE, REFUSED = "one plan", "some sizes fixed", "every size fixed", "no plan with sizes"


def outcome(case: Case, caps: DeviceCapabilities) -> tuple[str, LocatedTrace]:
    """How well a plan with sizes serves a model whose nodes run on the device: for any size, or only with some of them
    at their current value."""
    trace = LocatedTrace()
    try:
        program = case.with_trace(trace, caps)
    except Exception:
        traceback.print_exc()
        return REFUSED, trace
    fixed = len(trace.fixed_symbols())
    if any(p.where in ("cpu", "deferred") for p in program.placements):
        return REFUSED, trace
    return (NONE if fixed == trace.symbols else SOME) if fixed else ONE, trace


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="", help="a name of the catalog, a file, or part of a case's name")
    parser.add_argument("--size", action="append", default=[], metavar="NAME=N", help="a symbolic dimension at hand")
    parser.add_argument("--cases", action="store_true", help="ONNX's node cases")
    parser.add_argument("--device", choices=DEVICES, default="cpu")
    arguments = parser.parse_args()
    caps = DEVICES[arguments.device]
    if arguments.cases:
        counts: collections.Counter[str] = collections.Counter()
        for name, case in node_cases(arguments.model):
            if any(p.where in ("cpu", "deferred", "control") for p in case.lowered(case.sizes, caps).placements):
                continue  # not on the device whatever its sizes
            found, trace = outcome(case, caps)
            counts[found] += 1
            print(f"{name}: {found}; {len(trace.conditions)} conditions")
            if arguments.model:
                print(*[f"    {c}  {list(c.place.code)}" for c in trace.named_conditions(list(case.places))], sep="\n")
        print(*[f"{n:5} {found}" for found, n in counts.items()], sep="\n")
        return 0
    sizes = {name: int(n) for name, _, n in (text.partition("=") for text in arguments.size)}
    if arguments.model in CATALOG:
        data = build_model(arguments.model, Options(dynamic=True)).SerializeToString()
    else:
        data = Path(arguments.model).read_bytes()
    case = declared(load_model(data), sizes)
    found, trace = outcome(case, caps)
    print(*trace.named_conditions(list(case.places)), sep="\n")
    print(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
