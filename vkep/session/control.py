"""Loop and Scan executed by the host: the body is a separate program, and carried values stay on the device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from vkep.device.tensor import on_host
from vkep.errors import InvalidInputError
from vkep.graph.model import Graph, Node
from vkep.ir.program import ControlStep, DeferredStep
from vkep.placement.control import ScanShape, carried_condition, empty_result, loop_value
from vkep.session.executor import Executable, Targets, Values, Watch
from vkep.session.planned_graph import DeferredExecutor

#: makes the executor of a body
MakeBody = Callable[[DeferredStep], DeferredExecutor]


class ControlExecutor:
    """One Loop or Scan node. Thread-safe, as its body's executor is."""

    def __init__(self, step: ControlStep, make_body: MakeBody) -> None:
        self.step = step
        self.node: Node = step.node
        self.body: Graph = step.node.bodies["body"]
        self._constants = {name: weight.array() for name, weight in step.constants.items()}
        self._weights = {name: weight.array() for name, weight in self.body.weights.items()}
        made = {name for node in self.body.nodes for name in node.outputs if name}
        reads = dict.fromkeys(name for node in self.body.nodes for name in node.reads if name not in made)
        constants = {name: weight for name, weight in step.constants.items() if name in reads}
        constants |= self.body.weights
        self._reads = tuple(name for name in reads if name not in constants)
        # a condition that is returned unchanged is not computed
        skipped = step.node.op_type == "Loop" and carried_condition(self.body) == "same"
        self._outputs = [v.name for v in self.body.outputs[skipped:]]
        self._made = tuple(dict.fromkeys(name for name in self._outputs if name in made))
        self._program = make_body(DeferredStep(self.body.nodes, self._reads, self._made, (), constants))

    def run(self, values: Values, targets: Targets, watch: Watch | None = None) -> None:
        """Run the loop; its results are added to ``values``. ``watch``: see `Executable.run`.

        Raises `InvalidInputError` for scan inputs that do not fit.
        """
        results = self._loop(values, watch) if self.node.op_type == "Loop" else self._scan(values, watch)
        values.update({name: v for name, v in zip(self.node.outputs, results, strict=False) if name})

    @property
    def latest(self) -> Executable | None:
        """The body's program that was planned last."""
        return self._program.latest

    def close(self) -> None:
        """Close the body's programs."""
        self._program.close()

    # ---- the two loops

    def _loop(self, values: Values, watch: Watch | None) -> list[Any]:
        limit_name, start_name, *initial = (*self.node.inputs, *("",) * max(0, 2 - len(self.node.inputs)))
        limit = int(on_host(self._value(values, limit_name)).reshape(-1)[0]) if limit_name else None
        goes_on = bool(on_host(self._value(values, start_name)).reshape(-1)[0]) if start_name else True
        same = carried_condition(self.body) == "same"
        states = [self._value(values, name) for name in initial]
        stacked: list[list[Any]] = [[] for _ in self.body.outputs[1 + len(states) :]]
        first = 0 if same else 1
        carried = range(first, first + len(states))
        step = 0
        while goes_on and (limit is None or step < limit):
            inputs = [loop_value(self.body, 0, step), loop_value(self.body, 1, goes_on), *states]
            results = self._body(values, inputs, carried, watch)
            if not same:
                goes_on = bool(on_host(results.pop(0)).reshape(-1)[0])
            states = results[: len(states)]
            for parts, part in zip(stacked, results[len(states) :], strict=True):
                parts.append(on_host(part))
            step += 1
        infos = self.body.outputs[1 + len(states) :]
        return [*states, *(np.stack(p) if p else empty_result(i) for p, i in zip(stacked, infos, strict=True))]

    def _scan(self, values: Values, watch: Watch | None) -> list[Any]:
        scan = ScanShape.of(self.node, len(self.node.inputs))
        inputs = [self._value(values, name) for name in self.node.inputs]
        states, sequences = inputs[: scan.states], [on_host(v) for v in inputs[scan.states :]]
        counts = {s.shape[a] for s, a in zip(sequences, scan.input_axes, strict=True)}
        if len(counts) != 1:
            raise InvalidInputError(f"{self.node.title}: scan inputs of {sorted(counts)} steps; expected one number")
        trips = counts.pop()
        stacked: list[list[Any]] = [[] for _ in scan.output_axes]
        for step in range(trips):
            elements = [
                np.take(s, trips - 1 - step if backwards else step, axis)
                for s, axis, backwards in zip(sequences, scan.input_axes, scan.input_backwards, strict=True)
            ]
            results = self._body(values, [*states, *elements], range(scan.states), watch)
            states = results[: scan.states]
            for parts, part in zip(stacked, results[scan.states :], strict=True):
                parts.append(on_host(part))
        infos = self.body.outputs[scan.states :]
        made = []
        for parts, info, axis, backwards in zip(stacked, infos, scan.output_axes, scan.output_backwards, strict=True):
            ordered = parts[::-1] if backwards else parts
            made.append(np.stack(ordered, axis) if ordered else empty_result(info, axis))
        return [*states, *made]

    # ---- one step

    def _value(self, values: Mapping[str, Any], name: str) -> Any:
        return values[name] if name in values else self._constants[name]

    def _body(self, values: Values, inputs: Sequence[Any], carried: range, watch: Watch | None) -> list[Any]:
        """The body's outputs; those ``carried`` to the next step stay on the device."""
        frame: Values = {info.name: value for info, value in zip(self.body.inputs, inputs, strict=True)}
        for name in self._reads:
            if name not in frame:
                frame[name] = values[name]
        here: Targets = {self._outputs[k]: None for k in carried if self._outputs[k] in self._made}
        self._program.run(frame, here, watch)
        for name, value in frame.items():  # profiling runs the body's islands again on the values of this run
            values.setdefault(name, value)
        return [self._output(values, frame, name) for name in self._outputs]

    def _output(self, values: Values, frame: Values, name: str) -> Any:
        for known in (frame, self._weights, values, self._constants):
            if name in known:
                return known[name]
        raise AssertionError(f"{self.node.title}: its body makes no {name!r}")
