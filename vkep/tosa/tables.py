"""Functions of int8 integers as tables: a chain of elementwise operators between DequantizeLinear and QuantizeLinear.

The chain's result for each of the 256 integers is computed here, by evaluating the operations of the lowering;
`vkep.tosa.ops.quantized` converts it to TOSA's TABLE where a QuantizeLinear ends the chain.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from vkep.errors import Decline
from vkep.tosa.graph import Array, Op, Table, TosaBuilder, TosaTensor, Value

_ERF = np.vectorize(math.erf, otypes=[np.float64])
_NUMPY: Mapping[str, Callable[..., Any]] = {
    "abs": np.abs, "add": np.add, "ceil": np.ceil, "cos": np.cos, "equal": np.equal, "erf": _ERF, "exp": np.exp,
    "floor": np.floor, "greater": np.greater, "greater_equal": np.greater_equal, "log": np.log,
    "logical_and": np.logical_and, "logical_not": np.logical_not, "logical_or": np.logical_or,
    "maximum": np.maximum, "minimum": np.minimum, "mul": lambda x, y, _shift: x * y, "negate": lambda x, _a, _b: -x,
    "pow": np.power, "reciprocal": lambda x: 1 / x, "rsqrt": lambda x: 1 / np.sqrt(x), "select": np.where,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "sin": np.sin, "sub": np.subtract, "tanh": np.tanh,
}  # fmt: skip


def evaluate(ops: Sequence[Op], known: Mapping[Value, Array], wanted: Value) -> Array | None:
    """``wanted`` in float64, computed on the host; None where the operations are not all elementwise."""
    values = dict(known)

    def of(value: Value) -> Array:
        if value.array is not None:
            return value.array.astype(np.float64) if value.array.dtype.kind == "f" else value.array
        return values[value]

    with np.errstate(all="ignore"):
        for op in ops:
            if op.name == "clamp":
                low, high = (_number(op.attributes[k]) for k in ("min_val", "max_val"))
                values[op.result] = np.clip(of(op.operands[0]), low, high)
            elif op.name == "cast" and op.result.dtype.startswith("float"):
                values[op.result] = of(op.operands[0]).astype(np.float64)
            elif op.name == "cast" and op.result.dtype == "int32":
                values[op.result] = np.rint(of(op.operands[0]).astype(np.float64))
            elif op.name in _NUMPY:
                values[op.result] = _NUMPY[op.name](*(of(v) for v in op.operands))
            else:
                return None
    return values.get(wanted)


def _number(text: str) -> float:
    digits, kind = text.split(" : ")
    if not digits.startswith("0x"):
        return float(digits)
    bits, dtype = (np.uint32, np.float32) if kind == "f32" else (np.uint16, np.float16)
    return float(np.array(int(digits, 16), bits).view(dtype))


def with_table(
    function: Callable[..., Any], inputs: Sequence[TosaTensor | None], attributes: Mapping[str, Any], made: TosaTensor
) -> TosaTensor:
    """``made``, the result of an elementwise operator, with its table where every input is a function of one int8
    tensor."""
    if made.dtype != "float32" or made.table is not None or made.quantized is not None:
        return made
    ints: TosaTensor | None = None
    known: dict[Value, Array] = {}
    arguments: list[TosaTensor | None] = []
    b = TosaBuilder()
    for x in inputs:
        table = table_of(x) if x is not None else None
        if table is None:
            if x is not None and (x.array is None or x.size != 1):
                return made
            arguments.append(x)
            continue
        ints = ints or table.ints
        if table.ints.value is not ints.value or table.ints.perm != ints.perm:
            return made
        arguments.append(b.input("float32", (256,)))
        known[arguments[-1].value] = table.outputs  # type: ignore[union-attr]
    if ints is None or ints.shape != made.shape:
        return made
    try:
        result = function(b, *arguments, **attributes)
    except Decline:
        return made
    outputs = evaluate(b.ops, known, result.value)
    return made if outputs is None or outputs.shape != (256,) else replace(made, table=Table(ints, outputs))


def table_of(x: TosaTensor) -> Table | None:
    """The table of a float tensor that is a function of int8 integers, None for others."""
    if x.table is not None or x.quantized is None:
        return x.table
    q = x.quantized
    if q.axis >= 0 or q.ints.dtype != "int8":
        return None
    numbers = np.arange(-128, 128, dtype=np.float64) - q.zero
    return Table(q.ints, (numbers * float(np.asarray(q.scale).reshape(-1)[0])).astype(np.float32).astype(np.float64))
