"""``python -m tools.imagined_plans``: plans that sessions would make for ten sizes on devices that are not there, and why.

    python -m tools.imagined_plans --pipelines chat        # pipelines of `tools.pipelines`; all where none is named
    python -m tools.imagined_plans --models bert unet      # models of `tools.bench.sizes`; all where none is named
    python -m tools.imagined_plans --files model.onnx      # sizes are drawn as for those
    python -m tools.imagined_plans --why ...               # the conditions that asked for each plan, and their lines of code

A pipeline runs on the device that is there. Each signature that one of its graphs meets is also given to `SizedPlans` for each of
``--devices``, which lowers as it would there and creates nothing. Of models and files only the shapes of inputs are drawn, and
parts that wait for a count of a run are left out. ``--half`` converts models and files to float16 (onnxruntime).
"""

from __future__ import annotations

import argparse
import copy
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from gpu_shared.capabilities import DeviceCapabilities
from tools.device_records.records import RECORDS
from tools.plan_devices import DEVICES
from tools.size_conditions import declared
from vkep.graph import load_model
from vkep.graph.model import Model, Node
from vkep.graph.weights import Weight
from vkep.ir.infer import Known
from vkep.ir.program import IslandStep, Over, Program
from vkep.placement.partition import lower
from vkep.placement.policy import Policy
from vkep.placement.size_report import LocatedTrace
from vkep.session.execution.executor import Executable
from vkep.session.options import SessionOptions
from vkep.session.planning import sized_plans
from vkep.session.planning.planned_graph import PlannedGraph, Use
from vkep.session.planning.planner import opened
from vkep.session.planning.sized_plans import Opened, SizedPlans, numbers_of
from vkep.sizes import Trace

SIZES = 10
ALL: Mapping[str, DeviceCapabilities] = {**DEVICES, **RECORDS}
#: a CPU driver; a GPU with cooperative matrices of float16 and int8; one with the least that a device may have
USUAL = ("cpu", "NVIDIA H200", "small gpu")


class _ImaginedProgram(Executable):
    """A program that is on no device. ``prepared`` is called where it would be."""

    def __init__(self, program: Program, prepared: Callable[[], None]) -> None:
        super().__init__(program, ())
        self._prepared = prepared

    def prepare(self) -> _ImaginedProgram:
        """As `vkep.session.planning.sized_plans.Lowered`."""
        self._prepared()
        return self

    def at(self, sizes: Sequence[int]) -> _ImaginedProgram:
        """The same for these sizes."""
        made = copy.copy(self)
        made.sizes = sizes
        return made


@dataclass(frozen=True)
class Made:
    """A plan: the number of the signature that it was made for, whether it has sizes, how many of its pipelines no plan before
    had, and why each plan before did not serve the signature."""

    signature: int
    sized: bool
    pipelines: int
    why: tuple[str, ...]


