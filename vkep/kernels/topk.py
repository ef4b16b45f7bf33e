"""TopK along the middle of a tensor viewed as [outer, axis, inner] (``shaders/topk.comp``)."""

from __future__ import annotations

from typing import Any

from gpu_shared.capabilities import DeviceCapabilities
from vkep.kernels.fastdiv import magic_fields, magic_params
from vkep.kernels.kernel import Kernel, KernelCall, Operand
from vkep.kernels.launch import ceil_div, element_count, element_defines, grid, key_defines, lanes, share_columns

_TYPES = ("float32", "float16", "int32", "int64", "uint8")

TOPK = Kernel(
    "topk.comp",
    operands=(Operand("x"), Operand("values", writes=True), Operand("indices", writes=True)),
    params=(("columns", "uint"), *magic_fields("axis", "inner"), ("k", "uint")),
    spec={"SPLIT": 1, "ACROSS": 0, "LARGEST": 1},
    variants=tuple(element_defines(t) | key_defines(t) | rank for t in _TYPES for rank in ({}, {"RANK": "1"})),
)


def topk(
    outer: int,
    axis: int,
    inner: int,
    k: int,
    dtype: str,
    caps: DeviceCapabilities,
    x: Any,
    values: Any,
    indices: Any,
    *,
    largest: bool = True,
) -> list[KernelCall]:
    """``values`` (of ``dtype``) and ``indices`` (int64), both [outer, k, inner]: the k greatest (least) elements of the
    middle of ``x``, in order; equal ones by lower index first; NaN counts as the greatest.

    Work is ``axis * k`` or ``axis**2`` comparisons a column. Raises `ValueError` unless ``0 <= k <= axis``.
    """
    if not 0 <= k <= axis:
        raise ValueError(f"topk: k is {k}, expected 0 to {axis}, the axis' length")
    total = element_count("topk input", outer, axis, inner)
    if not outer * inner * k:
        return []
    columns = outer * inner
    operands = {"x": x, "values": values, "indices": indices}
    params = {"columns": columns, **magic_params("axis", axis), **magic_params("inner", inner), "k": k}
    defines = element_defines(dtype) | key_defines(dtype)
    if k * 8 > axis:  # each lane ranks one element: as many comparisons, but no rounds
        local = lanes(caps, total)
        return [
            TOPK.call(
                grid=grid(ceil_div(total, local)),
                operands=operands,
                params=params,
                spec={"LARGEST": int(largest)},
                defines=defines | {"RANK": "1"},
                local_size=(local,),
                flops=total * axis,
            )
        ]
    share = share_columns(columns, axis, inner, caps, shuffles=False)
    return [
        TOPK.call(
            grid=grid(share.groups),
            operands=operands,
            params=params,
            spec={**share.spec, "LARGEST": int(largest)},
            defines=defines,
            local_size=(share.local,),
            flops=total * k,
        )
    ]
