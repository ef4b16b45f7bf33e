"""A program made ready on a device: islands as recorded plans, CPU groups, and what is planned when values are there."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
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
from vkep.lowering.infer import Known
from vkep.lowering.program import DeferredStep, HostValue, IslandStep, Program, ValueSpec
from vkep.plan.records import Port
from vkep.session.cpu import CpuRunner
from vkep.session.graphs import GraphExecutor
from vkep.session.handover import Frames

Values = dict[str, Any]
#: outputs that are to lie on the device: a tensor to write, or None for a new one
Targets = Mapping[str, DeviceTensor | None]


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
        steps: Sequence[IslandExecutor | GraphExecutor | CpuRunner | PlannedLater],
        frames: Frames | None = None,
    ) -> None:
        """``frames`` hold what passes between delegates, where more than one takes part."""
        self.program = program
        self.steps = steps
        self._frames = frames
        self.constants = {name: weight.array() for name, weight in program.constants.items()}

    def run(self, values: Values, targets: Targets) -> None:
        """Run the steps; results are added to ``values``. ``targets`` says which outputs are to lie on the device."""
        values.update({name: array.copy() for name, array in self.constants.items()})  # the caller's to change
        if self._frames is None:
            self._run(values, targets)
            return
        frame = self._frames.take()
        try:
            self._run(values, {**frame.tensors, **targets})
            mine = {id(tensor) for tensor in frame.tensors.values()}
            for name in self.program.outputs:
                value = values.get(name)
                if isinstance(value, DeviceTensor) and id(value) in mine:
                    values[name] = value.numpy()
        finally:
            self._frames.give(frame)

    def _run(self, values: Values, targets: Targets) -> None:
        for step in self.steps:
            if isinstance(step, CpuRunner):
                values.update(step.run(_on_host(values, step.step.inputs)))
            else:
                step.run(values, targets)

    def close(self) -> None:
        for step in self.steps:
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

    def _target(self, port: Port, targets: Targets) -> DeviceTensor:
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
        signature = tuple((n, _signature(here[n], n in self.step.values)) for n in self.step.inputs)
        with self._cache.use(signature, lambda: self._plan(here)) as executable:
            executable.run(here, targets)
        # not only the step's outputs: profiling runs the islands inside again, from the values that they met
        values.update({n: v for n, v in here.items() if n not in values})

    def _plan(self, values: Values) -> Executable:
        known: dict[str, Known] = dict(self.step.constants)
        for name in self.step.inputs:
            known[name] = known_value(values[name], name, as_constant=name in self.step.values)
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


def check_target(name: str, dtype: object, shape: tuple[int, ...], target: DeviceTensor) -> None:
    """Raise `InvalidInputError` unless a bound device tensor fits its output."""
    if target.shape != shape or target.dtype.name != str(dtype):
        raise InvalidInputError(
            f"output {name!r} is {dtype} {shape}; the bound device tensor is {target.dtype} {target.shape}"
        )


def known_value(value: Any, name: str, *, as_constant: bool = False) -> Known:
    """What planning may know of a value that is there."""
    if isinstance(value, DeviceTensor):
        return ValueSpec(value.dtype, value.shape)
    if not isinstance(value, np.ndarray):
        return HostValue(type(value).__name__)
    try:
        dtype = dtypes.from_numpy(value.dtype)
    except TypeError:
        return HostValue(str(value.dtype))
    return ArrayWeight(name, value.copy()) if as_constant else ValueSpec(dtype, value.shape)


def _signature(value: Any, with_content: bool) -> Any:
    if isinstance(value, np.ndarray):
        return (str(value.dtype), value.shape, value.tobytes() if with_content else None)
    if isinstance(value, DeviceTensor):
        return (value.dtype.name, value.shape, None)
    return type(value).__name__


def _on_host(values: Mapping[str, Any], names: Sequence[str]) -> Values:
    return {n: v.numpy() if isinstance(v := values[n], DeviceTensor) else v for n in names}
