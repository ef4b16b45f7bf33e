"""Shape arithmetic on sizes: nodes whose inputs are computed from a run's sizes become formulas."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from vkep import dtypes
from vkep.errors import Decline
from vkep.graph.model import Node
from vkep.graph.weights import SizesWeight, Weight
from vkep.graph.windows import slice_span
from vkep.ir.infer import sizes_weight
from vkep.placement.fold import FoldError, fold, fold_weights
from vkep.sizes import hint, is_size, serves_others

#: maximum number of elements of a shape or a list of axes or pads: larger values are data, which kernels compute for
#: every size
_LARGEST_SHAPE = 16
#: operators whose result's number of elements is given by the values of the inputs
_MAKES_DATA = frozenset({"ConstantOfShape", "Expand", "Range", "Tile"})
_WHOLE = frozenset({onnx.TensorProto.INT64, onnx.TensorProto.INT32})
_BOOL = onnx.TensorProto.BOOL


def _quotient(a: Any, b: Any) -> Any:
    """ONNX's Div of integers, which rounds towards zero."""
    if b == 0:
        raise ZeroDivisionError("a size divided by 0")
    quotient = abs(a) // abs(b)
    return quotient if (a >= 0) == (b >= 0) else -quotient


#: elementwise operators of two integers; the last ones return booleans
_BINARY: Mapping[str, Callable[[Any, Any], Any]] = {
    "Add": operator.add,
    "Sub": operator.sub,
    "Mul": operator.mul,
    "Div": _quotient,
    "Mod": operator.mod,
    "Min": min,
    "Max": max,
}
_TESTS: Mapping[str, Callable[[Any, Any], bool]] = {
    "Equal": operator.eq,
    "Less": operator.lt,
    "LessOrEqual": operator.le,
    "Greater": operator.gt,
    "GreaterOrEqual": operator.ge,
}


def fold_with_sizes(
    node: Node, inputs: Sequence[Weight | None], opsets: Mapping[str, int]
) -> Sequence[Weight | None] | None:
    """The outputs of a node whose inputs are known, with or without symbolic sizes among them; None for those that
    kernels compute. Raises `FoldError`."""
    if node.op_type in _MAKES_DATA and not node.domain and serves_others(_count(node, inputs)):
        return None
    if not any(isinstance(w, SizesWeight) for w in inputs):
        return fold_weights(node, inputs, opsets)
    results = fold_sizes(node, inputs)
    if results is not None:
        return results
    made = fold(node, [None if w is None else _array_at_hand(w) for w in inputs], opsets)
    if any(result is not None and result.size > _LARGEST_SHAPE for result in made):
        return None
    if _grows(node, inputs, opsets, made):
        return None
    return fold_weights(node, [w.fixed() if isinstance(w, SizesWeight) else w for w in inputs], opsets)


def _grows(
    node: Node, inputs: Sequence[Weight | None], opsets: Mapping[str, int], made: Sequence[np.ndarray | None]
) -> bool:
    """Whether the node's results, which are ``made`` now, have more or fewer elements where each size is larger by one: they are
    data."""
    try:
        more = fold(node, [None if w is None else _array_at_hand(w, 1) for w in inputs], opsets)
    except FoldError:
        return False
    return any(a is not None and b is not None and a.size != b.size for a, b in zip(made, more, strict=True))


def fold_sizes(node: Node, inputs: Sequence[Weight | None]) -> list[Weight | None] | None:
    """The node's outputs, where a symbolic size is among its inputs and their values need not be known; else None."""
    if node.domain or not any(isinstance(w, SizesWeight) for w in inputs):
        return None
    arrays = [None if w is None else _objects(w) for w in inputs]
    try:
        found = _folded(node, [w.elem_type if w is not None else 0 for w in inputs], arrays)
    except (TypeError, ValueError, LookupError, ArithmeticError, Decline):
        return None  # the ordinary path reports what is wrong
    if found is None:
        return None
    results, elem_type = found
    if not isinstance(results, list):
        results = [results]
    return [
        sizes_weight(name, values.reshape(-1) if values.shape else values.item(), values.shape, elem_type)
        for name, values in zip(node.outputs, results, strict=True)
    ]


def _count(node: Node, inputs: Sequence[Weight | None]) -> int | None:
    """The number of elements of the result of a node in `_MAKES_DATA` for each element of its first input, where a few
    inputs give it."""
    given = [w for w in inputs if w is not None]
    said = [w.array().reshape(-1).tolist() for w in (given if node.op_type == "Range" else given[-1:])]
    if node.op_type == "Range":
        return (said[1][0] - said[0][0]) * said[2][0] if len(said) == 3 and all(said) else None
    return math.prod(said[0]) if len(said[0]) <= _LARGEST_SHAPE else None


def _array_at_hand(weight: Weight, more: int = 0) -> np.ndarray[Any, Any]:
    """A weight's numbers at the current sizes, with ``more`` added to those that depend on sizes."""
    array = weight.array()
    if not isinstance(weight, SizesWeight):
        return array
    dtype = dtypes.from_onnx(weight.elem_type)
    assert dtype is not None
    return np.array([hint(n) + more * is_size(n) for n in array.reshape(-1).tolist()], dtype.numpy).reshape(array.shape)


