"""A method's delegate calls, bound to its tensors. Consecutive calls are submitted to the device together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from gpu_shared.compile_spec import SyncMode
from vkep.device.tensor import DeviceTensor
from vkep.executorch.context_resources import ContextResources
from vkep.executorch.delegates import Pending, Runner
from vkep.executorch.steps import State, reader
from vkep.pte.flow import INPUT, Flow, Writer
from vkep.pte.steps import DelegateStep
from vkep.pte.values import TensorValue, Value
from vkep.session.execution.submit_batch import Staged, SubmitBatch, Targets


class DelegateCall:
    """One call: run by itself, or staged as a `vkep.session.execution.submit_batch.Region` and finished after the submit."""

    def __init__(
        self, state: State, specs: Sequence[Value], number: int, step: DelegateStep, runner: Runner, flow: Flow
    ) -> None:
        self.step, self.runner = step, runner
        self.sources = flow.sources[number]
        self._readers = [
            _source(state, specs, index, source, flow) for index, source in zip(step.inputs, self.sources, strict=True)
        ]
        writes = [flow.writes[number, position] for position in range(len(step.outputs))]
        self.keep = [w.on_device for w in writes]
        self._values, self._results = state.values, state.results
        self._whats = [f"delegate {step.delegate}, output {position}" for position in range(len(writes))]
        self._spill = [(k, w.value) for k, w in enumerate(writes) if w.to_arena]
        self._wanted = [(k, (number, k)) for k, w in enumerate(writes) if w.on_device or w.outputs > 0]
        self._on_device = [(k, (number, k)) for k, kept in enumerate(self.keep) if kept]
        self._pending: Pending | None = None

    @property
    def spills(self) -> bool:
        """Whether a result goes to a host arena."""
        return bool(self._spill)

    @property
    def title(self) -> str:
        """The name of the call in reports."""
        return f"delegate {self.step.delegate}"

    def run(self) -> None:
        """Run the delegate on the values of its arguments, and store its results."""
        self._take(self.runner.run([read() for read in self._readers], self.keep))

    def stage(self, values: dict[str, Any], targets: Targets, locks: ExitStack, held: ExitStack) -> Staged:
        """See `Region`. Results that stay on the device are visible to the next call's `stage`."""
        self._pending = self.runner.stage([read() for read in self._readers], self.keep, locks, held)
        for position, who in self._on_device:
            self._results[who] = self._pending.kept[position]
        return self._pending.staged

    def finish(self) -> None:
        """Take the results of the staged run after its submit."""
        assert self._pending is not None
        pending, self._pending = self._pending, None
        self._take(pending.results())

    def _take(self, made: Sequence[Any]) -> None:
        for position, index in self._spill:
            result = made[position]
            self._values[index].assign(
                result.numpy() if isinstance(result, DeviceTensor) else result, self._whats[position]
            )
        for position, who in self._wanted:
            self._results[who] = made[position]

    def close(self) -> None:
        """Does nothing: the method owns the runner."""


class ChainedCalls:
    """Consecutive calls on one context."""

    def __init__(self, resources: ContextResources, calls: Sequence[DelegateCall]) -> None:
        self.calls = tuple(calls)
        self._chain = SubmitBatch(resources.vulkan, self.calls)

    def run(self) -> None:
        """Run all calls in one submit."""
        self._chain.run({}, {})
        for call in self.calls:
            call.finish()

    def close(self) -> None:
        """Close the submit batch; the delegates are closed by their method."""
        self._chain.close()


def chained(
    calls: Sequence[tuple[DelegateCall, ContextResources]], specs: Sequence[Value]
) -> list[DelegateCall | ChainedCalls]:
    """Group consecutive calls of a method that can all be staged before any of them has run."""
    groups: list[tuple[ContextResources, list[DelegateCall]]] = []
    for call, resources in calls:
        if groups and groups[-1][0] is resources and _joins(groups[-1][1], call, resources, specs):
            groups[-1][1].append(call)
        else:
            groups.append((resources, [call]))
    return [ChainedCalls(resources, group) if len(group) > 1 else group[0] for resources, group in groups]


def _joins(
    before: Sequence[DelegateCall], call: DelegateCall, resources: ContextResources, specs: Sequence[Value]
) -> bool:
    if resources.vulkan.lease.sync_mode is SyncMode.QUEUE_WAIT_IDLE:  # it needs the host between delegates
        return False
    if call.step.delegate in [one.step.delegate for one in before]:  # its recording is in use
        return False
    if any(one.spills for one in before) and any(
        source is None and isinstance(spec := specs[index], TensorValue) and spec.constant is None
        for index, source in zip(call.step.inputs, call.sources, strict=True)
    ):
        return False  # it may read from an arena what an earlier call of the group writes there
    return all(one.runner.can_stage for one in (*before, call))


def _source(state: State, specs: Sequence[Value], index: int, source: Writer | None, flow: Flow) -> Callable[[], Any]:
    spec = specs[index]
    if source is None or not isinstance(spec, TensorValue):
        return reader(state, specs, index, "a delegate")
    written = flow.writes[source].value
    shape = spec.sizes if written != index else None
    if source[0] == INPUT:
        given = state.given
        if shape is None:
            return lambda: given[source[1]]
        return lambda: given[source[1]].reshape(shape)
    results: Mapping[Writer, Any] = state.results
    if shape is None:
        return lambda: results[source]
    seen: list[Any] = [None, None]  # a result and its view; the result is the same tensor in every run where possible

    def read() -> Any:
        result = results[source]
        if result is not seen[0]:
            view = result.reshaped(shape) if isinstance(result, DeviceTensor) else result.reshape(shape)
            seen[:] = result, view
        return seen[1]

    return read
