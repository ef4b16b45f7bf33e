"""ArgMax and ArgMin over the middle of a tensor viewed as [outer, axis, inner] (``shaders/argreduce.comp``)."""

from __future__ import annotations

from typing import Any

from gpu_shared.capabilities import DeviceCapabilities
from vkep.kernels.fastdiv import magic_fields, magic_params
from vkep.kernels.kernel import Kernel, KernelCall, Operand
from vkep.kernels.launch import element_count, element_defines, grid, key_defines, share_columns

ARGREDUCE = Kernel(
    "argreduce.comp",
    operands=(Operand("x"), Operand("y", writes=True)),
    params=(("columns", "uint"), ("axis", "uint"), *magic_fields("inner")),
    spec={"SPLIT": 1, "ACROSS": 0, "MAXIMUM": 1, "LAST": 0},
    variants=tuple(element_defines(t) | key_defines(t) for t in ("float32", "float16", "int32", "int64", "uint8")),
)


def argreduce(
    op: str,
    outer: int,
    axis: int,
    inner: int,
    dtype: str,
    caps: DeviceCapabilities,
    x: Any,
    y: Any,
    select_last_index: bool = False,
) -> list[KernelCall]:
    """``y`` int64 [outer, inner] = index of the greatest (``op`` "max") or least ("min") of ``x`` [outer, axis, inner].

    Among equals the first, or with ``select_last_index`` the last; a NaN wins over every number, as in numpy. Raises
    `ValueError` for another ``op``, float64, or an empty axis with a non-empty output.
    """
    if op not in ("max", "min"):
        raise ValueError(f"argreduce: operation is {op!r}, expected 'max' or 'min'")
    element_count("argreduce input", outer, axis, inner)
    if not outer * inner:
        return []
    if not axis:
        raise ValueError(f"arg{op}: the axis is empty (shape [{outer}, 0, {inner}]), expected at least one element")
    share = share_columns(outer * inner, axis, inner, caps, shuffles=False)
    return [
        ARGREDUCE.call(
            grid=grid(share.groups),
            operands={"x": x, "y": y},
            params={"columns": outer * inner, "axis": axis, **magic_params("inner", inner)},
            spec={**share.spec, "MAXIMUM": int(op == "max"), "LAST": int(select_last_index)},
            defines=element_defines(dtype) | key_defines(dtype),
            local_size=(share.local,),
            flops=outer * axis * inner,
        )
    ]
