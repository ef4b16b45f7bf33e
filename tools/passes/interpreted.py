"""Runs a model on the host, by the interpreter of operations: what its plans compute, where there is no device."""

from __future__ import annotations

import functools
from collections.abc import Hashable, Mapping, Sequence
from threading import Lock
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx

from gpu_shared.capabilities import DeviceCapabilities
from tools.passes.check import islands
from tools.passes.host_memory import HostMemory
from tools.passes.interpreter import Interpreter
from vkep.device import fresh
from vkep.errors import InvalidInputError, InvalidModelError
from vkep.graph import load_model
from vkep.graph.model import Model, Node
from vkep.ir.infer import Known
from vkep.ir.ops import Op, reads
from vkep.ir.program import DeferredStep, IslandStep, Over, Step
from vkep.ir.tensor import Tensor
from vkep.passes.rewrite import Goal
from vkep.plan.records import FRESH, Plan
from vkep.session.execution.executor import StepExecutor, Targets, Values
from vkep.session.execution.sequences import spread
from vkep.session.inputs import check_inputs
from vkep.session.options import SessionOptions
from vkep.session.planning.planned_graph import DeferredExecutor, SharedGraph
from vkep.session.planning.planner import Planner
from vkep.session.planning.sized_plans import Lowered
from vkep.sizes import Trace


def interpreted(model: onnx.ModelProto, feeds: Mapping[str, Any], caps: DeviceCapabilities) -> list[Any]:
    """The outputs of a model whose plans are made for ``caps``. Raises as a session with ``fallback="error"``, and `NoReference`
    for a computation that the interpreter does not have."""
    loaded = load_model(model.SerializeToString())
    planner = _Planner(loaded, caps)
    inputs, names = loaded.graph.inputs, [v.name for v in loaded.graph.outputs]
    check = functools.partial(check_inputs, {v.name: v for v in inputs})
    graph = planner.graph(loaded.graph.nodes, loaded.graph.weights, names, check=check)
    try:
        graph.plan_static(inputs)
    except InvalidInputError as error:
        raise InvalidModelError(str(error)) from None
    values = dict(feeds)
    spread(values)
    graph.run(values, {})
    return [values[name] for name in names]


class _Planner(Planner):
    """Prepares programs whose islands are interpreted."""

    def __init__(self, model: Model, caps: DeviceCapabilities) -> None:
        delegate: Any = SimpleNamespace(capabilities=caps, tuned={})
        super().__init__(delegate, SessionOptions(fallback="error", save_plans=False), model)
        self._islands: dict[int, tuple[Plan, list[Op], Goal]] = {}

    def plan(
        self,
        nodes: Sequence[Node],
        known: Mapping[str, Known],
        outputs: Sequence[str],
        trace: Trace | None = None,
        over: Over = (),
    ) -> Lowered:
        with islands() as found:
            lowered = super().plan(nodes, known, outputs, trace, over)
        plans = [step.plan for step in lowered.program.steps if isinstance(step, IslandStep)]
        for plan, (ops, goal) in zip(plans, found[len(found) - len(plans) :], strict=True):
            self._islands[id(plan)] = plan, ops, goal
        return lowered

    def _step(self, step: Step, mixed: bool) -> StepExecutor:
        if isinstance(step, IslandStep):
            _, ops, goal = self._islands[id(step.plan)]
            return _Island(ops, goal)
        return super()._step(step, mixed)

    def _deferred(self, step: DeferredStep) -> DeferredExecutor:
        """Without sizes: each plan is interpreted for the sizes of its run."""
        graph = self.graph(step.nodes, step.constants, step.outputs, asked=step.values)
        return DeferredExecutor(step, SharedGraph(step, graph, Lock()))


class _Island:
    """The operations of an island after the passes."""

    def __init__(self, ops: list[Op], goal: Goal) -> None:
        self._ops, self._goal = ops, goal
        self._constants: dict[Hashable, HostMemory] = {}

    def run(self, values: Values, targets: Targets) -> None:
        """See `StepExecutor`."""
        host = Interpreter(constants=self._constants)
        ports = {v.storage: v for op in self._ops for v in reads(op) if v.storage.port is not None}
        for storage, view in ports.items():
            if storage.port == FRESH:
                host.put(view, np.array([bits := fresh.bits(), bits >> 32], np.uint64).astype(np.uint32))
            elif storage.label in values:
                host.put(*_whole(view, values[storage.label]))
        host.run(self._ops)
        for node, reason in sorted(host.faults):
            raise InvalidInputError(f"{node}: {reason}")
        values.update({t.storage.label: _array(host.read(t), t) for t in self._goal.results})

    def close(self) -> None:
        """See `StepExecutor`."""


def _whole(view: Tensor, values: np.ndarray[Any, Any]) -> tuple[Tensor, np.ndarray[Any, Any]]:
    """The whole of an input, of which an operation reads ``view``, and its elements, or the codes of its 8-bit floats."""
    flat = np.ascontiguousarray(values).reshape(-1)
    return Tensor.contiguous(view.dtype, flat.shape, view.storage), flat.view(
        np.uint8
    ) if view.dtype.kind == "bits" else flat


def _array(values: np.ndarray[Any, Any], like: Tensor) -> np.ndarray[Any, Any]:
    values = np.ma.filled(values, 0) if isinstance(values, np.ma.MaskedArray) else values
    with np.errstate(all="ignore"):
        if like.dtype.kind == "bits":
            return values.astype(np.uint8).view(like.dtype.numpy)
        return values.astype(like.dtype.numpy)
