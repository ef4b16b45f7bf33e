"""Constant folding: nodes whose inputs are all known are evaluated once, with ONNX's reference implementation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import helper

from vkep import dtypes
from vkep.errors import VkepError
from vkep.graph.model import Node

#: Operators whose result is not a function of their inputs.
_IMPURE = {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial", "Dropout"}
#: Results larger than this stay a computation: a model's size must not explode by folding.
MAX_FOLDED_BYTES = 1 << 30


class FoldError(VkepError):
    """The reference implementation could not evaluate a node; it is lowered like any other."""


def can_fold(node: Node) -> bool:
    return node.schema is not None and node.op_type not in _IMPURE and not node.captures and not _has_body(node)


def fold(node: Node, inputs: Sequence[np.ndarray | None], opsets: Mapping[str, int]) -> list[np.ndarray | None]:
    """The node's outputs; None for an absent one. Raises `FoldError`."""
    quick = _quick(node, inputs)
    if quick is not None:
        return [quick]
    from onnx.reference import ReferenceEvaluator

    named = {name: array for name, array in zip(node.inputs, inputs, strict=True) if name and array is not None}
    wanted = [name for name in node.outputs if name]
    graph = helper.make_graph(
        [node.proto],
        "fold",
        [helper.make_tensor_value_info(n, _elem_type(a), a.shape) for n, a in named.items()],
        [onnx.ValueInfoProto(name=n) for n in wanted],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid(d, v) for d, v in opsets.items()])
    try:
        results = ReferenceEvaluator(model).run(wanted, named)
    except Exception as error:  # the reference raises whatever it meets
        raise FoldError(f"{node.title}: {error}") from error
    if not all(isinstance(r, (np.ndarray, np.generic)) for r in results):
        raise FoldError(f"{node.title}: result is no tensor")
    found = dict(zip(wanted, (np.asarray(r) for r in results), strict=True))
    return [found.get(name) for name in node.outputs]


def _quick(node: Node, inputs: Sequence[np.ndarray | None]) -> np.ndarray | None:
    """The commonest shape arithmetic, without the cost of an evaluator for each node."""
    first = inputs[0] if inputs else None
    if first is None or node.domain:
        return None
    if node.op_type == "ConstantOfShape":
        value = node.attributes.get("value")
        fill = onnx.numpy_helper.to_array(value) if value is not None else np.zeros(1, np.float32)
        shape = [int(d) for d in first]
        if math.prod(shape) * fill.itemsize > MAX_FOLDED_BYTES:
            raise FoldError(f"{node.title}: would be {math.prod(shape) * fill.itemsize} bytes")
        return np.full(shape, fill.reshape(-1)[0], fill.dtype)
    if node.op_type == "Identity":
        return first
    if node.op_type in ("Unsqueeze", "Squeeze"):
        axes = inputs[1] if len(inputs) > 1 and inputs[1] is not None else node.attributes.get("axes")
        if axes is None:
            return np.squeeze(first)
        axes = tuple(int(a) for a in axes)
        return np.expand_dims(first, axes) if node.op_type == "Unsqueeze" else np.squeeze(first, axes)
    return None


def _elem_type(array: np.ndarray) -> int:
    try:
        return dtypes.from_numpy(array.dtype).onnx
    except TypeError:
        return helper.np_dtype_to_tensor_dtype(array.dtype)


def _has_body(node: Node) -> bool:
    return any(isinstance(v, onnx.GraphProto) for v in node.attributes.values())
