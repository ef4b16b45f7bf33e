"""A program made ready on a device: islands as recorded plans, CPU groups, and what is planned when values are there."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import Any

import numpy as np

from vkep import dtypes
from vkep.device.runner import PlanRunner
from vkep.device.tensor import DeviceTensor
from vkep.graph.weights import ArrayWeight
from vkep.lowering.partition import Known, lower
from vkep.lowering.program import DeferredStep, HostValue, IslandStep, Program, ValueSpec
from vkep.session.cpu import CpuRunner

Values = dict[str, Any]
#: makes a program ready
Compile = Callable[[Program], "Executable"]


class Executable:
    """One program on one device. Thread-safe."""

    def __init__(self, program: Program, steps: Sequence[IslandExecutor | CpuRunner | DeferredExecutor]) -> None:
        self.program = program
        self.steps = steps
        self.constants = {name: weight.array() for name, weight in program.constants.items()}

    def run(self, values: Values, targets: Mapping[str, DeviceTensor]) -> None:
        """Run the steps; results are added to ``values``. ``targets`` are device tensors that outputs are written to."""
        values.update(self.constants)
        for step in self.steps:
            if isinstance(step, CpuRunner):
                values.update(step.run(_on_host(values, step.step.inputs)))
            else:
                step.run(values, targets)

    def close(self) -> None:
        for step in self.steps:
            if not isinstance(step, CpuRunner):
                step.close()


class IslandExecutor:
    """An island's runner, with the names of its ports."""

    def __init__(self, step: IslandStep, runner: PlanRunner) -> None:
        self.plan, self.nodes = step.plan, step.nodes
        self.runner = runner
        self.inputs = tuple(p.name for p in step.plan.inputs)
        self.outputs = tuple(p.name for p in step.plan.outputs)

    def run(self, values: Values, targets: Mapping[str, DeviceTensor]) -> None:
        results = self.runner.run([values[n] for n in self.inputs], [targets.get(n) for n in self.outputs])
        values.update(zip(self.outputs, results, strict=True))

    def close(self) -> None:
        self.runner.close()


class DeferredExecutor:
    """Nodes that are planned once their inputs' shapes, and some values, are known: a plan for each such signature."""

    def __init__(
        self, step: DeferredStep, compile_: Compile, opsets: Mapping[str, int], caps: Any, capacity: int
    ) -> None:
        self.step = step
        self._compile, self._opsets, self._caps = compile_, opsets, caps
        self._cache = ExecutableCache(capacity)

    def run(self, values: Values, targets: Mapping[str, DeviceTensor]) -> None:
        inner = _on_host(values, [n for n in self.step.inputs if n in self.step.values])
        here: Values = {n: values[n] for n in self.step.inputs} | inner
        signature = tuple((n, _signature(here[n], n in self.step.values)) for n in self.step.inputs)
        with self._cache.use(signature, lambda: self._plan(here)) as executable:
            executable.run(here, targets)
        values.update({n: here[n] for n in self.step.outputs})

    def _plan(self, values: Values) -> Executable:
        known: dict[str, Known] = dict(self.step.constants)
        for name in self.step.inputs:
            known[name] = known_value(values[name], name, as_constant=name in self.step.values)
        return self._compile(lower(self.step.nodes, known, self.step.outputs, self._opsets, self._caps))

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
        self._making = Lock()
        self.latest: Executable | None = None

    def use(self, signature: Any, make: Callable[[], Executable]) -> _Use:
        """A context manager that gives the executable of a signature, made at its first use."""
        executable = self._take(signature)
        if executable is None:
            with self._making:
                executable = self._take(signature)
                if executable is None:
                    made = make()
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
            executable = self._entries.get(signature)
            if executable is not None:
                self._entries.move_to_end(signature)
                self._users[id(executable)] += 1
            return executable

    def _release(self, executable: Executable) -> None:
        with self._lock:
            self._users[id(executable)] -= 1
            done = self._users[id(executable)] == 0 and self._dropped.pop(id(executable), None) is not None
            if done:
                del self._users[id(executable)]
        if done:
            executable.close()

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
        with self._lock:
            entries, self._entries = list(self._entries.values()), OrderedDict()
            busy = [e for e in entries if self._users[id(e)]]
            self._dropped.update({id(e): e for e in busy})
            self.latest = None
        for executable in entries:
            if executable not in busy:
                executable.close()


class _Use:
    __slots__ = ("_cache", "_executable")

    def __init__(self, cache: ExecutableCache, executable: Executable) -> None:
        self._cache, self._executable = cache, executable

    def __enter__(self) -> Executable:
        return self._executable

    def __exit__(self, *exc: object) -> None:
        self._cache._release(self._executable)


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
