"""A program made ready on a device: islands as recorded plans, CPU groups, and what is planned when values are there."""

from __future__ import annotations

import contextlib
import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from threading import Condition, Lock, RLock
from typing import Any, Protocol

import numpy as np

from gpu_shared.errors import ClosedError
from vkep import dtypes
from vkep.device.runner import PlanRunner
from vkep.device.tensor import DeviceTensor
from vkep.errors import InvalidInputError
from vkep.graph.model import Node
from vkep.graph.weights import ArrayWeight
from vkep.ir.guards import Question
from vkep.ir.infer import Known
from vkep.ir.program import DeferredStep, HostValue, IslandStep, Program, ValueSpec
from vkep.plan.records import Port
from vkep.session.cpu import CpuRunner
from vkep.session.kompute import KpRunner
from vkep.session.shared_values import BufferSets
from vkep.session.submit_batch import Region, Staged, SubmitBatch
from vkep.session.vgf_executor import VgfExecutor

Values = dict[str, Any]
#: where outputs are to go: a device tensor or an array to write, or None for a new device tensor. An array is a wish: what
#: no Vulkan island makes comes back as a value of its own.
Targets = Mapping[str, DeviceTensor | np.ndarray[Any, Any] | None]


class Plan(Protocol):
    """Lowers nodes and makes the program ready (`vkep.session.compile.Compiler`)."""

    def plan(self, nodes: Sequence[Node], known: Mapping[str, Known], outputs: Sequence[str]) -> Executable: ...


class PlannedLater(Protocol):
    """A step whose programs are planned while it runs: a deferred part, a loop."""

    def run(self, values: Values, targets: Targets) -> None: ...

    @property
    def latest(self) -> Executable | None:
        """The program planned last."""

    def close(self) -> None: ...


class Executable:
    """One program on one device. Thread-safe."""

    def __init__(
        self,
        program: Program,
        steps: Sequence[IslandExecutor | VgfExecutor | KpRunner | CpuRunner | PlannedLater],
        frames: BufferSets | None = None,
        chain: Callable[[Sequence[Region]], SubmitBatch] | None = None,
    ) -> None:
        """``frames`` hold what passes between delegates, where more than one takes part; ``chain`` makes one submit of
        regions that follow one another (None: each is a submit).
        """
        self.program = program
        self.steps = steps
        self._runs: list[SubmitBatch | IslandExecutor | VgfExecutor | KpRunner | CpuRunner | PlannedLater] = []
        for on_device, group in itertools.groupby(steps, lambda s: isinstance(s, (IslandExecutor, VgfExecutor))):
            regions: list[Any] = list(group)
            chained = chain is not None and on_device and len(regions) > 1
            self._runs += [chain(regions)] if chain is not None and chained else regions
        self._frames = frames
        self.constants = {name: weight.array() for name, weight in program.constants.items()}

    @property
    def sole_island(self) -> IslandExecutor | None:
        """The island that is all there is of the program; None where there is more."""
        step = self.steps[0] if len(self.steps) == 1 else None
        return step if isinstance(step, IslandExecutor) and self._frames is None and not self.constants else None

    def run(self, values: Values, targets: Targets) -> None:
        """Run the steps; results are added to ``values``. ``targets`` says where outputs are to go."""
        values.update({name: array.copy() for name, array in self.constants.items()})  # the caller's to change
        if self._frames is None:
            self._run(values, targets, None)
            return
        with self._frame(self._frames, values, targets) as places:
            self._run(values, places, None)

    def profile(self, values: Values, targets: Targets) -> list[tuple[str, float]]:
        """Run, and tell the GPU's nanoseconds in each region that is sent together with others, by its title."""
        times: list[tuple[str, float]] = []
        values.update(self.constants)
        if self._frames is not None:
            with self._frame(self._frames, values, targets) as places:
                self._run(values, places, times)
        else:
            self._run(values, targets, times)
        return times

    def _run(self, values: Values, targets: Targets, times: list[tuple[str, float]] | None) -> None:
        for step in self._runs:
            if isinstance(step, (CpuRunner, KpRunner)):
                values.update(step.run(_on_host(values, step.step.inputs)))
            elif times is not None and isinstance(step, SubmitBatch):
                titles = [region.title for region in step.regions]
                times += zip(titles, step.profile(values, targets), strict=True)
            else:
                step.run(values, targets)

    @contextlib.contextmanager
    def _frame(self, frames: BufferSets, values: Values, targets: Targets) -> Iterator[Targets]:
        """``targets`` and a frame's tensors; what was left in the frame comes to the host at the end."""
        frame = frames.take()
        try:
            on_device = {n: t for n, t in targets.items() if not isinstance(t, np.ndarray)}
            yield {**frame.tensors, **on_device}
            mine = {id(tensor) for tensor in frame.tensors.values()}
            for name in self.program.outputs:
                value = values.get(name)
                if isinstance(value, DeviceTensor) and id(value) in mine:
                    values[name] = value.numpy()
        finally:
            frames.give(frame)

    def close(self) -> None:
        for step in self._runs:
            if not isinstance(step, CpuRunner):
                step.close()
        if self._frames is not None:
            self._frames.close()


