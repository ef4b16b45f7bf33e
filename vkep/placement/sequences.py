"""Sequences and optionals while planning: they are replaced by the tensors in them.

The tensors of a sequence are known from the signature for a run's inputs, and from the nodes that create it for every
other sequence. A node on sequences thereby becomes a new list of names (`ListValue`), or nodes on tensors where it
changes the elements.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx

from vkep.errors import Decline, InvalidNode
from vkep.graph.model import Node
from vkep.graph.weights import ArrayWeight, Weight
from vkep.ir.infer import Known, dtype_of
from vkep.ir.program import LONGEST_LIST, HostValue, ListValue, NoValue, element_name
from vkep.placement.inlined import Inlined, NeedsContent, instantiate, make_node, scope
from vkep.sizes import fixed

#: why a size is fixed
_ELEMENTS = "the number of elements of a sequence is that of a plan"


def dissolves(node: Node, known: Mapping[str, Known]) -> bool:
    """Whether `dissolve` handles the node: it operates on sequences or optionals."""
    if node.domain or node.op_type not in _DISSOLVED:
        return False
    return node.op_type != "Identity" or isinstance(known[node.inputs[0]], (ListValue, NoValue))


def dissolve(node: Node, known: Mapping[str, Known], opsets: Mapping[str, int]) -> Inlined | NeedsContent:
    """The replacement of the node. Raises `Decline` for a length that is not unrolled, `InvalidNode` for a position
    that does not exist."""
    return _DISSOLVED[node.op_type](_Dissolution(node, known, opsets.get("", 1)))


def named_elements(name: str, value: HostValue, opset: int) -> tuple[HostValue, list[Node]]:
    """The sequence with the names of `element_name` for its elements, and the nodes that copy the tensors there."""
    if not isinstance(value, ListValue):
        return value, []
    items = tuple(element_name(name, k) for k in range(len(value.items)))
    pairs = [(source, item) for source, item in zip(value.items, items, strict=True) if source != item]
    nodes = [make_node("Identity", [source], [item], opset) for source, item in pairs]
    return replace(value, items=items), nodes


class _Dissolution:
    """One node, its inputs, and its replacement."""

    def __init__(self, node: Node, known: Mapping[str, Known], opset: int) -> None:
        self.node, self.known, self.opset = node, known, opset
        self.made = Inlined()
        self.outputs = node.outputs

    def input(self, place: int) -> str:
        """The name of an input; "" where it is absent."""
        return self.node.inputs[place] if place < len(self.node.inputs) else ""

    def list(self, place: int) -> ListValue:
        value = self.known[self.input(place)]
        if isinstance(value, NoValue):
            raise InvalidNode(f"input {place} is an optional without an element, expected a sequence")
        if isinstance(value, ListValue):
            return value
        if isinstance(value, HostValue):
            raise Decline(f"{self.input(place)!r} is {value.what}")
        raise InvalidNode(f"input {place} is a tensor, expected a sequence")

    def gives(self, value: HostValue | str | np.ndarray[Any, Any]) -> Inlined:
        """Set the only output: a sequence or optional, a copy of a tensor, or a constant."""
        [name] = self.outputs
        if isinstance(value, np.ndarray):
            self.made.weights[name] = ArrayWeight(name, value)
        elif isinstance(value, HostValue):
            self.made.values[name] = value
        else:
            self.add("Identity", [value], name)
        return self.made

    def add(self, op_type: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        self.made.nodes.append(make_node(op_type, inputs, [output], self.opset, **attributes))
        return output

    def constant(self, name: str, array: np.ndarray[Any, Any]) -> str:
        full = scope(self.node) + name
        self.made.weights[full] = ArrayWeight(full, array)
        return full

    def axes(self, op_type: str, name: str, axis: int, to: str) -> str:
        """Squeeze or Unsqueeze of one axis."""
        if self.opset < 13:
            return self.add(op_type, [name], to, axes=[axis])
        return self.add(op_type, [name, self.constant("axis", np.array([axis], np.int64))], to)

    def position(self, place: int, first: int, last: int, default: int) -> int | NeedsContent:
        """The value of an index input, counted from the front."""
        name = self.input(place)
        if not name:
            return default
        value = self.known[name]
        if not isinstance(value, Weight):
            return NeedsContent(name, f"the position in a sequence is {name!r}")
        index = int(value.array().reshape(-1)[0])
        if not first <= index <= last:
            raise InvalidNode(f"position {index} is outside [{first}, {last}]")
        return index if index >= 0 else index - first


def _construct(d: _Dissolution) -> Inlined:
    first = dtype_of(d.known[d.node.inputs[0]])
    for name in d.node.inputs:
        dtype = dtype_of(d.known[name])
        if dtype is not first:
            raise InvalidNode(f"{name!r} is {dtype}, another tensor {first}: a sequence's are of one type")
    return d.gives(ListValue(items=tuple(d.node.inputs), elem_type=first.onnx if first is not None else 0))


def _empty(d: _Dissolution) -> Inlined:
    return d.gives(ListValue(elem_type=d.node.attributes.get("dtype", onnx.TensorProto.FLOAT)))


def _length(d: _Dissolution) -> Inlined:
    return d.gives(np.array(len(d.list(0).items), np.int64))


def _at(d: _Dissolution) -> Inlined | NeedsContent:
    items = d.list(0).items
    place = d.position(1, -len(items), len(items) - 1, 0)
    return place if isinstance(place, NeedsContent) else d.gives(items[place])


def _erase(d: _Dissolution) -> Inlined | NeedsContent:
    value, items = d.list(0), d.list(0).items
    if not items:
        raise InvalidNode("nothing can be erased from an empty sequence")
    place = d.position(1, -len(items), len(items) - 1, len(items) - 1)
    if isinstance(place, NeedsContent):
        return place
    return d.gives(ListValue(items=items[:place] + items[place + 1 :], elem_type=value.elem_type))


def _insert(d: _Dissolution) -> Inlined | NeedsContent:
    value, items, name = d.list(0), d.list(0).items, d.input(1)
    dtype = dtype_of(d.known[name])
    if dtype is not None and value.elem_type and dtype.onnx != value.elem_type:
        raise InvalidNode(f"{name!r} is {dtype}, the sequence's tensors are of another type")
    if len(items) >= LONGEST_LIST:
        raise Decline(f"a sequence of more than {LONGEST_LIST} tensors")
    place = d.position(2, -len(items), len(items), len(items))
    if isinstance(place, NeedsContent):
        return place
    elem_type = dtype.onnx if dtype is not None else value.elem_type
    return d.gives(ListValue(items=(*items[:place], name, *items[place:]), elem_type=elem_type))


def _concat(d: _Dissolution) -> Inlined:
    names, axis = list(d.list(0).items), int(d.node.attributes["axis"])
    if not names:
        raise InvalidNode("an empty sequence cannot be concatenated")
    if d.node.attributes.get("new_axis", 0):
        where = scope(d.node)
        names = [d.axes("Unsqueeze", name, axis, f"{where}part{k}") for k, name in enumerate(names)]
    d.add("Concat", names, d.outputs[0], axis=axis)
    return d.made


def _split(d: _Dissolution) -> Inlined | NeedsContent:
    value, split = d.known[d.input(0)], d.input(1)
    if isinstance(value, HostValue):
        raise Decline(f"{d.input(0)!r} is no tensor of numbers")
    if split and not isinstance(d.known[split], Weight):
        return NeedsContent(split, f"the lengths to split at are {split!r}")
    rank, axis = len(value.shape), int(d.node.attributes.get("axis", 0))
    if not -rank <= axis < rank:
        raise InvalidNode(f"axis {axis} of a tensor of rank {rank}")
    lengths = _lengths(d, int(fixed(value.shape[axis], _ELEMENTS)), split)
    where = scope(d.node)
    names = [f"{where}part{k}" for k in range(len(lengths))]
    if names:
        sizes = np.array(lengths, np.int64)
        if d.opset >= 13:
            inputs, attributes = [d.input(0), d.constant("lengths", sizes)], {}
        else:
            inputs, attributes = [d.input(0)], {"split": lengths}
        d.made.nodes.append(make_node("Split", inputs, names, d.opset, axis=axis, **attributes))
    if not split and not d.node.attributes.get("keepdims", 1):
        names = [d.axes("Squeeze", name, axis, f"{name}/squeezed") for name in names]
    dtype = dtype_of(value)
    return d.gives(ListValue(items=tuple(names), elem_type=dtype.onnx if dtype is not None else 0))


def _lengths(d: _Dissolution, total: int, split: str) -> list[int]:
    """The lengths along the axis of SplitToSequence. Raises `Decline` for more than `LONGEST_LIST`."""
    given = np.array(1)
    if split:
        weight = d.known[split]
        assert isinstance(weight, Weight)
        given = weight.array()
    if given.ndim:
        if given.min(initial=0) < 0 or given.sum() != total:
            raise InvalidNode(f"lengths {given.tolist()} of an axis of {total}")
        if len(given) > LONGEST_LIST:
            raise Decline(f"a sequence of more than {LONGEST_LIST} tensors")
        return [int(fixed(length, _ELEMENTS)) for length in given]
    step = int(fixed(given.item(), _ELEMENTS))
    if step < 1:
        raise InvalidNode(f"split is {step}, expected a length of 1 or more")
    if -(-total // step) > LONGEST_LIST:
        raise Decline(f"a sequence of more than {LONGEST_LIST} tensors")
    return [min(step, total - start) for start in range(0, total, step)]


def _map(d: _Dissolution) -> Inlined:
    body, count = d.node.bodies["body"], len(d.list(0).items)
    if count * max(len(body.nodes), 1) > LONGEST_LIST:
        raise Decline(f"{count} steps of {len(body.nodes)} nodes")
    lists = [v if isinstance(v := d.known[name], ListValue) else None for name in d.node.inputs]
    different = next((len(v.items) for v in lists if v is not None and len(v.items) != count), count)
    if different != count:
        raise InvalidNode(f"sequences of {count} and of {different} tensors")
    results: list[list[str]] = [[] for _ in d.outputs]
    for k in range(count):
        where = f"{scope(d.node)}{k}/"
        inputs = [v.items[k] if v is not None else name for v, name in zip(lists, d.node.inputs, strict=True)]
        outputs = [f"{where}out{j}" if name else "" for j, name in enumerate(d.outputs)]
        made = instantiate(body, where, inputs, outputs)
        d.made.nodes += made.nodes
        d.made.weights |= made.weights
        for names, name in zip(results, outputs, strict=True):
            names.append(name)
    for name, items, info in zip(d.outputs, results, body.outputs, strict=True):
        if name:
            d.made.values[name] = ListValue(items=tuple(items), elem_type=info.elem_type)
    return d.made


def _optional(d: _Dissolution) -> Inlined:
    return _same(d) if d.input(0) else d.gives(NoValue())


def _has_element(d: _Dissolution) -> Inlined:
    return d.gives(np.array(bool(d.input(0)) and not isinstance(d.known[d.input(0)], NoValue)))


def _get_element(d: _Dissolution) -> Inlined:
    if isinstance(d.known[d.input(0)], NoValue):
        raise InvalidNode("its input is an optional without an element")
    return _same(d)


def _same(d: _Dissolution) -> Inlined:
    value = d.known[d.input(0)]
    return d.gives(value if isinstance(value, (ListValue, NoValue)) else d.input(0))


_DISSOLVED: dict[str, Callable[[_Dissolution], Inlined | NeedsContent]] = {
    "SequenceConstruct": _construct,
    "SequenceEmpty": _empty,
    "SequenceLength": _length,
    "SequenceAt": _at,
    "SequenceErase": _erase,
    "SequenceInsert": _insert,
    "ConcatFromSequence": _concat,
    "SplitToSequence": _split,
    "SequenceMap": _map,
    "Optional": _optional,
    "OptionalHasElement": _has_element,
    "OptionalGetElement": _get_element,
    "Identity": _same,
}
#: operators of ONNX that take or give sequences or optionals, if not always
ON_LISTS = frozenset(_DISSOLVED)
