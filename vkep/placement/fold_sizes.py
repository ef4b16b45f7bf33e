"""Shape arithmetic on sizes: nodes whose inputs are computed from a run's sizes become formulas."""

from __future__ import annotations

import functools
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
from vkep.ir.infer import sizes_weight
from vkep.placement.fold import FoldError, fold, fold_weights
from vkep.sizes import REALS, SizeError, called, hint, is_size, largest, serves_others, smallest

#: maximum number of elements of a shape or a list of axes or pads: larger values are data, which kernels compute for
#: every size
_LARGEST_SHAPE = 16
#: operators whose result's number of elements is given by the values of the inputs
_MAKES_DATA = frozenset({"ConstantOfShape", "Expand", "Range", "Tile"})
#: why a size is fixed
_ON_HOST = "numpy computes the node when the model is planned"
_WHOLE = frozenset({onnx.TensorProto.INT64, onnx.TensorProto.INT32})
_FLOAT = frozenset({getattr(onnx.TensorProto, name) for name in ("BFLOAT16", "DOUBLE", "FLOAT", "FLOAT16")})
_BOOL = onnx.TensorProto.BOOL
#: operators that only move elements, with the inputs whose elements they move
_MOVES: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(
        ("Compress", "Expand", "Flatten", "GatherElements", "GatherND", "Identity", "ReverseSequence"), (0,)
    ),
    **dict.fromkeys(("Slice", "Split", "Squeeze", "Tile", "Transpose", "Trilu", "Unsqueeze"), (0,)),
    **dict.fromkeys(("Pad", "ScatterElements", "ScatterND"), (0, 2)),
    "OneHot": (2,),  # torch writes repeats of one axis with it
}


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
#: reductions of integers
_REDUCED: Mapping[str, Callable[[Any, Any], Any]] = {
    "ReduceMax": largest,
    "ReduceMin": smallest,
    "ReduceProd": operator.mul,
    "ReduceSum": operator.add,
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
    by_sizes = any(isinstance(w, SizesWeight) for w in inputs)
    if node.op_type in _MAKES_DATA and not node.domain:
        count = _count(node, inputs)
        if serves_others(count) or (by_sizes and count == 0):  # its other dimensions are sizes
            return None
    if not by_sizes:
        return fold_weights(node, inputs, opsets)
    results = fold_sizes(node, inputs, opsets)
    if results is not None:
        return results
    made = fold(node, [None if w is None else _array_at_hand(w) for w in inputs], opsets)
    if any(r is not None and (r.size > _LARGEST_SHAPE or (r.size and r.dtype.kind not in "iub")) for r in made):
        return None  # data, and not a shape: kernels compute it from the sizes
    if _grows(node, inputs, opsets, made):
        return None
    return fold_weights(node, [w.fixed(_ON_HOST) if isinstance(w, SizesWeight) else w for w in inputs], opsets)


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


def fold_sizes(node: Node, inputs: Sequence[Weight | None], opsets: Mapping[str, int]) -> list[Weight | None] | None:
    """The node's outputs, where a symbolic size is among its inputs and their values need not be known; else None."""
    if node.domain or not any(isinstance(w, SizesWeight) for w in inputs):
        return None
    arrays = [None if w is None else _objects(w) for w in inputs]
    try:
        kinds = [w.elem_type if w is not None else 0 for w in inputs]
        found = _folded(node, kinds, arrays) or _moved(node, kinds, arrays, opsets)
    except (TypeError, ValueError, LookupError, ArithmeticError, Decline, FoldError, SizeError):
        return None  # the ordinary path reports what is wrong
    if found is None:
        return None
    results, elem_type = found
    if isinstance(results, np.ndarray):
        results = [results]
    return [
        None
        if values is None
        else sizes_weight(name, values.reshape(-1) if values.shape else values.item(), values.shape, elem_type)
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
) -> tuple[np.ndarray[Any, Any] | list[np.ndarray[Any, Any] | None], int] | None:
    """The result (or results) and its ONNX element type, computed with Python's numbers and sizes; None where no formula
    exists."""
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
        return _cast(first, kind, int(node.attributes["to"]))
    if kind in _FLOAT and all(k == kind for k in types) and f"float32.{op}" in REALS:
        return _each(functools.partial(called, f"{_named(kind)}.{op}"), *arrays), kind
    if op == "Size":
        return np.array(first.size, object), onnx.TensorProto.INT64
    if op == "Shape":
        return np.array(first.shape, object)[
            node.attributes.get("start", 0) : node.attributes.get("end")
        ], onnx.TensorProto.INT64
    if op == "TopK" and kind == onnx.TensorProto.INT64 and first.ndim == 1:
        return _top(first.tolist(), arrays[1], bool(node.attributes.get("largest", 1))), kind
    if op == "Range" and kind in _WHOLE:
        return _ranged(*arrays), kind
    if op == "Concat":
        return np.concatenate([a for a in arrays if a is not None], axis=int(node.attributes["axis"])), kind
    if op == "Gather":
        indices = _plain(arrays[1])
        return None if indices is None else (_object(first.take(indices, axis=node.attributes.get("axis", 0))), kind)
    if op in _REDUCED:
        return _reduced(node, kind, first, arrays[1] if len(arrays) > 1 else None)
    if op == "Reshape":
        shape = _plain(arrays[1])
        return None if shape is None else (first.reshape([int(d) for d in shape]), kind)
    return None


def _cast(values: np.ndarray[Any, Any], kind: int, to: int) -> tuple[np.ndarray[Any, Any], int] | None:
    if kind in _WHOLE and to in _WHOLE:
        return values, to
    if to == _BOOL:
        return _each(operator.ne, values, np.zeros((), object)), to
    if to in _FLOAT or (kind in _FLOAT and to in _WHOLE):
        return _each(functools.partial(called, f"{_named(to)}.Cast"), values), to
    return None


def _named(kind: int) -> str:
    dtype = dtypes.from_onnx(kind)
    assert dtype is not None
    return dtype.name


def _moved(
    node: Node, types: Sequence[int], arrays: Sequence[np.ndarray[Any, Any] | None], opsets: Mapping[str, int]
) -> tuple[list[np.ndarray[Any, Any] | None], int] | None:
    """The outputs of an operator of `_MOVES`, which is evaluated on the numbers of the elements (from 1 on) in place of them."""
    if node.attributes.get("reduction", "none") != "none" or node.attributes.get("mode", "constant") != "constant":
        return None
    moves, inputs = _MOVES.get(node.op_type, ()), list[np.ndarray[Any, Any] | None]()
    elements = [0]  # number 0 is the zero that Pad and Trilu fill in
    for k, array in enumerate(arrays):
        if array is None or k not in moves:
            inputs.append(_plain(array) if array is not None else None)
            if array is not None and inputs[-1] is None:
                return None
            continue
        inputs.append(np.arange(len(elements), len(elements) + array.size).reshape(array.shape))
        elements += array.reshape(-1).tolist()
    made = fold(node, inputs, opsets) if moves else []
    if not made or any(r is not None and r.size > _LARGEST_SHAPE for r in made):
        return None
    table = np.empty(len(elements), object)
    table[:] = elements
    return [None if r is None else _object(table[r]) for r in made], types[moves[0]]


def _each(function: Callable[..., Any], *arrays: np.ndarray[Any, Any] | None) -> np.ndarray[Any, Any]:
    parts = np.broadcast_arrays(*[a for a in arrays if a is not None])
    made = np.empty(parts[0].size, object)
    made[:] = [function(*row) for row in zip(*[p.reshape(-1).tolist() for p in parts], strict=True)]
    return made.reshape(parts[0].shape)


def _reduced(
    node: Node, kind: int, values: np.ndarray[Any, Any], axes: np.ndarray[Any, Any] | None
) -> tuple[np.ndarray[Any, Any], int] | None:
    """A reduction of integers, or the greatest or least of floats: other floats depend on the order."""
    function = _REDUCED[node.op_type] if kind in _WHOLE else None
    if kind in _FLOAT and node.op_type in ("ReduceMax", "ReduceMin"):
        function = functools.partial(called, f"{_named(kind)}.{node.op_type.removeprefix('Reduce')}")
    given = node.attributes.get("axes") if axes is None else _plain(axes)
    if function is None or (axes is not None and given is None) or node.attributes.get("noop_with_empty_axes"):
        return None
    over = {int(axis) % values.ndim for axis in given} if given is not None and len(given) else {*range(values.ndim)}
    made: Any = values
    for axis in over:
        made = np.frompyfunc(function, 2, 1).reduce(made, axis=axis, keepdims=True)
    kept = [n for axis, n in enumerate(values.shape) if axis not in over]
    return (made if node.attributes.get("keepdims", 1) else made.reshape(kept)), kind


def _top(values: list[Any], count: Any, most: bool) -> list[np.ndarray[Any, Any] | None]:
    """The first of the sorted values, and their places: lengths that torch sorts to pack sequences. Raises ``ValueError``."""
    if count is None or is_size(count.item()) or len(values) > _LARGEST_SHAPE:
        raise ValueError("how many there are is not known, or they are too many")
    if not 0 <= count.item() <= len(values):
        raise ValueError(f"{count.item()} of {len(values)} values")

    def compared(i: int, j: int) -> int:
        less, more = (i, j) if most else (j, i)
        return int(values[less] < values[more]) - int(values[more] < values[less])

    places = sorted(range(len(values)), key=functools.cmp_to_key(compared))[: count.item()]
    made = np.empty(len(places), object)
    made[:] = [values[place] for place in places]
    return [made, np.array(places, object)]


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