class IslandExecutor:
    """An island's runner, with the names of its ports."""

    def __init__(self, step: IslandStep, runner: PlanRunner) -> None:
        self.plan, self.nodes = step.plan, step.nodes
        self.runner = runner
        self.inputs = tuple(p.name for p in step.plan.inputs)
        self.outputs = tuple(p.name for p in step.plan.outputs)

    def run(self, values: Values, targets: Targets) -> None:
        written = [self._target(port, targets) if port.name in targets else None for port in self.plan.outputs]
        results = self.runner.run([values[n] for n in self.inputs], written)
        values.update(zip(self.outputs, results, strict=True))

    @property
    def title(self) -> str:
        return "vulkan: " + ", ".join(node.op_type for node in self.nodes)

    def stage(self, values: Values, targets: Targets, locks: ExitStack, held: ExitStack) -> Staged:
        """See `vkep.session.submit_batch.Region`."""
        recorded = held.enter_context(self.runner.recording())
        written = [self._target(port, targets) if port.name in targets else None for port in self.plan.outputs]
        key = recorded.stage([values[n] for n in self.inputs], written)
        values.update({n: t for n, t in zip(self.outputs, written, strict=True) if isinstance(t, DeviceTensor)})

        def collect() -> None:
            values.update(zip(self.outputs, recorded.collect(written), strict=True))

        return Staged(
            self.runner.lease,
            recorded.buffers(key),
            lambda value: recorded.submitted(value, written),
            None if all(isinstance(t, DeviceTensor) for t in written) else collect,
        )

    def _target(self, port: Port, targets: Targets) -> DeviceTensor | np.ndarray[Any, Any]:
        target = targets[port.name]
        if target is None:
            return self.runner.tensor_for(port)
        check_target(port.name, port.dtype, port.shape, target)
        return target

    def close(self) -> None:
        self.runner.close()


class DeferredExecutor:
    """Nodes that are planned once their inputs' shapes, and some values, are known: a plan for each such signature."""

    def __init__(self, step: DeferredStep, compile_: Plan, capacity: int) -> None:
        self.step = step
        self._compile = compile_
        self._cache = ExecutableCache(capacity)

    def run(self, values: Values, targets: Targets) -> None:
        inner = _on_host(values, [n for n in self.step.inputs if n in self.step.values])
        here: Values = {n: values[n] for n in self.step.inputs} | inner
        signature = tuple((n, _signature(here[n], self.step.values.get(n))) for n in self.step.inputs)
        with self._cache.use(signature, lambda: self._plan(here)) as executable:
            executable.run(here, targets)
        # not only the step's outputs: profiling runs the islands inside again, from the values that they met
        values.update({n: v for n, v in here.items() if n not in values})

    def _plan(self, values: Values) -> Executable:
        known: dict[str, Known] = dict(self.step.constants)
        for name in self.step.inputs:
            known[name] = known_value(values[name], name, self.step.values.get(name))
        return self._compile.plan(self.step.nodes, known, self.step.outputs)

    @property
    def latest(self) -> Executable | None:
        return self._cache.latest

    def close(self) -> None:
        self._cache.close()


