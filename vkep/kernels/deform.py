"""Sampling the windows of a deformable convolution (ONNX DeformConv)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpu_shared.capabilities import DeviceCapabilities
from vkep.kernels.gather import magic_dims
from vkep.kernels.kernel import Kernel, KernelCall, Operand
from vkep.kernels.launch import ceil_div, element_count, element_defines, fields8, grid, lanes

DEFORM_COLUMNS = Kernel(
    "deform_columns.comp",
    operands=(Operand("x"), Operand("offset"), Operand("mask"), Operand("y", writes=True)),
    params=(
        *((name, "uint") for name in ("total", "height", "width", "offset_groups", "group_channels")),
        *((name, "uint") for name in ("stride_h", "stride_w", "dilation_h", "dilation_w")),
        ("pad_top", "int"),
        ("pad_left", "int"),
        *fields8("dim", "mul", "shift"),
    ),
    spec={"HAS_MASK": 0},
    variants=tuple(element_defines(t) for t in ("float32", "float16")),
)


def deform_columns(
    shape: Sequence[int],
    kernel: Sequence[int],
    out: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    begins: Sequence[int],
    offset_groups: int,
    dtype: str,
    caps: DeviceCapabilities,
    x: Any,
    offset: Any,
    mask: Any,
    y: Any,
) -> list[KernelCall]:
    """``y`` [n, channels, *kernel, *out]: bilinear samples of ``x`` (``shape`` [n, channels, height, width]).

    ``offset`` is [n, offset_groups * taps * 2, *out] in pixels, ``mask`` (or None) [n, offset_groups * taps, *out].
    Samples outside of x are zero. Raises `ValueError` where channels do not divide into ``offset_groups``.
    """
    images, channels, height, width = shape
    if offset_groups < 1 or channels % offset_groups:
        raise ValueError(f"deform: {channels} channels do not divide into {offset_groups} offset groups")
    element_count("deform input", *shape)
    total = element_count("deform columns", images, channels, *kernel, *out)
    if not total:
        return []
    local = lanes(caps, total)
    return [
        DEFORM_COLUMNS.call(
            grid=grid(ceil_div(total, local)),
            operands={"x": x, "offset": offset, "mask": mask, "y": y},
            params={
                "total": total,
                "height": height,
                "width": width,
                "offset_groups": offset_groups,
                "group_channels": channels // offset_groups,
                "stride_h": strides[0],
                "stride_w": strides[1],
                "dilation_h": dilations[0],
                "dilation_w": dilations[1],
                "pad_top": begins[0],
                "pad_left": begins[1],
                **magic_dims((images, channels, *kernel, *out)),
            },
            spec={"HAS_MASK": int(mask is not None)},
            defines=element_defines(dtype),
            local_size=(local,),
            flops=12 * total,
        )
    ]
