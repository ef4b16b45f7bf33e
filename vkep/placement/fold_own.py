"""Nodes of known inputs that numpy evaluates here: the most frequent shape arithmetic, without the cost of an evaluator for each
node, and operators whose results in onnx's reference evaluator are not those of the kernels."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import numpy_helper

from vkep import dtypes
from vkep.graph.model import Node
from vkep.graph.windows import slice_span
from vkep.ir import meaning
from vkep.ir.infer import shape_of

Array = NDArray[Any]


def evaluate(node: Node, inputs: Sequence[Array | None]) -> Array | None:
    """The only output of a node of ONNX; None where the evaluator is to compute it."""
    if node.domain or not inputs or inputs[0] is None or node.op_type not in _OWN:
        return None
    return _OWN[node.op_type](node, inputs)


def _filled(node: Node, inputs: Sequence[Any]) -> Array:
    value = node.attributes.get("value")
    fill = numpy_helper.to_array(value) if value is not None else np.zeros(1, np.float32)
    return np.full([int(d) for d in inputs[0]], fill.reshape(-1)[0], fill.dtype)


def _axes(node: Node, inputs: Sequence[Any]) -> tuple[int, ...] | None:
    axes = inputs[1] if len(inputs) > 1 and inputs[1] is not None else node.attributes.get("axes")
    return None if axes is None else tuple(int(a) for a in axes)


def _slice(node: Node, inputs: Sequence[Any]) -> Array | None:
    """ONNX's Slice; the reference evaluator has Python's semantics."""
    given = [None if part is None else part.reshape(-1).tolist() for part in inputs[1:]]
    starts, ends, axes, steps = [*given, None, None, None, None][:4]
    array: Array = inputs[0]
    if starts is None or ends is None:
        return None
    for start, end, axis, step in zip(
        starts, ends, axes or range(len(starts)), steps or [1] * len(starts), strict=True
    ):
        begin, count = slice_span(array.shape[axis], start, end, step)
        array = array.take(range(begin, begin + count * step, step), axis)
    return array


def _to_integers(x: Array, to: np.dtype[Any]) -> Array | None:
    return meaning.converted(x, to) if x.dtype.name in _FLOATS and to.kind in "iu" and to.itemsize > 0 else None


def _cast(node: Node, inputs: Sequence[Any]) -> Array | None:
    to = dtypes.from_onnx(int(node.attributes["to"]))
    return None if to is None or to.sub_byte_bits else _to_integers(inputs[0], to.numpy)


def _gelu(node: Node, inputs: Sequence[Any]) -> Array:
    return meaning.gelu_tanh(inputs[0]) if node.attributes.get("approximate") == "tanh" else meaning.gelu(inputs[0])


def _quantized(node: Node, inputs: Sequence[Any]) -> None:
    """Nothing: the evaluator computes it, but by way of integers of 32 bits, which larger quotients overflow."""
    if inputs[0].size and not np.abs(inputs[0]).max() <= 2.0**30 * np.abs(inputs[1].astype(np.float64)).min():
        raise ValueError("a quotient beyond the integers of 32 bits")


def _shape(node: Node, inputs: Sequence[Any]) -> Array:
    return shape_of(node, "", inputs[0].shape).array()


def _total(inputs: Sequence[Any]) -> Array:
    return functools.reduce(np.add, inputs)


def _clip(node: Node, inputs: Sequence[Any]) -> Array:
    """Limits before version 11 are attributes of float32, whose last finite numbers are the default; later a type's own are."""
    x: Array = inputs[0]
    dtype, by_attributes = dtypes.from_numpy(x.dtype), node.schema is not None and node.schema.since_version < 11
    for k, what, sign, nearer in ((1, "min", -1, meaning.maximum), (2, "max", 1, meaning.minimum)):
        limit = node.attributes.get(what) if by_attributes else inputs[k] if k < len(inputs) else None
        if limit is None and dtype.kind == "float":
            limit = sign * (dtypes.DTYPES["float32"] if by_attributes else dtype).largest
        x = x if limit is None else nearer(x, np.asarray(limit, x.dtype).reshape(()))
    return x


_FLOATS = ("float16", "bfloat16", "float32", "float64")
_OWN: Mapping[str, Callable[[Node, Sequence[Any]], Array | None]] = {
    "Cast": _cast,
    "Clip": _clip,
    "CastLike": lambda node, x: _to_integers(x[0], x[1].dtype),
    "ConstantOfShape": _filled,
    "Erf": lambda node, x: meaning.erf(x[0]),
    "Gelu": _gelu,
    "HardSwish": lambda node, x: x[0] * np.clip(x[0] / 6 + 0.5, 0, 1),
    "Identity": lambda node, x: x[0],
    "Mean": lambda node, x: _total(x) / len(x),
    "PRelu": lambda node, x: np.where(x[0] < 0, x[0] * x[1], x[0]),
    "QuantizeLinear": _quantized,
    "Shape": _shape,
    "Sign": lambda node, x: np.where(x[0] == 0, x[0], np.sign(x[0])),
    "Size": _shape,
    "Slice": _slice,
    "Squeeze": lambda node, x: np.squeeze(x[0], _axes(node, x)),
    "Sum": lambda node, x: _total(x),
    "Unsqueeze": lambda node, x: None if (axes := _axes(node, x)) is None else np.expand_dims(x[0], axes),
}