class ImaginedPlans:
    """The plans of one graph on a device that is not there."""

    def __init__(
        self,
        nodes: Sequence[Node],
        constants: Mapping[str, Known],
        outputs: Sequence[str],
        opsets: Mapping[str, int],
        caps: DeviceCapabilities,
        names: Opened,
        policy: Policy | None = None,
    ) -> None:
        """``names``: the sizes that are known to differ; the rest as for `vkep.placement.partition.lower`."""
        self._lowered = nodes, outputs, opsets, caps, policy
        own = {name: _unpacked(value) for name, value in constants.items()}
        self._plans = SizedPlans(self._lower, own, SessionOptions().plan_cache_size, names)
        self.made: list[Made] = []
        self._why: tuple[str, ...] = ()
        self._signatures = 0
        self._traces: dict[int, Trace | None] = {}
        self._pipelines: set[Any] = set()

    @classmethod
    def of(cls, model: Model, caps: DeviceCapabilities) -> ImaginedPlans:
        """Those of a session of a model."""
        graph = model.graph
        outputs = [value.name for value in graph.outputs]
        return cls(graph.nodes, graph.weights, outputs, model.opsets, caps, opened(graph))

    def run(self, inputs: Mapping[str, Known], over: Over = ()) -> None:
        """Take a signature that is new."""
        self._why = tuple(dict.fromkeys(self._broken(inputs, over)))
        self._plans.executable(inputs, over)
        self._signatures += 1

    def _lower(self, known: Mapping[str, Known], *, trace: Trace | None = None, over: Over = ()) -> _ImaginedProgram:
        nodes, outputs, opsets, caps, policy = self._lowered
        program = lower(nodes, known, outputs, opsets, caps, policy, may_postpone=True, trace=trace, over=over)

        def prepared() -> None:
            keys = {key for step in program.steps if isinstance(step, IslandStep) for key in step.plan.pipelines}
            self.made.append(Made(self._signatures, trace is not None, len(keys - self._pipelines), self._why))
            self._pipelines |= keys
            self._traces[id(program.conditions)] = trace

        return _ImaginedProgram(program, prepared)

    def _broken(self, inputs: Mapping[str, Known], over: Over) -> Iterator[str]:
        numbers = numbers_of(inputs, over)
        for plan in self._plans._plans:
            if plan.kinds != numbers.kinds:
                yield "other types, ranks or tensors in place"
            elif plan._fixed(numbers.values) != plan._others:
                yield f"the plan keeps {plan._others}, the run has {plan._fixed(numbers.values)}"
            elif any(len({*same(numbers.values)}) > 1 for same in plan._same):
                yield "numbers differ that were equal"
            else:
                sizes, trace = plan._first(numbers.values), self._traces[id(plan._conditions)]
                failed, about = plan._conditions.failed(sizes), f"the plan is for {plan._hints}, the run has {sizes}: "
                if isinstance(trace, LocatedTrace):
                    named = trace.named_conditions([f"s{k}" for k in range(len(sizes))])
                    yield from [f"{about}{c} {' < '.join(c.place.code)}" for c in named if c.text in failed]
                else:
                    yield from [about + text for text in failed]
                if not failed:
                    yield f"{about}far"


def _unpacked(value: Known) -> Known:
    """A constant without the packed forms that plans elsewhere have, and that a plan would prefer."""
    if isinstance(value, Weight):
        value = copy.copy(value)
        value.packed = {}
    return value


@contextmanager
def located() -> Iterator[None]:
    """Plans note where each condition was asked for, which takes time."""
    own = vars(sized_plans)["Trace"]
    vars(sized_plans)["Trace"] = LocatedTrace
    try:
        yield
    finally:
        vars(sized_plans)["Trace"] = own


@contextmanager
def followed(
    devices: Mapping[str, DeviceCapabilities],
) -> Iterator[dict[int, tuple[PlannedGraph, dict[str, ImaginedPlans]]]]:
    """The graphs that run meanwhile, with their plans on each device."""
    found: dict[int, tuple[PlannedGraph, dict[str, ImaginedPlans]]] = {}
    seen: set[Any] = set()
    use = PlannedGraph.use

    def used(self: PlannedGraph, values: Mapping[str, Any], signature: Any = None, over: Over = ()) -> Use:
        if id(self) not in found:
            assert self._plans is not None
            own: Any = self._plans
            planner, [of] = own._make.func.__self__, own._make.args
            nodes = of.graph.nodes if isinstance(of, Model) else of
            given = nodes, own._constants, own._make.keywords["outputs"], planner._opsets
            more = own._opened, planner.policy
            found[id(self)] = self, {name: ImaginedPlans(*given, caps, *more) for name, caps in devices.items()}
        new = id(self), self.signature(values), over
        if new not in seen:
            seen.add(new)
            for imagined in found[id(self)][1].values():
                imagined.run(self._known(values), over)
        return use(self, values, signature, over)

    PlannedGraph.use = used  # type: ignore[method-assign]
    try:
        yield found
    finally:
        PlannedGraph.use = use  # type: ignore[method-assign]


