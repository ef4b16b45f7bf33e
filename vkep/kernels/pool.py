"""Max, average and Lp pooling in one to three dimensions (``shaders/pool.comp``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpu_shared.capabilities import DeviceCapabilities
from vkep.kernels.fastdiv import magic_fields, magic_params
from vkep.kernels.kernel import Kernel, KernelCall, Operand
from vkep.kernels.launch import ceil_div, element_count, element_defines, element_type, grid, lanes, limit


def pool_defines(op: str, dtype: str, with_indices: bool = False) -> dict[str, str]:
    """The variant for an operation and an element type."""
    defines = element_defines(dtype) | {f"{op.upper()}_POOL": "1"}
    if op == "max":
        defines["LOWEST"] = limit(dtype, lowest=True)
        if element_type(dtype).kind == "float":
            defines["PROPAGATE_NAN"] = "1"
        if with_indices:
            defines["WITH_INDICES"] = "1"
    return defines


POOL = Kernel(
    "pool.comp",
    operands=(Operand("x"), Operand("y", writes=True), Operand("indices", writes=True)),
    params=(
        ("total", "uint"),
        ("depth", "uint"),
        ("height", "uint"),
        ("width", "uint"),
        *magic_fields("out_depth", "out_height", "out_width", "channels"),
        *((f"{name}_{axis}", "uint") for name in ("stride", "dilation") for axis in "dhw"),
        *((f"pad_{axis}", "int") for axis in "dhw"),
        *((f"pad_end_{axis}", "uint") for axis in "dhw"),
        ("y_image", "uint"),
        ("y_offset", "uint"),
        ("p", "float"),
    ),
    spec={"KERNEL_D": 1, "KERNEL_H": 1, "KERNEL_W": 1, "COUNT_INCLUDE_PAD": 0, "COLUMN_MAJOR": 0},
    variants=(
        *(pool_defines(op, t) for op in ("max", "average", "lp") for t in ("float32", "float16")),
        *(pool_defines("max", t, with_indices=True) for t in ("float32", "float16")),
        *(pool_defines("max", t) for t in ("int8", "uint8")),
    ),
)


def check_window(
    rank: int,
    out_spatial: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int] | None,
    dilations: Sequence[int] | None,
    pads: Sequence[int] | None,
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Strides, dilations and pads over ``rank`` spatial axes, filled in where they are None.

    Raises `ValueError` for another number of entries, or values that no window has.
    """
    strides, dilations = tuple(strides or (1,) * rank), tuple(dilations or (1,) * rank)
    pads = tuple(pads or (0,) * (2 * rank))
    lengths = (len(out_spatial), len(kernel), len(strides), len(dilations), len(pads))
    if lengths != (rank, rank, rank, rank, 2 * rank):
        raise ValueError(
            f"pool: out_spatial, kernel, strides, dilations and pads have {lengths} entries, "
            f"expected {(rank, rank, rank, rank, 2 * rank)} for {rank} spatial axes"
        )
    if min(*kernel, *strides, *dilations) < 1 or min(pads) < 0:
        raise ValueError(
            f"pool: kernel {tuple(kernel)}, strides {strides}, dilations {dilations} must be positive, "
            f"pads {pads} not negative"
        )
    return strides, dilations, pads


def pool(
    op: str,
    images: int,
    channels: int,
    spatial: Sequence[int],
    out_spatial: Sequence[int],
    kernel: Sequence[int],
    dtype: str,
    caps: DeviceCapabilities,
    x: Any,
    y: Any,
    *,
    strides: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    count_include_pad: bool = False,
    p: int = 2,
    indices: Any = None,
    column_major: bool = False,
    y_image_stride: int | None = None,
    y_offset: int = 0,
) -> list[KernelCall]:
    """Pool ``x`` [images, channels, *spatial] into ``y`` [images, channels, *out_spatial]; 1 to 3 spatial axes.

    ``op`` is "max", "average" or "lp" (of order ``p``). ``pads`` are begins then ends, as in ONNX; ``out_spatial`` is
    the caller's (``ceil_mode`` and ``auto_pad`` are in it). ``indices`` (max only) receives int64 positions in the flat
    input, with ``column_major`` as ONNX MaxPool's ``storage_order`` 1. Image n of ``y`` begins
    ``n * y_image_stride + y_offset`` elements after its address (contiguous by default). Max takes float32, float16,
    bfloat16 and 8- to 32-bit integers, the others only the floats. A NaN in a window is its maximum.

    Raises `ValueError` for arguments that do not fit together.
    """
    rank = len(spatial)
    if not 1 <= rank <= 3:
        raise ValueError(f"pool: {rank} spatial axes, expected 1 to 3")
    strides, dilations, pads = check_window(rank, out_spatial, kernel, strides, dilations, pads)
    kind = element_type(dtype)
    is_float = kind.glsl_compute == "float"
    if op not in ("max", "average", "lp"):
        raise ValueError(f"pool: operation is {op!r}, expected 'max', 'average' or 'lp'")
    if not is_float and (op != "max" or kind.itemsize == 8):
        raise ValueError(
            f"pool: {op} pooling of {dtype!r} has no kernel; floats (max: also 8- to 32-bit integers) have"
        )
    if indices is not None and op != "max":
        raise ValueError(f"pool: indices are an output of max pooling, not of {op!r}")
    element_count("pool input", images, channels, *spatial)
    total = element_count("pool output", images, channels, *out_spatial)
    if not total:
        return []
    ones, zeros = (1,) * (3 - rank), (0,) * (3 - rank)
    size, out_size, taps = (*ones, *spatial), (*ones, *out_spatial), (*ones, *kernel)
    begins, ends = (*zeros, *pads[:rank]), (*zeros, *pads[rank:])
    params: dict[str, int | float] = {"total": total, "p": float(p), "y_offset": y_offset}
    params |= dict(zip(("depth", "height", "width"), size, strict=True))
    for name, extent in zip(("out_depth", "out_height", "out_width"), out_size, strict=True):
        params |= magic_params(name, extent)
    params |= magic_params("channels", channels)
    for i, axis in enumerate("dhw"):
        params[f"stride_{axis}"] = (*ones, *strides)[i]
        params[f"dilation_{axis}"] = (*ones, *dilations)[i]
        params[f"pad_{axis}"] = begins[i]
        params[f"pad_end_{axis}"] = ends[i]
    params["y_image"] = total // images if y_image_stride is None else y_image_stride
    defines = pool_defines(op, dtype, indices is not None)
    local = lanes(caps, total)
    return [
        POOL.call(
            grid=grid(ceil_div(total, local)),
            operands={"x": x, "y": y, "indices": indices},
            params=params,
            spec={
                "KERNEL_D": taps[0],
                "KERNEL_H": taps[1],
                "KERNEL_W": taps[2],
                "COUNT_INCLUDE_PAD": int(count_include_pad),
                "COLUMN_MAJOR": int(column_major),
            },
            defines=defines,
            local_size=(local,),
            flops=total * taps[0] * taps[1] * taps[2],
        )
    ]
