"""If, Loop and Scan while planning: a known branch, and loops of a known small number of steps, become nodes of their
graph.

The rest (loops whose number of steps is known only in a run, or that are too long to unroll) become a `ControlStep`:
the session runs parts of a few steps, planned once for each signature, as often as needed
(`vkep.placement.loop_steps`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vkep import dtypes
from vkep.errors import Decline, InvalidNode
from vkep.graph.model import Graph, Node, ValueInfo
from vkep.graph.weights import ArrayWeight, Weight
from vkep.ir.program import HostValue, ListValue, NoValue, ValueSpec
from vkep.placement.inlined import Inlined, NeedsContent, instantiate, make_node, scope
from vkep.sizes import fixed, is_size, whole

#: maximum number of nodes of an unrolled loop; the session executes longer ones
MAX_UNROLLED_NODES = 512
#: the same for all loops of a model together, including nested ones
MAX_TOTAL_UNROLLED = 1 << 14

Known = Weight | ValueSpec | HostValue
_SIZED = "its number of steps is a size of the run"
#: why a size is fixed
_UNROLLED = "the loop is unrolled"


@dataclass(frozen=True)
class HostDriven:
    """A loop that the session executes."""

    reason: str
    waits_for: str = ""  #: the value whose content would allow unrolling the loop


Expansion = Inlined | NeedsContent | HostDriven


def is_control(node: Node) -> bool:
    """Whether a node is If, Loop or Scan."""
    return not node.domain and node.op_type in ("If", "Loop", "Scan") and bool(node.bodies)


def expand(
    node: Node, known: Mapping[str, Known], opsets: Mapping[str, int], most: int, by_session: bool = True
) -> Expansion:
    """The steps for a control-flow node whose inputs are ``known``. A loop is unrolled to at most ``most`` and
    `MAX_UNROLLED_NODES` nodes, or one step; one whose number of steps follows from a run's sizes is executed by the session,
    if it may be (``by_session``). Raises `Decline` for nodes that only the CPU can run, and `InvalidNode`."""
    _check_bodies(node)
    lists = [v for name in node.reads if isinstance(v := known[name], (ListValue, NoValue))]
    for name in node.reads:
        if isinstance(known[name], HostValue) and known[name] not in lists:
            raise Decline(f"{name!r} is no tensor")
    if node.op_type == "If":
        return _expand_if(node, known)
    expand_it = _expand_loop if node.op_type == "Loop" else _expand_scan
    tensors = not lists and all(v.is_tensor for body in node.bodies.values() for v in body.outputs)
    expansion = expand_it(node, known, opsets, min(most, MAX_UNROLLED_NODES), by_session and tensors)
    if not isinstance(expansion, HostDriven):
        return expansion
    if not tensors:
        if not expansion.waits_for:
            raise Decline(f"{expansion.reason}, and a sequence or optional goes through it")
        return NeedsContent(expansion.waits_for, expansion.reason)
    return expansion


def _check_bodies(node: Node) -> None:
    """Raise `InvalidNode` unless the bodies have the inputs and outputs that the node's need."""
    inputs, outputs = 0, len(node.outputs)
    if node.op_type == "Loop":
        inputs = max(len(node.inputs), 2)
        outputs = 1 + max(outputs, inputs - 2)
    elif node.op_type == "Scan":
        inputs = len(node.inputs) - (node.since_version < 9)  # before version 9, the first input are lengths
    for name in ("then_branch", "else_branch") if node.op_type == "If" else ("body",):
        body = node.bodies.get(name)
        if body is None:
            raise InvalidNode(f"attribute {name!r} is missing")
        wrong = len(body.outputs) < outputs or (node.op_type == "If" and len(body.outputs) > outputs)
        if wrong or len(body.inputs) != inputs:
            raise InvalidNode(
                f"{name!r} has {len(body.inputs)} inputs and {len(body.outputs)} outputs, expected {inputs} and {outputs}"
            )


# ---- If