class ExecutableCache:
    """Executables by signature: the most recently used stay. Thread-safe; one in use is closed only after its run."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._entries: OrderedDict[Any, Executable] = OrderedDict()
        self._users: dict[int, int] = {}
        self._dropped: dict[int, Executable] = {}
        self._lock = Lock()
        self._unused = Condition(self._lock)
        self._making = RLock()  # a progress callback may close the session that is being planned
        self._closing = 0
        self._closed = False
        self.latest: Executable | None = None

    def use(self, signature: Any, make: Callable[[], Executable]) -> _Use:
        """A context manager that gives the executable of a signature, made at its first use. Raises `ClosedError`."""
        executable = self._take(signature)
        if executable is None:
            with self._making:
                executable = self._take(signature)
                if executable is None:
                    made = make()
                    if self._closed:
                        made.close()
                        raise ClosedError("session")
                    with self._lock:
                        self._entries[signature] = self.latest = made
                        self._users[id(made)] = 1
                    self._evict()
                    executable = made
        return _Use(self, executable)

    def __contains__(self, signature: Any) -> bool:
        return signature in self._entries

    def _take(self, signature: Any) -> Executable | None:
        with self._lock:
            if self._closed:
                raise ClosedError("session")
            executable = self._entries.get(signature)
            if executable is not None:
                self._entries.move_to_end(signature)
                self._users[id(executable)] += 1
            return executable

    def _release(self, executable: Executable) -> None:
        with self._lock:
            self._users[id(executable)] -= 1
            last = self._users[id(executable)] == 0 and self._dropped.pop(id(executable), None) is not None
            self._closing += last
            self._unused.notify_all()
        if last:
            try:
                executable.close()
            finally:
                with self._lock:
                    del self._users[id(executable)]
                    self._closing -= 1
                    self._unused.notify_all()

    def _evict(self) -> None:
        closing = []
        with self._lock:
            while len(self._entries) > self._capacity:
                _, old = self._entries.popitem(last=False)
                if self._users[id(old)]:
                    self._dropped[id(old)] = old
                else:
                    del self._users[id(old)]
                    closing.append(old)
        for executable in closing:
            executable.close()

    def close(self) -> None:
        """Close every executable once the runs in other threads have ended; what comes later raises `ClosedError`."""
        with self._making, self._unused:
            self._closed = True
            self._unused.wait_for(lambda: not self._closing and not any(self._users.values()))
            entries, self._entries = list(self._entries.values()), OrderedDict()
            self._users.clear()
            self.latest = None
        for executable in entries:
            executable.close()


class _Use:
    __slots__ = ("_cache", "_executable")

    def __init__(self, cache: ExecutableCache, executable: Executable) -> None:
        self._cache, self._executable = cache, executable

    def __enter__(self) -> Executable:
        return self._executable

    def __exit__(self, *exc: object) -> None:
        self._cache._release(self._executable)


def check_target(name: str, dtype: object, shape: tuple[int, ...], target: DeviceTensor | np.ndarray[Any, Any]) -> None:
    """Raise `InvalidInputError` unless a bound device tensor (or an array to write) fits its output."""
    if target.shape != shape or target.dtype.name != str(dtype):
        raise InvalidInputError(
            f"output {name!r} is {dtype} {shape}; the bound device tensor is {target.dtype} {target.shape}"
        )


def known_value(value: Any, name: str, asked: Sequence[Question] | None = None) -> Known:
    """What planning may know of a value that is there: what it answers to the questions ``asked``; all, where none is."""
    if isinstance(value, DeviceTensor):
        return ValueSpec(value.dtype, value.shape)
    if not isinstance(value, np.ndarray):
        return HostValue(type(value).__name__)
    try:
        dtype = dtypes.from_numpy(value.dtype)
    except TypeError:
        return HostValue(str(value.dtype))
    if asked is not None and not asked:
        return ArrayWeight(name, value.copy())
    return ValueSpec(dtype, value.shape, tuple((question, question(value)) for question in asked or ()))


def _signature(value: Any, asked: Sequence[Question] | None) -> Any:
    if isinstance(value, np.ndarray):
        content: Any = None
        if asked is not None:
            content = tuple(question(value) for question in asked) or value.tobytes()
        return (str(value.dtype), value.shape, content)
    if isinstance(value, DeviceTensor):
        return (value.dtype.name, value.shape, None)
    return type(value).__name__


def _on_host(values: Mapping[str, Any], names: Sequence[str]) -> Values:
    return {n: v.numpy() if isinstance(v := values[n], DeviceTensor) else v for n in names}
