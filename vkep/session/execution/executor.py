"""A program prepared on a device: islands as recorded plans, CPU groups, and parts that are planned during a run."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from gpu_shared.steady import check_wanted
from vkep.device.arguments import RunNumbers
from vkep.device.bound import Bound
from vkep.device.runner import PlanRunner
from vkep.device.tensor import DeviceTensor, on_host
from vkep.errors import InvalidInputError
from vkep.ir.program import IslandStep, Program
from vkep.plan.records import Plan, Port
from vkep.session.execution.sequences import gathered
from vkep.session.execution.shared_values import BufferSets
from vkep.session.execution.submit_batch import Region, Staged, SubmitBatch
from vkep.session.execution.vgf import VgfExecutor
from vkep.session.run_options import stop_if_terminated

if TYPE_CHECKING:
    from vkep.device.delegate import VulkanDelegate
    from vkep.device.traced import ClockSync, PlanTrace

Values = dict[str, Any]
#: destinations of outputs: a device tensor or an array to write, or None for a new device tensor. Only Vulkan islands
#: write to a given array; an output of another step is a new value.
Targets = Mapping[str, DeviceTensor | np.ndarray[Any, Any] | None]


class StepExecutor(Protocol):
    """A step of a program, prepared to run."""

    def run(self, values: Values, targets: Targets) -> None:
        """Run on the inputs in ``values``; results are added there. Outputs in ``targets`` are written to their
        destinations."""

    def close(self) -> None:
        """Free the step's resources."""


#: called while the device works; returns the island of the run that probably follows
Meanwhile = Callable[[], "IslandExecutor | None"]
#: runs a step in place of `StepExecutor.run`
Watch = Callable[[StepExecutor, Values, Targets], None]


class Executable:
    """One program on one device. Thread-safe."""

    def __init__(
        self,
        program: Program,
        steps: Sequence[StepExecutor],
        shared: BufferSets | None = None,
        chain: Callable[[Sequence[Region]], SubmitBatch] | None = None,
    ) -> None:
        """``shared`` holds the values that pass between delegates, where there are several; ``chain`` submits
        consecutive regions together (None: each is a submit)."""
        self.program = program
        self.steps = steps
        self._runs: list[StepExecutor] = []
        for on_device, group in itertools.groupby(steps, lambda s: isinstance(s, (IslandExecutor, VgfExecutor))):
            regions: list[Any] = list(group)
            chained = chain is not None and on_device and len(regions) > 1
            self._runs += [chain(regions)] if chain is not None and chained else regions
        self._shared = shared
        #: for runs of these sizes; its resources are those of the plan with sizes (None: its own)
        self.sizes: Sequence[int] | None = None
        self.constants = {name: weight.array() for name, weight in program.constants.items()}
        #: its only step, where a run is one submit: then an interrupt at any point leaves it usable
        self.island = _only_island(steps) if shared is None else None

    @property
    def is_apart(self) -> bool:
        """Whether the values between its steps belong to the run, and not to a set of buffers."""
        return self._shared is None

    def at(self, sizes: Sequence[int]) -> Executable:
        """The executable for runs of these sizes, in the order of the program's symbols. It shares all resources of
        this one, which must stay open."""
        made = object.__new__(Executable)
        made.__dict__.update(self.__dict__, sizes=sizes, _shared=None)
        made.steps = [s.at(sizes) if isinstance(s, IslandExecutor) else s for s in self.steps]
        made._runs = list(made.steps)
        made.island = _only_island(made.steps)
        if self.program.numbers:
            made.constants = {**self.constants, **{n: c.array(sizes) for n, c in self.program.numbers.items()}}
        return made

    def run(
        self,
        values: Values,
        targets: Targets,
        watch: Watch | None = None,
        meanwhile: Meanwhile | None = None,
    ) -> None:
        """Run the steps; results are added to ``values``. ``targets`` are the outputs' destinations. A ``watch`` runs
        each step itself, to time it. ``meanwhile`` is called while the device works, where there is only an `island`.
        """
        if self.constants:  # the caller may change its copy
            values.update({name: array.copy() for name, array in self.constants.items()})
        if self._shared is None:
            self._run(values, targets, watch, meanwhile)
        else:
            with self._with_shared(self._shared, values, targets) as places:
                self._run(values, places, watch)
        for name, value in self.program.lists.items():
            values[name] = gathered(value, values.__getitem__)

    def _run(self, values: Values, targets: Targets, watch: Watch | None, meanwhile: Meanwhile | None = None) -> None:
        for step in self._runs:
            stop_if_terminated()
            check_wanted()
            if watch is not None:
                watch(step, values, targets)
            elif isinstance(step, IslandExecutor):
                step.run(values, targets, meanwhile)
            else:
                step.run(values, targets)

    @contextlib.contextmanager
    def _with_shared(self, sets: BufferSets, values: Values, targets: Targets) -> Iterator[Targets]:
        """``targets`` and the tensors of a buffer set; outputs that are left in the set are copied to the host at the
        end."""
        buffers = sets.take()
        try:
            on_device = {n: t for n, t in targets.items() if not isinstance(t, np.ndarray)}
            yield {**buffers.tensors, **on_device}
            mine = {id(tensor) for tensor in buffers.tensors.values()}
            for name in self.program.outputs:
                value = values.get(name)
                if isinstance(value, DeviceTensor) and id(value) in mine:
                    values[name] = value.numpy()
        finally:
            sets.give(buffers)

    def close(self) -> None:
        """Close the steps and the shared tensors, where they are its own. Its runs must have ended."""
        if self.sizes is not None:
            return
        for step in self._runs:
            step.close()
        if self._shared is not None:
            self._shared.close()


