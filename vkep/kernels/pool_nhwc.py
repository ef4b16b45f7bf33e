"""Max and average pooling in float16 with channels last (NHWC), for what lies so behind convolutions (``conv_last.py``).

The channels of a pixel lie side by side, so that a lane moves eight of them at a time, whatever the window.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpu_shared.capabilities import DeviceCapabilities
from vkep.kernels.fastdiv import magic_fields, magic_params
from vkep.kernels.kernel import Kernel, KernelCall, Operand
from vkep.kernels.launch import ceil_div, element_count, grid, lanes
from vkep.kernels.pool import check_window, pool_defines

#: channels a lane: 16 bytes
UNIT = 8
_OPS = ("max", "average")
POOL_LAST = Kernel(
    "pool_last.comp",
    operands=(Operand("x"), Operand("y", writes=True)),
    params=(
        *((name, "uint") for name in ("total", "height", "width")),
        *magic_fields("units", "out_width", "out_height"),
        *((name, "uint") for name in ("stride_h", "stride_w", "dilation_h", "dilation_w")),
        *((name, "int") for name in ("pad_h", "pad_w")),
        *((name, "uint") for name in ("pad_end_h", "pad_end_w")),
    ),
    spec={"KERNEL_H": 1, "KERNEL_W": 1, "COUNT_INCLUDE_PAD": 0, "ALIGNED": 1},
    variants=tuple(pool_defines(op, "float16") for op in _OPS),
)


def takes_channels_last(op: str, shape: Sequence[int], dtype: str) -> bool:
    """Whether `pool_last` computes ``op`` over x [n, c, h, w] of ``shape``."""
    return op in _OPS and dtype == "float16" and len(shape) == 4 and shape[1] % UNIT == 0 and 0 not in shape


def pool_last(
    op: str,
    shape: Sequence[int],
    out_spatial: Sequence[int],
    kernel: Sequence[int],
    caps: DeviceCapabilities,
    x: Any,
    y: Any,
    *,
    strides: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    count_include_pad: bool = False,
    alignment: int = 16,
) -> list[KernelCall]:
    """Pool x [n, h, w, c] into y [n, oh, ow, c], both float16 and dense, with the results of `vkep.kernels.pool.pool`.

    ``op`` is "max" or "average"; ``shape`` is [n, c, h, w], as ONNX counts, with whole units of eight channels and no
    dimension of 0; ``out_spatial`` (oh, ow) and the window are as there. ``alignment`` in bytes divides the addresses of x
    and y; below 16 elements move one by one.

    Raises `ValueError` for arguments that do not fit together, or that `takes_channels_last` says no to.
    """
    if not takes_channels_last(op, shape, "float16"):
        raise ValueError(
            f"pool: {op!r} over {tuple(shape)} has no kernel with channels last; 'max' and 'average' over "
            f"[n, c, h, w] of a multiple of {UNIT} channels, without dimensions of 0, have"
        )
    strides, dilations, pads = check_window(2, out_spatial, kernel, strides, dilations, pads)
    images, channels, height, width = shape
    element_count("pool input", *shape)
    total = element_count("pool output", images, channels, *out_spatial) // UNIT
    if not total:
        return []
    local = lanes(caps, total)
    return [
        POOL_LAST.call(
            grid=grid(ceil_div(total, local)),
            operands={"x": x, "y": y},
            params={
                "total": total,
                "height": height,
                "width": width,
                **magic_params("units", channels // UNIT),
                **magic_params("out_width", out_spatial[1]),
                **magic_params("out_height", out_spatial[0]),
                "stride_h": strides[0],
                "stride_w": strides[1],
                "dilation_h": dilations[0],
                "dilation_w": dilations[1],
                "pad_h": pads[0],
                "pad_w": pads[1],
                "pad_end_h": pads[2],
                "pad_end_w": pads[3],
            },
            spec={
                "KERNEL_H": kernel[0],
                "KERNEL_W": kernel[1],
                "COUNT_INCLUDE_PAD": int(count_include_pad),
                "ALIGNED": int(alignment % 16 == 0),
            },
            defines=pool_defines(op, "float16"),
            local_size=(local,),
            flops=UNIT * total * kernel[0] * kernel[1],
        )
    ]
