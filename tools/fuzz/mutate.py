"""Turns valid calls into invalid ones: sizes, ranks, operands, attributes and values that contradict each other."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tools.fuzz.corpus import Array, Call

#: the valid calls that cases are derived from, by operator
Found = dict[str, list[Call]]
#: values of text attributes of other operators
_TEXTS = (
    "",
    "mean",
    "none",
    "constant",
    "linear",
    "nearest",
    "asymmetric",
    "NOTSET",
    "SAME_UPPER",
    "VALID",
    "LINEAR",
    "BSNH",
)
#: attributes that are 1 or 0: other values have no defined meaning
_FLAGS = frozenset({
    "align_corners", "allowzero", "antialias", "ceil_mode", "count_include_pad", "do_rotary", "exclude_outside", "exclusive",
    "input_forget", "interleaved", "inverse", "is_causal", "keepdims", "largest", "layout", "linear_before_reset", "no_norm",
    "noop_with_empty_axes", "onesided", "periodic", "reverse", "rotary_interleaved", "saturate", "select_last_index", "sorted",
    "transA", "transB", "transBatchA", "transBatchB", "unidirectional", "upper", "training_mode", "fmod", "storage_order",
})  # fmt: skip


@dataclass
class Case:
    """A node, its values, and the changes to the call that it comes from."""

    node: onnx.NodeProto
    opsets: dict[str, int]
    values: dict[str, Array]
    constants: set[str]
    unranked: bool = False  #: the model does not declare its inputs' ranks
    changes: list[str] = field(default_factory=list)

    @property
    def operator(self) -> str:
        return f"{self.node.domain}.{self.node.op_type}" if self.node.domain else self.node.op_type

    @property
    def feeds(self) -> dict[str, Array]:
        return {n: v for n, v in self.values.items() if n not in self.constants}

    def model(self) -> onnx.ModelProto:
        """The node alone. No size of an input is known, so that all contradictions are found in a run."""
        inputs = []
        for name, value in self.feeds.items():
            dims = None if self.unranked else [f"{name}_{axis}" for axis in range(value.ndim)]
            inputs.append(helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), dims))
        graph = helper.make_graph(
            [self.node],
            "case",
            inputs,
            [onnx.ValueInfoProto(name=name) for name in self.node.output if name],
            [numpy_helper.from_array(self.values[name], name) for name in sorted(self.constants)],
        )
        opsets = [helper.make_opsetid(domain, version) for domain, version in self.opsets.items()]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)

    def __str__(self) -> str:
        shown = ", ".join(
            f"{n}: {v.dtype}{list(v.shape)}{' const' if n in self.constants else ''}"
            + (f" {v.tolist()}" if v.size <= 8 and v.dtype.kind in "iub" else "")
            for n, v in self.values.items()
        )
        attributes = {a.name: _short(helper.get_attribute_value(a)) for a in self.node.attribute}
        return f"{self.operator}({shown}) {attributes} opsets {self.opsets} [{'; '.join(self.changes)}]"


def draw(calls: Found, seed: int, number: int) -> Case:
    """Case ``number`` of a seed: a valid call of an operator with up to three changes (a few stay as they are).

    The operators take turns, and calls of one do not change what is drawn for another.
    """
    operators = sorted(calls)
    turn, which = divmod(number, len(operators))
    rng = random.Random(f"{seed}/{operators[which]}/{turn}")
    call = rng.choice(calls[operators[which]])
    node = onnx.NodeProto()
    node.CopyFrom(call.node)
    constants = {n for n in call.constants if rng.random() < 0.5}
    case = Case(node, call.opsets, dict(call.values), constants, rng.random() < 0.3)
    for _ in range(rng.choice((0, 1, 1, 1, 1, 1, 1, 2, 2, 3))):
        change = rng.choice(_CHANGES)
        made = change(case, rng)
        if made:
            case.changes.append(made)
    case.values = {n: v for n, v in case.values.items() if n in case.node.input}
    case.constants &= case.values.keys()
    return case


def _operand(case: Case, rng: random.Random) -> str:
    return rng.choice(list(case.values)) if case.values else ""


def _resized(value: Array, shape: list[int]) -> Array:
    """Another shape, filled with the value's elements in turn."""
    if value.size == 0:
        return np.zeros(shape, value.dtype)
    return np.resize(value, shape).astype(value.dtype)