def _only_island(steps: Sequence[StepExecutor]) -> IslandExecutor | None:
    step = steps[0] if len(steps) == 1 else None
    return step if isinstance(step, IslandExecutor) else None


class IslandExecutor:
    """An island's runner, with the names of its ports."""

    def __init__(self, step: IslandStep, runner: PlanRunner) -> None:
        self.nodes, self.runner = step.nodes, runner
        self.inputs = tuple(p.name for p in step.plan.inputs)
        self.outputs = tuple(p.name for p in step.plan.outputs)
        self._over = dict(step.over)
        self._has_sizes = step.sizes is not None
        self.numbers: RunNumbers | None = None  #: of the sizes of its runs, as in `Bound`
        self._ports: tuple[Port, ...] | None = None  # of the outputs, once they were listed

    def at(self, sizes: Sequence[int]) -> IslandExecutor:
        """For runs of these sizes, in the order of the plan's symbols, by the same runner."""
        if not self._has_sizes:
            return self
        made = object.__new__(IslandExecutor)
        made.__dict__.update(self.__dict__, numbers=self.runner.numbers(sizes), _ports=None)
        return made

    @property
    def plan(self) -> Plan:
        """The plan; for runs of certain sizes with their ports."""
        return self.runner.plan_of(self.numbers)

    def run(self, values: Values, targets: Targets, meanwhile: Meanwhile | None = None) -> None:
        """Run the plan on ``values`` by its ports' names; ``meanwhile`` is called while the device works. Raises
        `InvalidInputError` for a target that does not fit."""
        following = None if meanwhile is None else lambda: self._numbers_of(meanwhile())
        values.update(zip(self.outputs, self.runner.run(self.bound(values, targets), following), strict=True))

    def _numbers_of(self, following: IslandExecutor | None) -> RunNumbers | None:
        if following is None or following.runner is not self.runner:
            return None
        following.output_ports()  # listed while the device works
        return following.numbers

    def trace(self, values: Values, targets: Targets, clock: ClockSync) -> PlanTrace:
        """As `run`, and return when its parts began and ended."""
        with ExitStack() as held:
            recorded = self.runner.recording(held, self.numbers)
            results, trace = recorded.trace(self.bound(values, targets), clock)
        values.update(zip(self.outputs, results, strict=True))
        return trace

    def profile(self, values: Mapping[str, Any]) -> list[float]:
        """Nanoseconds of each dispatch in one run; see `vkep.device.recorded.RecordedPlan.profile`."""
        with ExitStack() as held:
            return self.runner.recording(held, self.numbers).profile(self.bound(values, {}))

    @property
    def title(self) -> str:
        """The delegate and the operators of its nodes, for profiles."""
        return "vulkan: " + ", ".join(node.op_type for node in self.nodes)

    def stage(self, values: Values, targets: Targets, locks: ExitStack, held: ExitStack) -> Staged:
        """See `vkep.session.execution.submit_batch.Region`."""
        recorded = self.runner.recording(held, self.numbers)
        bound = self.bound(values, targets)
        key = recorded.stage(bound)
        values.update({n: t for n, t in zip(self.outputs, bound.outputs, strict=True) if isinstance(t, DeviceTensor)})

        def collect() -> None:
            values.update(zip(self.outputs, recorded.collect(bound), strict=True))

        buffers = recorded.buffers(key)
        return Staged(
            self.runner.lease,
            buffers,
            lambda value: recorded.submitted(value, bound),
            collect if bound.down else None,
            lambda: recorded.stamped(buffers),
        )

    def bound(self, values: Mapping[str, Any], targets: Targets) -> Bound:
        """What a run on ``values`` binds its ports to. Raises `InvalidInputError` for a target that does not fit."""
        outputs: list[DeviceTensor | np.ndarray[Any, Any] | None] = [None] * len(self.outputs)
        if targets:
            outputs = [self._target(port, targets) if port.name in targets else None for port in self.output_ports()]
        return Bound.of([values[n] for n in self.inputs], outputs, self.numbers)

    def output_ports(self) -> tuple[Port, ...]:
        """Those of its runs, in order."""
        if self._ports is None:
            self._ports = self.runner.outputs_of(self.numbers)
        return self._ports

    def _target(self, port: Port, targets: Targets) -> DeviceTensor | np.ndarray[Any, Any]:
        target = targets[port.name]
        if target is None:
            return self.runner.tensor_for(port)
        if isinstance(target, DeviceTensor) and target.capacity and port.name not in self._over:
            raise InvalidInputError(
                f"output {port.name!r} is written densely; the bound device tensor is the leading elements of a larger one"
            )
        return fitted(port.name, port.dtype, port.shape, target)

    def close(self) -> None:
        """Free the plan's pipelines, weights and recordings."""
        self.runner.close()


