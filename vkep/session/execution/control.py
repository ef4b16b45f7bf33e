"""Loop and Scan executed by the host, some steps at a time: a part is a program of its own, and carried values stay on the
device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from vkep import dtypes
from vkep.device.tensor import on_host
from vkep.errors import InvalidInputError, UnsupportedModelError
from vkep.graph.model import Graph, Node, ValueInfo
from vkep.graph.weights import Weight
from vkep.ir.program import ControlStep, DeferredStep
from vkep.placement.control import ScanShape, empty_result, loop_value
from vkep.placement.loop_steps import LoopPart, parts_of
from vkep.session.execution.executor import Executable, Targets, Values, Watch
from vkep.session.planning.planned_graph import DeferredExecutor

#: makes the executor of a body
MakeBody = Callable[[DeferredStep], DeferredExecutor]


class ControlExecutor:
    """One Loop or Scan node. Thread-safe, as the executors of its parts are."""

    def __init__(self, step: ControlStep, make_body: MakeBody) -> None:
        self.step = step
        self.node: Node = step.node
        self.body: Graph = step.node.bodies["body"]
        self._constants = {name: weight.array() for name, weight in step.constants.items()}
        parts = parts_of(self.node, step.constants)
        self._counts = bool(parts)
        self._parts = [_Part.of(step, part, make_body) for part in parts] or [_Part.of_body(step, make_body)]
        self._newest = self._parts[-1]

    def run(self, values: Values, targets: Targets, watch: Watch | None = None) -> None:
        """Run the loop; its results are added to ``values``. ``watch``: see `Executable.run`.

        Raises `InvalidInputError` for scan inputs that do not fit, and for steps whose results differ in shape.
        """
        results = self._loop(values, watch) if self.node.op_type == "Loop" else self._scan(values, watch)
        values.update({name: v for name, v in zip(self.node.outputs, results, strict=False) if name})

    @property
    def latest(self) -> Executable | None:
        """The program that was used last of the part that ran last."""
        return self._newest.program.latest

    def close(self) -> None:
        """Close the programs of its parts."""
        for part in self._parts:
            part.program.close()

    # ---- the two loops

    def _loop(self, values: Values, watch: Watch | None) -> list[Any]:
        limit_name, start_name, *initial = (*self.node.inputs, *("",) * max(0, 2 - len(self.node.inputs)))
        limit = int(on_host(self._value(values, limit_name)).reshape(-1)[0]) if limit_name else None
        goes_on = bool(on_host(self._value(values, start_name)).reshape(-1)[0]) if start_name else True
        states = [self._value(values, name) for name in initial]
        infos = self.body.outputs[1 + len(states) :]
        stacked: list[list[Any]] = [[] for _ in infos]
        step = 0
        while goes_on and (limit is None or step < limit):
            part = self._next(None if limit is None else limit - step)
            if not self._counts:
                inputs = [loop_value(self.body, 0, step), loop_value(self.body, 1, goes_on), *states]
                going, *results = part.run(values, inputs, range(1, 1 + len(states)), watch)
                goes_on = bool(on_host(going).reshape(-1)[0])
                results[len(states) :] = [on_host(result)[None] for result in results[len(states) :]]
            else:
                numbers = np.stack([loop_value(self.body, 0, k) for k in range(step, step + part.steps)])
                results = part.run(values, [*states, numbers], range(len(states)), watch)
            states = results[: len(states)]
            for pieces, piece in zip(stacked, results[len(states) :], strict=True):
                pieces.append(on_host(piece))
            step += part.steps
        if not step and any(dtypes.from_onnx(info.elem_type) is None for info in infos):
            return [*states, *[on_host(r)[:0] for r in self._first_results(values, states, watch)[-len(infos) :]]]
        return [*states, *(self._joined(p, i, 0) for p, i in zip(stacked, infos, strict=True))]

    def _first_results(self, values: Values, states: Sequence[Any], watch: Watch | None) -> list[Any]:
        """The stacked results of the first steps of a Loop. Where none shall run, they tell the types that the body does not
        declare. Raises `InvalidInputError` or `UnsupportedModelError` where these steps cannot run."""
        part = self._newest = self._parts[-1]
        try:
            if self._counts:
                numbers = np.stack([loop_value(self.body, 0, k) for k in range(part.steps)])
                return part.run(values, [*states, numbers], range(0), watch)
            inputs = [loop_value(self.body, 0, 0), loop_value(self.body, 1, True), *states]
            return [on_host(result)[None] for result in part.run(values, inputs, range(0), watch)]
        except (InvalidInputError, UnsupportedModelError) as error:
            raise type(error)(
                f"{self.node.title}: it has no steps, and its body does not declare the types of its outputs; a step that "
                f"finds them fails: {error}"
            ) from None

    def _scan(self, values: Values, watch: Watch | None) -> list[Any]:
        scan = ScanShape.of(self.node, len(self.node.inputs))
        inputs = [self._value(values, name) for name in self.node.inputs]
        states, sequences = inputs[: scan.states], [on_host(v) for v in inputs[scan.states :]]
        counts = {s.shape[a] for s, a in zip(sequences, scan.input_axes, strict=True)}
        if len(counts) != 1:
            raise InvalidInputError(f"{self.node.title}: scan inputs of {sorted(counts)} steps; expected one number")
        trips = counts.pop()
        stacked: list[list[Any]] = [[] for _ in scan.output_axes]
        step = 0
        while step < trips:
            part = self._next(trips - step)
            elements = []
            for s, axis, backwards in zip(sequences, scan.input_axes, scan.input_backwards, strict=True):
                begin = trips - step - part.steps if backwards else step
                place = (slice(None),) * (axis % s.ndim) + (slice(begin, begin + part.steps),)
                elements.append(np.ascontiguousarray(s[place]))
            results = part.run(values, [*states, *elements], range(scan.states), watch)
            states = results[: scan.states]
            for pieces, piece in zip(stacked, results[scan.states :], strict=True):
                pieces.append(on_host(piece))
            step += part.steps
        infos = self.body.outputs[scan.states :]
        made = []
        for pieces, info, axis, backwards in zip(stacked, infos, scan.output_axes, scan.output_backwards, strict=True):
            ordered = pieces[::-1] if backwards else pieces
            made.append(self._joined(ordered, info, axis))
        return [*states, *made]

    def _joined(self, pieces: Sequence[np.ndarray[Any, Any]], info: ValueInfo, axis: int) -> np.ndarray[Any, Any]:
        """The parts' results along ``axis``. Raises `InvalidInputError` where steps make different shapes."""
        if not pieces:
            return empty_result(info, axis)
        shapes = {p.shape[: (at := axis % p.ndim)] + p.shape[at + 1 :] for p in pieces}
        if len(shapes) > 1:
            raise InvalidInputError(
                f"{self.node.title}: steps make {info.name!r} of shapes {sorted(shapes)}; expected one shape"
            )
        return np.concatenate(pieces, axis)

    def _next(self, left: int | None) -> _Part:
        """The largest part of no more than ``left`` steps."""
        part = self._newest = next(p for p in self._parts if left is None or p.steps <= left)
        return part

    def _value(self, values: Mapping[str, Any], name: str) -> Any:
        return values[name] if name in values else self._constants[name]


