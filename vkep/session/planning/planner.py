"""Plans nodes and prepares programs: islands are compiled and uploaded, CPU groups and deferred parts created."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import TYPE_CHECKING, Any

from gpu_shared.compile_spec import SyncMode
from gpu_shared.weak import WeakValues
from vkep.device.delegate import VulkanDelegate
from vkep.device.rooms import Rooms
from vkep.device.runner import PlanRunner
from vkep.errors import InvalidInputError, InvalidNode, UnsupportedModelError
from vkep.graph.model import Graph, Model, Node
from vkep.ir.infer import Known
from vkep.ir.program import ControlStep, CpuStep, DeferredStep, IslandStep, KpStep, Over, Program, Step, VgfStep
from vkep.placement.policy import VGF, Policy
from vkep.session.execution.control import ControlExecutor
from vkep.session.execution.cpu import CpuRunner
from vkep.session.execution.executor import Executable, IslandExecutor, StepExecutor
from vkep.session.execution.kompute import KpRunner
from vkep.session.execution.shared_values import BufferSets
from vkep.session.execution.submit_batch import SubmitBatch
from vkep.session.execution.vgf import GraphRefused, VgfExecutor
from vkep.session.options import SessionOptions, plans_folder, spirv_folder
from vkep.session.planning.planned_graph import DeferredExecutor, PlannedGraph, SharedGraph
from vkep.session.planning.saved import SavedPlans, plan_key
from vkep.session.planning.sized_plans import Lowered, Opened
from vkep.shaders.library import ShaderLibrary
from vkep.sizes import Trace
from vkep.text import counted

if TYPE_CHECKING:
    from vkep.device.datagraph.delegate import VgfDelegate

logger = logging.getLogger("vkep.session")

#: operators whose result has as many elements as a run finds: what reads it waits for the count
_COUNTS = frozenset({"Compress", "NonMaxSuppression", "NonZero", "Unique"})
#: the input, by its place, that operators wait for where a run gives it
_GIVEN = {
    **{("", name): 1 for name in ("Expand", "Reshape", "Tile", "TopK", "Trilu")},
    ("com.microsoft", "GroupQueryAttention"): 6,
}


@dataclass(frozen=True, slots=True)
class _Lowered:
    """See `vkep.session.planning.sized_plans.Lowered`."""

    program: Program
    how: Callable[[Program], Executable]

    def prepare(self) -> Executable:
        return self.how(self.program)


class Planner:
    """Prepares the programs of one session. It does not refer to the session, which would keep that alive."""

    def __init__(
        self,
        delegate: VulkanDelegate,
        options: SessionOptions,
        model: Model,
        policy: Policy | None = None,
        graphs: VgfDelegate | None = None,
    ) -> None:
        """``graphs`` is the VGF delegate, where ``policy`` uses it."""
        self._delegate, self._options, self._graphs = delegate, options, graphs
        self._opsets = model.opsets
        self._rooms = self._new_rooms()
        self._rests: WeakValues[Hashable, SharedGraph] = WeakValues()  # those in use
        self._sharing = Lock()
        self._saved = SavedPlans(plans_folder(options)) if options.save_plans else None
        self._stored: set[bool] = set()  # of plans with sizes, and of those without, the first one is saved
        self.policy = replace(policy or Policy(check_data=options.check_data), tuned=delegate.tuned)

    def _new_rooms(self) -> Rooms:
        options = self._options
        return Rooms(options.concurrency, options.max_run_bytes, run_ahead=options.run_ahead)

    def plan_model(
        self,
        model: Model,
        known: Mapping[str, Known],
        outputs: Sequence[str],
        trace: Trace | None = None,
        over: Over = (),
    ) -> Lowered:
        """As `plan`, for the whole model: a program that was lowered before is loaded from the disk."""
        saved = self._saved
        key = plan_key(model, known, outputs, self._delegate.capabilities, self.policy, over) if saved else None
        if saved is None or key is None:
            return self.plan(model.graph.nodes, known, outputs, trace, over)
        program = saved.program(key, model, outputs)
        # for a plan with sizes the file has the first sizes, and their conditions
        if program is not None and (trace is None or (program.conditions and program.conditions.hold(trace.values))):
            return _Lowered(program, self)
        lowered, sized = self.plan(model.graph.nodes, known, outputs, trace, over), trace is not None

        def prepare(_: Program) -> Executable:
            executable = lowered.prepare()
            if sized not in self._stored:  # plans for further sizes would each load the packed weights again
                self._stored.add(sized)
                try:
                    saved.keep(key, executable.program, model)
                except BaseException:
                    executable.close()
                    raise
            return executable

        return _Lowered(lowered.program, prepare)

    def plan(
        self,
        nodes: Sequence[Node],
        known: Mapping[str, Known],
        outputs: Sequence[str],
        trace: Trace | None = None,
        over: Over = (),
    ) -> Lowered:
        """Distribute nodes over the delegates; those that the converter or the driver refuses, while the program is prepared,
        are offered to the other delegate. Raises `InvalidInputError` for a node whose specification ``known`` breaks; preparing
        raises as `__call__`."""

        def lowered(policy: Policy) -> Program:
            # Imports every operator, which takes a tenth of a second: a saved plan does not need it.
            from vkep.placement.partition import lower

            caps = self._delegate.capabilities
            try:
                return lower(
                    nodes, known, outputs, self._opsets, caps, policy, may_postpone=True, trace=trace, over=over
                )
            except InvalidNode as invalid:
                raise InvalidInputError(invalid.reason) from None

        def prepare(program: Program) -> Executable:
            policy = self.policy
            while True:
                try:
                    return self(program)
                except GraphRefused as refusal:
                    titles = ", ".join(node.title for node in refusal.nodes)
                    logger.warning("the VGF delegate does not run %s: %s", titles, refusal.reason)
                    policy = policy.refuse(refusal.nodes, VGF, refusal.reason)
                    program = lowered(policy)

        return _Lowered(lowered(self.policy), prepare)

    def __call__(self, program: Program) -> Executable:
        """Compile and upload. Raises `UnsupportedModelError` where ``fallback="error"`` refuses the CPU, or a node runs
        nowhere; `ArenaOutOfMemory`, `GpuError`; then nothing stays allocated.
        """
        declined = [p for p in program.placements if p.where == "cpu"]
        if declined and self._options.fallback == "error":
            lines = "\n  ".join(f"{p.node.title}: {p.reason}" for p in declined)
            nodes = counted(len(declined), "node")
            raise UnsupportedModelError(f"fallback='error', and Vulkan declines {nodes}:\n  {lines}")
        for placement in declined:
            logger.info("on the CPU: %s: %s", placement.node.title, placement.reason)
        steps: list[StepExecutor] = []
        mixed = any(isinstance(step, VgfStep) for step in program.steps)
        try:
            for step in program.steps:
                steps.append(self._step(step, mixed))
        except BaseException:
            for made in steps:
                made.close()
            raise
        if not mixed:
            return Executable(program, steps)
        each = self._delegate.lease.sync_mode is SyncMode.QUEUE_WAIT_IDLE
        chain = None if each else functools.partial(SubmitBatch, self._delegate)
        return Executable(program, steps, BufferSets(self._delegate, program), chain)

    def _step(self, step: Step, mixed: bool) -> StepExecutor:
        if isinstance(step, IslandStep):
            # regions that are submitted together need their rooms at once
            rooms = self._new_rooms() if mixed else self._rooms
            progress = self._options.progress
            runner = PlanRunner(
                self._delegate, step.plan, step.weights, sizes=step.sizes, rooms=rooms, progress=progress
            )
            return IslandExecutor(step, runner)
        if isinstance(step, VgfStep):
            assert self._graphs is not None, "the policy lets no data graph in without the delegate"
            return VgfExecutor(step, self._graphs)
        if isinstance(step, KpStep):
            return KpRunner(
                step, self._delegate.capabilities.name, ShaderLibrary(cache_dir=spirv_folder(self._options))
            )
        if isinstance(step, CpuStep):
            return CpuRunner(step, self._opsets)
        if isinstance(step, ControlStep):
            return ControlExecutor(step, self._deferred)
        return self._deferred(step)

    def _deferred(self, step: DeferredStep) -> DeferredExecutor:
        """The executor of the step. Programs with the same step share its plans: else a chain of counts would be planned for each
        combination of counts that are 0, 1 or more."""
        groups = {name: k for k, name in enumerate(dict.fromkeys(step.sizes.values()))}
        sizes = frozenset((place, groups[name]) for place, name in step.sizes.items())
        made = tuple([node.outputs for node in step.nodes])
        key = (step.inputs, step.outputs, step.values, made, sizes)
        with self._sharing:
            shared = self._rests.get(key)
            if shared is None or not shared.serves(step):
                opened = Opened(step.sizes, at_once=True)
                graph = self.graph(step.nodes, step.constants, step.outputs, asked=step.values, opened=opened)
                self._rests[key] = shared = SharedGraph(step, graph, self._sharing)
            return DeferredExecutor(step, shared)

    def graph(
        self, nodes: Sequence[Node], constants: Mapping[str, Known], outputs: Sequence[str], **kwargs: Any
    ) -> PlannedGraph:
        """A graph of these nodes, planned for each signature of its inputs. Further arguments as for `PlannedGraph`; `opened`
        gives its sizes."""
        make_plan = functools.partial(self.plan, nodes, outputs=outputs)
        return PlannedGraph(make_plan, constants, self._options.plan_cache_size, **kwargs)

    def model_graph(
        self, model: Model, outputs: Sequence[str], check: Callable[[Mapping[str, Any]], None]
    ) -> PlannedGraph:
        """As `graph` for a whole model, whose plans are saved to disk if the options allow it."""
        make_plan = functools.partial(self.plan_model, model, outputs=outputs)
        weights = model.graph.weights
        name = f"session of {model.source}"
        capacity = self._options.plan_cache_size
        return PlannedGraph(make_plan, weights, capacity, name=name, check=check, opened=opened(model.graph))


def opened(graph: Graph, at_once: bool = False) -> Opened:
    """The sizes that the declarations of a graph's inputs leave open. ``at_once``: as in `Opened`, also where nothing waits."""
    inputs = {info.name for info in graph.inputs}
    return Opened(
        {
            (info.name, axis): dim or f"{info.name} {axis}"
            for info in graph.inputs
            for axis, dim in enumerate(info.shape or ())
            if not isinstance(dim, int)
        },
        at_once=at_once or any(_waits(node, inputs) for node in graph.nodes),
    )


def _waits(node: Node, inputs: Collection[str]) -> bool:
    """Whether a part of the model is planned once a run has a number. Then the first plan already has sizes: without them each
    count would be planned alone."""
    place = _GIVEN.get((node.domain, node.op_type))
    given = place is not None and len(node.inputs) > place and node.inputs[place] in inputs
    return given or (node.op_type in _COUNTS and not node.domain)