def _expand_if(node: Node, known: Mapping[str, Known]) -> Expansion:
    condition = known[node.inputs[0]]
    if not isinstance(condition, Weight):
        return NeedsContent(node.inputs[0], f"its branch follows from {node.inputs[0]!r}")
    body = node.bodies["then_branch" if bool(condition.array().reshape(-1)[0]) else "else_branch"]
    return instantiate(body, scope(node), (), node.outputs)


# ---- Loop


def carried_condition(body: Graph, outer: Mapping[str, object]) -> bool | str | None:
    """A Loop body's condition: True or False where it is constant, "same" where it equals the incoming condition, else
    None. ``outer`` has the constants that the body may read."""
    name = body.outputs[0].name
    makers = {o: n for n in body.nodes if not n.domain for o in n.outputs}
    cast = False
    while (node := makers.get(name)) is not None and node.op_type in ("Cast", "Identity"):
        if node.op_type == "Cast" and cast:  # what is between two casts need not be a bool
            return None
        cast |= node.op_type == "Cast"
        name = node.inputs[0]
    constant = body.weights.get(name, outer.get(name))
    if isinstance(constant, Weight) and name != body.inputs[1].name:
        return bool(constant.array().reshape(-1)[0])
    return "same" if name == body.inputs[1].name else None


def loop_value(body: Graph, place: int, number: int | bool) -> np.ndarray:
    """A Loop body's number of steps (``place`` 0) or condition (1), with the axis of size 1 that the body may declare
    for it, as converters from TensorFlow do."""
    shape = (1,) if len(body.inputs[place].shape or ()) == 1 else ()
    return np.full(shape, number, np.bool_ if place else np.int64)


def _expand_loop(
    node: Node, known: Mapping[str, Known], opsets: Mapping[str, int], most: int, by_session: bool
) -> Expansion:
    body = node.bodies["body"]
    limit_name, start_name, *initial = (*node.inputs, *("",) * max(0, 2 - len(node.inputs)))
    start = known[start_name] if start_name else None
    limit = known[limit_name] if limit_name else None
    goes_on = carried_condition(body, known)
    if not limit_name and goes_on in (True, "same") and (start is None or goes_on is True):
        raise Decline("a loop without an end")
    if goes_on is None or (start is not None and not isinstance(start, Weight)):
        return HostDriven("its condition is computed", start_name if goes_on is not None else "")
    if isinstance(start, Weight) and not bool(start.array().reshape(-1)[0]):
        trips = 0
    elif goes_on is False:
        trips = 1
        if limit is not None and not isinstance(limit, Weight):
            return HostDriven("its number of steps is computed", limit_name)
        if isinstance(limit, Weight):
            trips = min(trips, whole(limit.array().reshape(-1)[0]))
    elif isinstance(limit, Weight):
        trips = whole(limit.array().reshape(-1)[0])
    else:
        return HostDriven("its number of steps is computed", limit_name)
    if is_size(trips) and by_session:
        return HostDriven(_SIZED)
    trips = max(int(trips), 0)
    if trips > 1 and trips * max(len(body.nodes), 1) > most:
        return HostDriven(f"{trips} steps of {len(body.nodes)} nodes")
    return _Unrolled(node, body, opsets).loop(trips, initial)


def _expand_scan(
    node: Node, known: Mapping[str, Known], opsets: Mapping[str, int], most: int, by_session: bool
) -> Expansion:
    batched = node.since_version < 9  # version 8: every value has a batch axis in front, and the first input lengths
    if batched and node.inputs[0]:
        raise Decline("sequence_lens, which only version 8 of Scan has")
    inputs = node.inputs[1:] if batched else node.inputs
    scan = ScanShape.of(node, len(inputs))
    shapes = [_shape(known[name])[batched:] for name in inputs]
    trips = scan.trips(shapes)
    batch = int(fixed(_shape(known[inputs[0]])[0], _UNROLLED)) if batched else 1
    if is_size(trips) and by_session and not batched:
        return HostDriven(_SIZED)
    trips = int(fixed(trips, _UNROLLED))
    if batch * trips > 1 and batch * trips * max(len(scan.body.nodes), 1) > most:
        reason = f"{trips} steps of {len(scan.body.nodes)} nodes"
        if batched:
            raise Decline(f"{reason} for each of {batch} (Scan of version 8)")
        return HostDriven(reason)
    unrolled = _Unrolled(node, scan.body, opsets)
    return unrolled.batched_scan(scan, trips, inputs, batch) if batched else unrolled.scan(scan, trips, inputs)


