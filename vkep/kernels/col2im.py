"""Adding up overlapping windows: ONNX Col2Im, and the second half of ConvTranspose."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from gpu_shared.capabilities import DeviceCapabilities
from vkep.kernels.epilogue import Epilogue, call_arguments
from vkep.kernels.gather import magic_dims
from vkep.kernels.kernel import Kernel, KernelCall, Operand
from vkep.kernels.launch import ceil_div, element_count, element_defines, fields8, grid, lanes

_SPATIAL = 3


def _fields(*names: str, kind: str = "uint") -> tuple[tuple[str, str], ...]:
    return tuple((f"{name}{axis}", kind) for name in names for axis in range(_SPATIAL))


COL2IM = Kernel(
    "col2im.comp",
    operands=(Operand("x"), Operand("y", writes=True)),
    params=(
        ("total", "uint"),
        *fields8("dim", "mul", "shift"),
        *_fields("count", "kernel", "stride", "dilation"),
        *_fields("pad", kind="int"),
        ("y_batch", "uint"),
    ),
    variants=tuple(element_defines(t) for t in ("float32", "float16", "float64")),
)


def col2im(
    lead: tuple[int, int],
    out: Sequence[int],
    counts: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    begins: Sequence[int],
    dtype: str,
    caps: DeviceCapabilities,
    x: Any,
    y: Any,
    epilogue: Epilogue | None = None,
) -> list[KernelCall]:
    """``y`` [images, channels, *out] = sums of the windows of ``x`` [images, channels, *kernel, *counts].

    ``lead`` is (images, channels), ``counts`` the windows along each of at most three axes, ``begins`` the padding before
    the result. float16 is summed in float32. The epilogue sees ``row``, the channel, ``col``, the pixel, and ``o``, the flat
    index in a contiguous y. Raises `ValueError` for more axes.
    """
    if len(out) > _SPATIAL:
        raise ValueError(f"col2im: {len(out)} spatial axes, expected at most {_SPATIAL}")
    element_count("col2im columns", *lead, *kernel, *counts)
    total = element_count("col2im output", *lead, *out)
    if not total:
        return []
    local = lanes(caps, total)
    missing = _SPATIAL - len(out)
    ones, zeros = (1,) * missing, (0,) * missing
    sizes = {
        "count": (*ones, *counts),
        "kernel": (*ones, *kernel),
        "stride": (*ones, *strides),
        "dilation": (*ones, *dilations),
        "pad": (*zeros, *begins),
    }
    batch_stride = y.strides[0] if lead[0] > 1 and hasattr(y, "strides") else lead[1] * math.prod(out)
    return [
        COL2IM.call(
            grid=grid(ceil_div(total, local)),
            operands={"x": x, "y": y},
            params={
                "total": total,
                **magic_dims((*lead, *ones, *out)),
                **{f"{name}{axis}": value for name, values in sizes.items() for axis, value in enumerate(values)},
                "y_batch": batch_stride,
            },
            local_size=(local,),
            flops=math.prod((*lead, *kernel, *counts)),
            **call_arguments(epilogue, element_defines(dtype)),
        )
    ]
