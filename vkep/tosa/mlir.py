"""A TOSA graph as MLIR text (the ``tosa`` dialect in generic form), which the model converter reads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vkep.tosa.graph import MLIR_TYPES, Op, Value


def to_mlir(ops: Sequence[Op], inputs: Sequence[Value], outputs: Sequence[Value]) -> str:
    """Text of a module with one function. Operations that no output needs are left out."""
    names: dict[Value, str] = {value: f"%arg{i}" for i, value in enumerate(inputs)}
    lines = []
    for op in needed(ops, outputs):
        for operand in op.operands:
            if operand not in names:
                lines.append(_constant(operand, names))
        made = f"%v{len(names)}"
        for i, result in enumerate(op.results):
            names[result] = made if len(op.results) == 1 else f"{made}#{i}"
        attributes = ", ".join(f"{key} = {text}" for key, text in op.attributes.items())
        operands = ", ".join(names[v] for v in op.operands)
        types = ", ".join(type_of(v) for v in op.operands)
        properties = f" <{{{attributes}}}>" if attributes else ""
        target, result_types = made, type_of(op.result)
        if len(op.results) > 1:
            target, result_types = f"{made}:{len(op.results)}", f"({', '.join(type_of(r) for r in op.results)})"
        lines.append(f'{target} = "tosa.{op.name}"({operands}){properties} : ({types}) -> {result_types}')
    for value in outputs:
        if value not in names:
            lines.append(_constant(value, names))
    arguments = ", ".join(f"{names[v]}: {type_of(v)}" for v in inputs)
    results = ", ".join(type_of(v) for v in outputs)
    lines.append(f"return {', '.join(names[v] for v in outputs)} : {results}")
    body = "\n".join("    " + line for line in lines)
    return f"module {{\n  func.func @main({arguments}) -> ({results}) {{\n{body}\n  }}\n}}\n"


def needed(ops: Sequence[Op], outputs: Sequence[Value]) -> list[Op]:
    """The operations that ``outputs`` depend on, in order."""
    wanted = set(outputs)
    kept = []
    for op in reversed(ops):
        if wanted.intersection(op.results):
            wanted.update(op.operands)
            kept.append(op)
    return kept[::-1]


def type_of(value: Value) -> str:
    """The type of a value in MLIR's notation."""
    if value.is_shape:
        return f"!tosa.shape<{len(value.array) if value.array is not None else 0}>"
    return "tensor<" + "".join(f"{d}x" for d in value.shape) + MLIR_TYPES[value.dtype] + ">"


def _constant(value: Value, names: dict[Value, str]) -> str:
    if value.array is None:
        raise AssertionError(f"a value {type_of(value)} is used before it is made")
    names[value] = f"%v{len(names)}"
    if value.is_shape:
        sizes = ", ".join(str(int(s)) for s in value.array)
        content = (
            f"dense<[{sizes}]> : tensor<{len(value.array)}xindex>" if len(value.array) else "dense<> : tensor<0xindex>"
        )
        return f'{names[value]} = "tosa.const_shape"() <{{values = {content}}}> : () -> {type_of(value)}'
    return f'{names[value]} = "tosa.const"() <{{values = {_dense(value)} : {type_of(value)}}}> : () -> {type_of(value)}'


def _dense(value: Value) -> str:
    assert value.array is not None
    array = np.ascontiguousarray(value.array)
    if value.dtype == "bool":
        if array.size == 1:
            return f"dense<{'true' if array.reshape(-1)[0] else 'false'}>"
        return f"dense<{_nested(array)}>"
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    return f'dense<"0x{array.tobytes().hex().upper()}">'


def _nested(array: np.ndarray) -> str:
    if array.ndim == 0:
        return "true" if array else "false"
    return "[" + ", ".join(_nested(part) for part in array) + "]"