def check_target(name: str, dtype: object, shape: tuple[int, ...], target: DeviceTensor | np.ndarray[Any, Any]) -> None:
    """Raise `InvalidInputError` unless a bound device tensor (or an array to write) has the output's dtype and shape."""
    if target.shape != shape or target.dtype.name != str(dtype):
        raise InvalidInputError(
            f"output {name!r} is {dtype} {shape}; the bound device tensor is {target.dtype} {target.shape}"
        )


T = TypeVar("T", DeviceTensor, "DeviceTensor | np.ndarray[Any, Any]")


def fitted(name: str, dtype: object, shape: tuple[int, ...], target: T) -> T:
    """A bound target of an output's shape: of leading elements as many as the output has. Raises `InvalidInputError` where it
    does not fit, or its capacity is less.
    """
    if (
        isinstance(target, DeviceTensor)
        and target.capacity
        and target.shape != shape
        and len(shape) == len(target.capacity)
    ):
        for axis, (size, capacity) in enumerate(zip(shape, target.capacity, strict=True)):
            if size > capacity:
                raise InvalidInputError(
                    f"output {name!r} is {dtype} {shape}: dimension {axis} is {size}, and the bound device tensor has room "
                    f"for {capacity}"
                )
        target = target.leading(shape)
    check_target(name, dtype, shape, target)
    return target


def own_array(value: Any, shared: bool) -> Any:
    """A result of a run as an array that the caller owns. ``shared``: other objects hold the value too (a run's input),
    so it is copied. A list is converted element by element; values of other kinds are returned unchanged."""
    if isinstance(value, list):
        return [own_array(element, shared) for element in value]
    if isinstance(value, DeviceTensor):
        return value.numpy()
    return value.copy() if shared and isinstance(value, np.ndarray) else value


def own_tensor(
    delegate: VulkanDelegate, name: str, value: Any, target: DeviceTensor | None, shared: bool
) -> DeviceTensor:
    """A result of a run as a device tensor: ``target``, else a separate one; see `own_array`. Raises
    `InvalidInputError` for a target that does not fit."""
    if isinstance(value, DeviceTensor) and (value is target or (target is None and not shared)):
        return value
    if target is None:
        return DeviceTensor.from_numpy(delegate, on_host(value))
    if (
        isinstance(value, DeviceTensor)
        and value.capacity
        and (value.address, value.capacity) == (target.address, target.capacity)
    ):
        return value  # written in place
    target = fitted(name, value.dtype, value.shape, target)
    target.write(on_host(value))
    return target
