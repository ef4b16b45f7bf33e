"""Evaluates a pointwise expression on the host, by the numpy functions of its operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vkep.ir.expr import Checked, Const, Expr, Leaf, leaves, remaining
from vkep.ir.meaning import NUMPY, converted
from vkep.ir.pointwise_ops import OPERATIONS
from vkep.kernels.problem import NoReference

Array = NDArray[Any]


def evaluate(
    expr: Expr,
    value_of: Callable[[Leaf], Array],
    on_check: Callable[[Checked, Array], None] = lambda node, holds: None,
    *,
    wide: bool = False,
) -> Array:
    """The values of an expression. ``value_of`` returns the elements of a leaf, of its tensor's element type or of the numpy
    type of its GLSL type; arrays broadcast. ``on_check`` is called with each check and the bools that it checks.

    The result has the numpy type of the expression's GLSL type. GLSL's float is float32; it is float64 where ``value_of``
    returns a float64 array for a leaf of that type, or with ``wide``; then only constants are rounded to float32.

    Raises `NoReference` for an operation that is GLSL text, which has no meaning on the host.
    """
    values: dict[int, Array] = {id(leaf): _elements(leaf, value_of(leaf)) for leaf in leaves(expr)}
    wide = wide or any(leaf.ctype == "float" and values[id(leaf)].dtype == np.float64 for leaf in leaves(expr))
    types = {**NUMPY, "float": np.dtype(np.float64)} if wide else NUMPY
    with np.errstate(all="ignore"):
        for leaf in leaves(expr):
            values[id(leaf)] = values[id(leaf)].astype(types[leaf.ctype], copy=False)
        for node in remaining(expr, values):
            values[id(node)] = _value(node, [values[id(a)] for a in node.args], types, on_check)
    return values[id(expr)]


def _value(
    node: Expr, args: list[Array], types: dict[str, np.dtype], on_check: Callable[[Checked, Array], None]
) -> Array:
    if isinstance(node, Checked):
        on_check(node, args[1])
        return args[0]
    if isinstance(node, Const):
        return np.asarray(node.value, NUMPY[node.ctype]).astype(types[node.ctype])
    operation = OPERATIONS.get(node.op)
    if operation is None:
        raise NoReference(f"the expression {node.op!r} is GLSL text, which has no meaning on the host")
    if node.ctype not in types:
        raise NoReference(f"the expression {node.op!r} has type {node.ctype}, which has no meaning on the host")
    result = np.asarray(operation.numpy(*args))
    if operation.signature.endswith("*"):
        return converted(result, types[node.ctype])
    return result.astype(types[node.ctype], copy=False)


def _elements(leaf: Leaf, values: Array) -> Array:
    """8-bit and 4-bit floats as their codes."""
    bits = leaf.tensor is not None and leaf.tensor.dtype.kind == "bits"
    return values.view(np.uint8) if bits and values.dtype.itemsize == 1 else values