def _objects(weight: Weight) -> np.ndarray[Any, Any]:
    return weight.array().astype(object)


def _folded(
    node: Node, types: Sequence[int], arrays: Sequence[np.ndarray[Any, Any] | None]
) -> tuple[np.ndarray[Any, Any] | list[np.ndarray[Any, Any]], int] | None:
    op, first, kind = node.op_type, arrays[0], types[0]
    if first is None:
        return None
    if op in _BINARY and kind in _WHOLE and len(arrays) == 2:
        if op == "Mod" and node.attributes.get("fmod"):
            return None
        return _each(_BINARY[op], first, arrays[1]), kind
    if op == "Neg" and kind in _WHOLE:
        return _each(operator.neg, first), kind
    if op in _TESTS and len(arrays) == 2:
        return _each(_TESTS[op], first, arrays[1]), _BOOL
    if op == "Where":
        return _each(lambda c, x, y: x if c else y, first, arrays[1], arrays[2]), types[1]
    if op == "Cast":
        to = int(node.attributes["to"])
        return (first, to) if kind in _WHOLE and to in _WHOLE else None
    if op == "Identity":
        return first, kind
    if op == "Size":
        return np.array(first.size, object), onnx.TensorProto.INT64
    if op == "Shape":
        return np.array(first.shape, object)[
            node.attributes.get("start", 0) : node.attributes.get("end")
        ], onnx.TensorProto.INT64
    if op == "Range" and kind in _WHOLE:
        return _ranged(*arrays), kind
    if op == "Concat":
        return np.concatenate([a for a in arrays if a is not None], axis=int(node.attributes["axis"])), kind
    if op == "Gather":
        indices = _plain(arrays[1])
        return None if indices is None else (_object(first.take(indices, axis=node.attributes.get("axis", 0))), kind)
    if op in ("Unsqueeze", "Squeeze"):
        axes = _plain(arrays[1]) if len(arrays) > 1 else node.attributes.get("axes")
        axes = None if axes is None else tuple(int(a) for a in np.reshape(axes, -1))
        if op == "Unsqueeze":
            return (np.expand_dims(first, axes), kind) if axes is not None else None
        return first.squeeze(axes), kind
    if op == "Slice":
        return _sliced(first, [_plain(a) for a in arrays[1:]], kind)
    if op == "ReduceProd" and first.ndim == 1 and not node.attributes.get("noop_with_empty_axes"):
        product = _object(np.multiply.reduce(first))
        return (product.reshape(1) if node.attributes.get("keepdims", 1) else product), kind
    if op == "Split" and first.ndim == 1:
        lengths = _plain(arrays[1]) if len(arrays) > 1 else node.attributes.get("split")
        each = -(-first.size // len(node.outputs))
        ends = np.cumsum([each] * len(node.outputs) if lengths is None else lengths)
        return np.split(first, ends[:-1].tolist()), kind
    if op == "Reshape":
        shape = _plain(arrays[1])
        return None if shape is None else (first.reshape([int(d) for d in shape]), kind)
    return None


def _each(function: Callable[..., Any], *arrays: np.ndarray[Any, Any] | None) -> np.ndarray[Any, Any]:
    parts = np.broadcast_arrays(*[a for a in arrays if a is not None])
    made = np.empty(parts[0].size, object)
    made[:] = [function(*row) for row in zip(*[p.reshape(-1).tolist() for p in parts], strict=True)]
    return made.reshape(parts[0].shape)


def _ranged(start: Any, limit: Any, delta: Any) -> Any:
    first, step = start.item(), delta.item()
    count = -((first - limit.item()) // step)
    if is_size(count):
        raise ValueError("how many numbers there are follows from sizes")
    return np.array([first + step * k for k in range(count)], object)


def _plain(array: np.ndarray[Any, Any] | None) -> np.ndarray[Any, Any] | None:
    """Numbers without symbolic sizes, as int64."""
    if array is None or any(map(is_size, array.reshape(-1).tolist())):
        return None
    return array.astype(np.int64)


def _object(value: Any) -> np.ndarray[Any, Any]:
    if isinstance(value, np.ndarray):
        return value
    made = np.empty((), object)
    made[()] = value
    return made


def _sliced(
    first: np.ndarray[Any, Any], given: Sequence[np.ndarray[Any, Any] | None], kind: int
) -> tuple[np.ndarray[Any, Any], int] | None:
    starts, ends, axes, steps = [*given, None, None][:4]
    if starts is None or ends is None:
        return None
    listed = [list(map(int, a)) if a is not None else None for a in (starts, ends, axes, steps)]
    for start, end, axis, step in zip(
        listed[0] or [],
        listed[1] or [],
        listed[2] or range(len(starts)),
        listed[3] or [1] * len(starts),
        strict=True,
    ):
        begin, count = slice_span(first.shape[axis], start, end, step)
        first = first.take(range(begin, begin + count * step, step), axis)
    return first, kind