class _Part:
    """Some steps of a loop as a program: nodes, the values that it takes for each run in order, and its results."""

    def __init__(
        self,
        steps: int,
        nodes: tuple[Node, ...],
        inputs: Sequence[str],
        outputs: Sequence[str],
        infos: Sequence[ValueInfo],
        step: ControlStep,
        constants: Mapping[str, Weight],
        make_body: MakeBody,
    ) -> None:
        self.steps, self._inputs, self._outputs = steps, tuple(inputs), tuple(outputs)
        made = {name for node in nodes for name in node.outputs if name}
        reads = dict.fromkeys(name for node in nodes for name in node.reads if name not in made)
        needed = {name: weight for name, weight in constants.items() if name in reads}
        self._reads = tuple(name for name in reads if name not in needed)
        self._made = tuple(dict.fromkeys(name for name in outputs if name in made))
        self._known = {name: constants[name].array() for name in outputs if name in constants and name not in made}
        sizes = {**step.sizes, **_open_sizes(step.node, inputs, infos)}
        self.program = make_body(DeferredStep(nodes, self._reads, self._made, (), needed, sizes))

    @classmethod
    def of_body(cls, step: ControlStep, make_body: MakeBody) -> _Part:
        """One step of a Loop whose condition is computed: its results are the body's outputs."""
        body = step.node.bodies["body"]
        inputs, outputs = [v.name for v in body.inputs], [v.name for v in body.outputs]
        constants = {**step.constants, **body.weights}
        return cls(1, body.nodes, inputs, outputs, body.inputs, step, constants, make_body)

    @classmethod
    def of(cls, step: ControlStep, part: LoopPart, make_body: MakeBody) -> _Part:
        """A part that is a Scan itself: its results are the carried values, then what the steps made, stacked."""
        infos = step.node.bodies["body"].inputs[
            2 * (step.node.op_type == "Loop") :
        ]  # the steps' numbers are taken last
        return cls(
            part.steps, (part.node,), part.node.inputs, part.node.outputs, infos, step, step.constants, make_body
        )

    def run(self, values: Values, inputs: Sequence[Any], carried: range, watch: Watch | None) -> list[Any]:
        """The results; those ``carried`` to the next step stay on the device."""
        frame: Values = dict(zip(self._inputs, inputs, strict=True))
        for name in self._reads:
            if name not in frame:
                frame[name] = values[name]
        here: Targets = {self._outputs[k]: None for k in carried if self._outputs[k] in self._made}
        self.program.run(frame, here, watch)
        values.update(frame)  # profiling runs the islands of the last run again, on its values
        return [self._result(values, frame, name) for name in self._outputs]

    def _result(self, values: Values, frame: Values, name: str) -> Any:
        for known in (frame, self._known, values):
            if name in known:
                return known[name]
        raise AssertionError(f"the loop's body makes no {name!r}")


def _open_sizes(node: Node, inputs: Sequence[str], infos: Sequence[ValueInfo]) -> dict[tuple[str, int], str]:
    """The dimensions that a loop's body leaves open, of what a part of it takes: a state may grow with each step. ``infos``: the
    body's declarations of the part's inputs."""
    scan = ScanShape.of(node, len(node.inputs)) if node.op_type == "Scan" else None
    found = {}
    for k, (name, info) in enumerate(zip(inputs, infos, strict=False)):
        dims = list(info.shape or ())
        if scan is not None and k >= scan.states and info.shape is not None:
            dims.insert(scan.input_axes[k - scan.states] % (len(dims) + 1), 0)  # the steps
        found.update({(name, axis): f"{info.name} {axis}" for axis, dim in enumerate(dims) if not isinstance(dim, int)})
    return found
