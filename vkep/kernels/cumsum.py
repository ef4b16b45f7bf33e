"""Running sums and products along the middle of a tensor viewed as [outer, axis, inner] (``shaders/cumsum.comp``)."""

from __future__ import annotations

from typing import Any

from gpu_shared.capabilities import DeviceCapabilities
from vkep.kernels.fastdiv import magic_fields, magic_params
from vkep.kernels.kernel import Kernel, KernelCall, Operand
from vkep.kernels.launch import ceil_div, element_count, element_defines, grid, share_columns

CUMSUM = Kernel(
    "cumsum.comp",
    operands=(Operand("x"), Operand("y", writes=True)),
    params=(("columns", "uint"), ("axis", "uint"), *magic_fields("inner"), ("segment", "uint")),
    spec={"SPLIT": 1, "EXCLUSIVE": 0, "REVERSE": 0},
    variants=tuple(map(element_defines, ("float32", "float16", "int32", "int64"))),
)


def cumsum(
    outer: int,
    axis: int,
    inner: int,
    dtype: str,
    caps: DeviceCapabilities,
    x: Any,
    y: Any,
    *,
    exclusive: bool = False,
    reverse: bool = False,
    product: bool = False,
) -> list[KernelCall]:
    """ONNX CumSum (``product``: CumProd) over the middle of [outer, axis, inner]; float16 accumulates in float32."""
    if not element_count("cumsum input", outer, axis, inner):
        return []
    share = share_columns(outer * inner, axis, inner, caps, shuffles=False)
    return [
        CUMSUM.call(
            grid=grid(share.groups),
            operands={"x": x, "y": y},
            params={
                "columns": outer * inner,
                "axis": axis,
                **magic_params("inner", inner),
                "segment": ceil_div(axis, share.split),
            },
            spec={"SPLIT": share.split, "EXCLUSIVE": int(exclusive), "REVERSE": int(reverse)},
            defines=element_defines(dtype) | ({"PRODUCT": "1"} if product else {}),
            local_size=(share.local,),
            flops=outer * axis * inner,
        )
    ]