def _size(case: Case, rng: random.Random) -> str:
    name = _operand(case, rng)
    if not name or not case.values[name].ndim:
        return ""
    shape = list(case.values[name].shape)
    axis = rng.randrange(len(shape))
    old = shape[axis]
    shape[axis] = max(0, rng.choice((0, 1, old - 1, old - 1, old + 1, old + 1, 2 * old, old // 2, old + 7, 33, 64)))
    if np.prod(shape, dtype=np.int64) > 1 << 20:
        return ""
    case.values[name] = _resized(case.values[name], shape)
    return f"{name}: axis {axis} {old} -> {shape[axis]}"


def _rank(case: Case, rng: random.Random) -> str:
    name = _operand(case, rng)
    if not name:
        return ""
    value = case.values[name]
    shape = list(value.shape)
    kind = rng.choice(("drop", "one", "two", "flat", "scalar"))
    if kind == "drop" and shape:
        del shape[rng.randrange(len(shape))]
    elif kind in ("one", "two"):
        shape.insert(rng.randint(0, len(shape)), 1 if kind == "one" else 2)
    elif kind == "flat":
        shape = [value.size]
    elif kind == "scalar":
        shape = []
    case.values[name] = _resized(value, shape)
    return f"{name}: shape {list(value.shape)} -> {shape}"


def _swap(case: Case, rng: random.Random) -> str:
    """Exchange two operands of one type."""
    names = [n for n in case.node.input if n]
    pairs = [(a, b) for a in names for b in names if a < b and case.values[a].dtype == case.values[b].dtype]
    if not pairs:
        return ""
    a, b = rng.choice(pairs)
    case.values[a], case.values[b] = case.values[b], case.values[a]
    return f"{a} and {b} swapped"


def _absent(case: Case, rng: random.Random) -> str:
    inputs = case.node.input
    if not inputs:
        return ""
    k = rng.randrange(len(inputs))
    if rng.random() < 0.5:
        del inputs[k:]
        return f"inputs from {k} on are absent"
    inputs[k] = ""
    return f"input {k} is absent"


def _type(case: Case, rng: random.Random) -> str:
    name = _operand(case, rng)
    if not name:
        return ""
    dtype = np.dtype(rng.choice(("float32", "float16", "int32", "int64", "int8", "uint8", "bool", "float64")))
    with np.errstate(all="ignore"):
        case.values[name] = case.values[name].astype(dtype)
    return f"{name}: {dtype}"


def _values(case: Case, rng: random.Random) -> str:
    """An index, length or choice that is out of range, or another one."""
    whole = [n for n, v in case.values.items() if v.dtype.kind in "iub" and v.size]
    if not whole:
        return ""
    name = rng.choice(whole)
    value = case.values[name] = case.values[name].copy()
    old = int(value.reshape(-1)[0])
    new: Any = rng.choice((-1, 0, 1, 2, 3, 7, 100, -100, old + 1, old - 1, -old, 2 * old, 1 << 20))
    limits = np.iinfo(value.dtype) if value.dtype.kind in "iu" else None
    new = min(max(new, int(limits.min)), int(limits.max)) if limits is not None else bool(new)
    at = rng.randrange(value.size)
    value.reshape(-1)[at] = new
    return f"{name}: element {at} is {new}"


def _attribute(case: Case, rng: random.Random) -> str:
    attributes = list(case.node.attribute)
    if not attributes or rng.random() < 0.2:
        return _new_attribute(case, rng)
    attribute = rng.choice(attributes)
    value = helper.get_attribute_value(attribute)
    case.node.attribute.remove(attribute)
    if rng.random() < 0.15:
        return f"{attribute.name} is absent"
    new = rng.choice((0, 1)) if attribute.name in _FLAGS else _other(value, rng)
    if new is None:
        case.node.attribute.append(attribute)
        return ""
    if isinstance(new, list) and not new:
        case.node.attribute.append(helper.make_attribute(attribute.name, new, attr_type=attribute.type))
    else:
        case.node.attribute.append(helper.make_attribute(attribute.name, new))
    return f"{attribute.name}: {_short(value)} -> {new}"


def _new_attribute(case: Case, rng: random.Random) -> str:
    """An attribute of the operator that the node does not have."""
    try:
        schema: Any = onnx.defs.get_schema(case.node.op_type, case.opsets.get(case.node.domain, 1), case.node.domain)
        known = {name: spec.default_value for name, spec in schema.attributes.items()}
    except onnx.defs.SchemaError:
        from vkep.ops import registry

        known = next(
            dict(d.signature.attributes)
            for d in registry.declared()
            if (d.domain, d.op_type) == (case.node.domain, case.node.op_type)
        )
    given = {a.name for a in case.node.attribute}
    free = sorted(name for name in known if name not in given)
    if not free:
        return ""
    name = rng.choice(free)
    default = known[name]
    if isinstance(default, onnx.AttributeProto):
        default = helper.get_attribute_value(default) if default.type else None
    elif default is None:  # nothing determines its type
        return ""
    new = _other(default if isinstance(default, (int, float, bytes, str)) else rng.choice((1, [1, 1])), rng)
    if name in _FLAGS:
        new = rng.choice((0, 1))
    if new is None or new == []:
        return ""
    case.node.attribute.append(helper.make_attribute(name, new))
    return f"{name} = {new}"


def _other(value: Any, rng: random.Random) -> Any:
    """Another value of an attribute; None for kinds of attributes that are not changed."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int):
        return rng.choice((-1, 0, 1, 2, 3, 5, 8, 100, value + 1, value - 1, -value, 2 * value, 1 << 31, -(1 << 40)))
    if isinstance(value, float):
        return rng.choice((0.0, -1.0, 0.5, 1e30, float("inf"), float("nan"), -value))
    if isinstance(value, (bytes, str)):
        return rng.choice(_TEXTS)
    if isinstance(value, (list, tuple)) or (hasattr(value, "__len__") and hasattr(value, "__getitem__")):
        items = list(value)
        if not all(isinstance(item, (int, float)) for item in items):
            return None
        kind = rng.choice(("drop", "add", "change", "change", "change"))
        if kind == "drop" and items:
            del items[rng.randrange(len(items))]
        elif kind == "add" or not items:
            items.insert(rng.randint(0, len(items)), items[0] if items else 1)
        else:
            k = rng.randrange(len(items))
            items[k] = _other(items[k], rng)
        return items
    return None


def _short(value: Any) -> Any:
    return "tensor" if isinstance(value, onnx.TensorProto) else list(value) if hasattr(value, "extend") else value


_CHANGES: tuple[Callable[[Case, random.Random], str], ...] = (
    _size, _size, _size, _size, _rank, _rank, _swap, _absent, _type, _values, _values, _attribute, _attribute, _attribute,
)  # fmt: skip