def drawn(model: Model, name: str = "") -> Iterator[dict[str, Known]]:
    """Signatures of a model, with sizes as for the model of `tools.bench.sizes` of that name, or as for any."""
    from tools.bench.sizes.networks import NETWORKS, Network

    network, rng = NETWORKS.get(name) or Network(name, "", lambda path: None), np.random.default_rng(7)
    names = sorted({d for info in model.graph.inputs for d in info.shape or () if isinstance(d, str)})
    for _ in range(SIZES):
        yield dict(declared(model, network.draw(names, rng)).inputs)


def _print_plans(name: str, plans: Mapping[str, ImaginedPlans], why: bool, here: str = "") -> None:
    print(f"{name}: {here}{', '.join(f'{device}: {len(p.made)}' for device, p in plans.items())}", flush=True)
    for device, made in [(device, made) for device, p in plans.items() for made in p.made] if why else ():
        kind = "a plan with sizes" if made.sized else "a plan for one signature"
        print(f"    {device}: signature {made.signature}: {kind}, {made.pipelines} pipelines")
        print(*[f"        {text}" for text in made.why], sep="\n", end="\n" if made.why else "")


def _of_pipeline(name: str, devices: Mapping[str, DeviceCapabilities], why: bool) -> None:
    from tools.pipelines import PIPELINES

    total: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        pipeline = PIPELINES[name].open(Path(folder), stack)
        with followed(devices) as found:
            for k in range(SIZES):
                pipeline.run(k)
        for graph, plans in found.values():
            total.update({"here": graph.plan_count, **{device: len(p.made) for device, p in plans.items()}})
            if why:
                _print_plans(f"  {graph._name}", plans, why, f"here: {graph.plan_count}, ")
    print(f"{name}: {', '.join(f'{device}: {count}' for device, count in total.items())}", flush=True)


def _of_file(name: str, path: Path, devices: Mapping[str, DeviceCapabilities], why: bool, half: bool) -> None:
    data = path.read_bytes()
    if half:
        from onnxruntime.transformers.float16 import convert_float_to_float16

        data = convert_float_to_float16(onnx.load_from_string(data)).SerializeToString()
    model = load_model(data)
    plans = {device: ImaginedPlans.of(model, caps) for device, caps in devices.items()}
    for inputs in drawn(model, name):
        for imagined in plans.values():
            imagined.run(inputs)
    _print_plans(name, plans, why)


def _run(given: argparse.Namespace) -> None:
    devices = {name: ALL[name] for name in given.devices}
    if given.pipelines is not None:
        from tools.pipelines import PIPELINES

        for name in given.pipelines or PIPELINES:
            try:
                _of_pipeline(name, devices, given.why)
            except ImportError as error:
                print(f"{name}: not run: needs {error.name}", flush=True)
    paths = {path.stem: path for path in given.files}
    if given.models is not None:
        from tools.bench.sizes.networks import NETWORKS

        given.folder.mkdir(parents=True, exist_ok=True)
        for name in given.models or NETWORKS:
            paths[name] = given.folder / f"{name.replace(' ', '_').replace('@', '.')}.onnx"
            try:
                if not paths[name].exists():
                    NETWORKS[name].write(paths[name])
            except Exception as error:
                print(f"{paths.pop(name).stem}: not exported: {type(error).__name__}: {error}", flush=True)
    for name, path in paths.items():
        try:
            _of_file(name, path, devices, given.why, given.half)
        except Exception as error:  # drawn sizes that do not fit together, types that a converter leaves
            print(f"{name}: not planned: {type(error).__name__}: {error}", flush=True)


def main() -> int:
    """Print the counts."""
    parser = argparse.ArgumentParser(prog="python -m tools.imagined_plans", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--pipelines", nargs="*", metavar="NAME")
    parser.add_argument("--models", nargs="*", metavar="NAME")
    parser.add_argument("--files", nargs="*", type=Path, default=[])
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "vkep-sizes", help="of the models")
    parser.add_argument("--devices", nargs="+", choices=ALL, default=USUAL, metavar="DEVICE")
    parser.add_argument("--half", action="store_true", help="models and files in float16")
    parser.add_argument("--why", action="store_true", help="the conditions that asked for each plan")
    given = parser.parse_args()
    with located() if given.why else nullcontext():
        _run(given)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