@dataclass(frozen=True)
class ScanShape:
    """A Scan node's attributes, with their defaults filled in (without the batch axis of version 8)."""

    body: Graph
    states: int
    input_axes: tuple[int, ...]
    input_backwards: tuple[bool, ...]
    output_axes: tuple[int, ...]
    output_backwards: tuple[bool, ...]

    @classmethod
    def of(cls, node: Node, inputs: int) -> ScanShape:
        """The attributes of a Scan node with this number of inputs. Raises `InvalidNode`."""
        body, attributes = node.bodies["body"], node.attributes
        count = int(attributes["num_scan_inputs"])
        states = inputs - count
        results = len(body.outputs) - states
        if not 0 < count <= inputs or results < 0:
            raise InvalidNode(
                f"num_scan_inputs is {count}, with {inputs} inputs and {len(body.outputs)} outputs of the body"
            )

        def listed(name: str, length: int) -> list[int]:
            found = list(attributes.get(name) or [0] * length)
            if len(found) != length:
                raise InvalidNode(f"{name} has {len(found)} elements, expected {length}")
            return found

        directions = "directions" if attributes.get("directions") else "scan_input_directions"  # before version 9
        return cls(
            body=body,
            states=states,
            input_axes=tuple(listed("scan_input_axes", count)),
            input_backwards=tuple(map(bool, listed(directions, count))),
            output_axes=tuple(listed("scan_output_axes", results)),
            output_backwards=tuple(map(bool, listed("scan_output_directions", results))),
        )

    def trips(self, shapes: Sequence[tuple[int, ...]]) -> int:
        """The number of steps, from the shapes of all inputs. Raises `Decline` where they disagree, and `InvalidNode` for an
        axis that an input does not have."""
        pairs = list(zip(shapes[self.states :], self.input_axes, strict=True))
        for shape, axis in pairs:
            if not -len(shape) <= axis < len(shape):
                raise InvalidNode(f"scan_input_axes has {axis}, which is out of range for rank {len(shape)}")
        counts = {shape[axis] for shape, axis in pairs}
        if len(counts) != 1:
            raise Decline(f"scan inputs of {sorted(counts)} steps; expected one number")
        return counts.pop()


def _shape(value: Known) -> tuple[int, ...]:
    assert not isinstance(value, HostValue)
    return tuple(value.shape)


def empty_result(info: ValueInfo, axis: int = 0) -> np.ndarray[Any, Any]:
    """The stacked result of a loop without steps: no elements along ``axis``; dimensions that the body leaves open are
    0. Raises `Decline` where its element type is not known."""
    dtype = dtypes.from_onnx(info.elem_type)
    if dtype is None:
        raise Decline(f"the body's output {info.name!r} has no known element type")
    inner = [d if isinstance(d, int) else 0 for d in info.shape or ()]
    axis = axis % (len(inner) + 1)
    return np.zeros((*inner[:axis], 0, *inner[axis:]), dtype.numpy)


