"""Which element types a schema allows, so that a declaration takes all that its kernels can."""

from __future__ import annotations

from collections.abc import Collection

from vkep.dtypes import DTYPES
from vkep.ops.registry import onnx_history

#: floats that kernels compute in float32
SINGLE = ("float32", "float16", "bfloat16")
BYTES = ("int8", "uint8")
FLOATING = (*SINGLE, "float64")
SIGNED = ("int8", "int16", "int32", "int64")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
ARITHMETIC = (*FLOATING, *SIGNED, *UNSIGNED)


def every(
    op_type: str, constraint: str = "T", among: Collection[str] | None = None, domain: str = ""
) -> tuple[str, ...]:
    """The element types that any version of an operator's schema allows for a type constraint.

    ``among`` keeps those that the kernels take; None keeps all that a buffer can hold, which movement needs.
    """
    allowed = {
        name
        for schema in onnx_history(op_type, domain)
        for c in schema.type_constraints
        if c.type_param_str == constraint
        for name in c.allowed_type_strs
    }
    return tuple(
        d.name for d in DTYPES.values() if f"tensor({d.onnx_name})" in allowed and (among is None or d.name in among)
    )