class _Unrolled:
    """Unrolls a loop's steps."""

    def __init__(self, node: Node, body: Graph, opsets: Mapping[str, int]) -> None:
        self.node, self.body = node, body
        self.scope = scope(node)
        self.opset = opsets.get("", 1)
        self.result = Inlined()

    def loop(self, trips: int, initial: Sequence[str]) -> Inlined:
        states = list(initial)
        stacked: list[list[str]] = [[] for _ in self.body.outputs[1 + len(states) :]]
        condition = self._constant("goes_on", loop_value(self.body, 1, True))
        for step in range(trips):
            index = self._constant(f"step{step}", loop_value(self.body, 0, step))
            states = self._step(f"{step}/", [index, condition, *states], len(states), stacked, skip=1)
        self._finish(states, stacked, [0] * len(stacked), self.node.outputs, skip=1)
        return self.result

    def scan(self, scan: ScanShape, trips: int, inputs: Sequence[str]) -> Inlined:
        self._scan(scan, trips, inputs, self.node.outputs, "")
        return self.result

    def batched_scan(self, scan: ScanShape, trips: int, inputs: Sequence[str], batch: int) -> Inlined:
        parts: list[list[str]] = []
        for k in range(batch):
            index = self._constant(f"at{k}", np.array(k, np.int64))
            own = [self._add("Gather", [name, index], f"batch{k}/in{j}", axis=0) for j, name in enumerate(inputs)]
            made = [f"{self.scope}batch{k}/{name}" if name else "" for name in self.node.outputs]
            self._scan(scan, trips, own, made, f"batch{k}/")
            parts.append(made)
        for output, *names in zip(self.node.outputs, *parts, strict=True):
            if output:
                stacked = [self._unsqueezed(name, 0, f"{name}/stacked") for name in names]
                self.result.nodes.append(make_node("Concat", stacked, [output], self.opset, axis=0))
        return self.result

    def _scan(self, scan: ScanShape, trips: int, inputs: Sequence[str], outputs: Sequence[str], where: str) -> None:
        states = list(inputs[: scan.states])
        stacked: list[list[str]] = [[] for _ in scan.output_axes]
        for step in range(trips):
            elements = []
            for k, name in enumerate(inputs[scan.states :]):
                at = trips - 1 - step if scan.input_backwards[k] else step
                index = self._constant(f"at{at}", np.array(at, np.int64))
                elements.append(self._add("Gather", [name, index], f"{where}{step}/in{k}", axis=scan.input_axes[k]))
            states = self._step(f"{where}{step}/", [*states, *elements], scan.states, stacked)
        for k, backwards in enumerate(scan.output_backwards):
            if backwards:
                stacked[k].reverse()
        self._finish(states, stacked, scan.output_axes, outputs, where)

    def _step(
        self, where: str, inputs: Sequence[str], states: int, stacked: Sequence[list[str]], skip: int = 0
    ) -> list[str]:
        prefix = self.scope + where
        outputs = [f"{prefix}out{k}" for k in range(len(self.body.outputs) - skip)]
        made = instantiate(self.body, prefix, inputs, [*[""] * skip, *outputs])
        self.result.nodes += made.nodes
        self.result.weights |= made.weights
        for names, name in zip(stacked, outputs[states:], strict=True):
            names.append(name)
        return outputs[:states]

    def _finish(
        self,
        states: Sequence[str],
        stacked: Sequence[Sequence[str]],
        axes: Sequence[int],
        outputs: Sequence[str],
        where: str = "",
        skip: int = 0,
    ) -> None:
        for name, output in zip(states, outputs, strict=False):
            if output:
                self.result.nodes.append(make_node("Identity", [name], [output], self.opset))
        infos = self.body.outputs[skip + len(states) :]
        for k, output in enumerate(outputs[len(states) :]):
            if not output:
                continue
            if not stacked[k]:
                self.result.weights[output] = ArrayWeight(output, empty_result(infos[k], axes[k]))
                continue
            parts = [self._unsqueezed(name, axes[k], f"{where}{k}/part{j}") for j, name in enumerate(stacked[k])]
            self.result.nodes.append(make_node("Concat", parts, [output], self.opset, axis=axes[k]))

    def _unsqueezed(self, name: str, axis: int, to: str) -> str:
        if self.opset < 13:
            return self._add("Unsqueeze", [name], to, axes=[axis])
        return self._add("Unsqueeze", [name, self._constant(f"axis{axis}", np.array([axis], np.int64))], to)

    def _add(self, op_type: str, inputs: Sequence[str], to: str, **attributes: Any) -> str:
        name = self.scope + to
        self.result.nodes.append(make_node(op_type, inputs, [name], self.opset, **attributes))
        return name

    def _constant(self, name: str, array: np.ndarray[Any, Any]) -> str:
        full = self.scope + name
        self.result.weights[full] = ArrayWeight(full, array)
        return full
