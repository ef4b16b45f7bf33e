"""Sampling an image where other tensors say: GridSample, RoiAlign, Col2Im; and determinants of small matrices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from gpu_shared.capabilities import DeviceCapabilities
from vkep.kernels.fastdiv import magic_fields, magic_params
from vkep.kernels.kernel import Kernel, KernelCall, Operand
from vkep.kernels.launch import Workspace, ceil_div, element_count, element_defines, element_type, grid, lanes

METHODS = ("nearest", "linear", "cubic")
PADDINGS = ("zeros", "border", "reflection")
#: matrices whose determinant one lane can be trusted with
LARGEST_MATRIX = 256


def _grid_defines(dtype: str, grid_dtype: str) -> dict[str, str]:
    kind = element_type(grid_dtype)
    extra = {"GRID_BFLOAT16": "1"} if kind.name == "bfloat16" else {"GRID_T": kind.glsl}
    return element_defines(dtype) | extra


def _index_words(dtype: str) -> str:
    if dtype not in ("int32", "int64"):
        raise ValueError(f"indices are {dtype!r}, expected int32 or int64")
    return "2" if dtype == "int64" else "1"


GRID_SAMPLE = Kernel(
    "grid_sample.comp",
    operands=(Operand("x"), Operand("grid"), Operand("y", writes=True)),
    params=(
        ("total", "uint"),
        *magic_fields("channels", "points"),
        ("size0", "uint"),
        ("size1", "uint"),
        ("size2", "uint"),
    ),
    spec={"RANK": 2, "METHOD": 1, "PADDING": 0, "ALIGN": 0},
    variants=(_grid_defines("float32", "float32"), _grid_defines("float16", "float16")),
)
ROI_ALIGN = Kernel(
    "roi_align.comp",
    operands=(Operand("x"), Operand("rois"), Operand("indices"), Operand("y", writes=True)),
    params=(
        *((name, "uint") for name in ("total", "channels", "height", "width", "batches", "out_height", "out_width")),
        ("sampling_ratio", "int"),
        ("spatial_scale", "float"),
        ("offset", "float"),
    ),
    spec={"MAXIMUM": 0},
    variants=({**element_defines("float32"), "INDEX_WORDS": "2"},),
)
MAX_ROI_POOL = Kernel(
    "max_roi_pool.comp",
    operands=(Operand("x"), Operand("rois"), Operand("y", writes=True)),
    params=(
        *((name, "uint") for name in ("total", "channels", "height", "width", "batches", "out_height", "out_width")),
        ("spatial_scale", "float"),
    ),
    variants=(element_defines("float32"),),
)
DETERMINANT = Kernel(
    "determinant.comp",
    operands=(Operand("x"), Operand("work", writes=True), Operand("y", writes=True)),
    params=(("total", "uint"), ("n", "uint")),
    variants=(element_defines("float32"),),
)


def grid_sample(
    shape: Sequence[int],
    points: Sequence[int],
    method: str,
    padding: str,
    align_corners: bool,
    dtype: str,
    grid_dtype: str,
    caps: DeviceCapabilities,
    x: Any,
    positions: Any,
    y: Any,
) -> list[KernelCall]:
    """ONNX GridSample: ``y`` [N, C, *points] from ``x`` of ``shape`` [N, C, *spatial], ``positions`` [N, *points, rank].

    Raises `ValueError` for other than 1 to 3 spatial axes, an unknown method or padding, float64, or empty images.
    """
    rank = len(shape) - 2
    if not 1 <= rank <= 3 or method not in METHODS or padding not in PADDINGS:
        raise ValueError(
            f"grid sample: {rank} spatial axes, {method!r}, {padding!r}; expected 1 to 3, {METHODS}, {PADDINGS}"
        )
    if "float64" in (dtype, grid_dtype):
        raise ValueError("grid sample: float64 has no kernel (it computes in float32)")
    count = math.prod(points)
    total = element_count("grid sample output", shape[0], shape[1], count)
    if not total:
        return []
    if not math.prod(shape):
        raise ValueError(f"grid sample: the input {tuple(shape)} is empty, the output is not")
    local = lanes(caps, total)
    sizes = [*shape[2:], 1, 1]
    return [
        GRID_SAMPLE.call(
            grid=grid(ceil_div(total, local)),
            operands={"x": x, "grid": positions, "y": y},
            params={
                "total": total,
                **magic_params("channels", shape[1]),
                **magic_params("points", count),
                "size0": sizes[0],
                "size1": sizes[1],
                "size2": sizes[2],
            },
            spec={
                "RANK": rank,
                "METHOD": METHODS.index(method),
                "PADDING": PADDINGS.index(padding),
                "ALIGN": int(align_corners),
            },
            defines=_grid_defines(dtype, grid_dtype),
            local_size=(local,),
        )
    ]


def roi_align(
    shape: Sequence[int],
    regions: int,
    out_size: tuple[int, int],
    sampling_ratio: int,
    spatial_scale: float,
    half_pixel: bool,
    maximum: bool,
    dtype: str,
    index_dtype: str,
    caps: DeviceCapabilities,
    x: Any,
    rois: Any,
    indices: Any,
    y: Any,
) -> list[KernelCall]:
    """ONNX RoiAlign: ``y`` [regions, C, *out_size] from ``x`` of ``shape`` [N, C, H, W] and ``rois`` [regions, 4]."""
    if dtype == "float64":
        raise ValueError("roi align: float64 has no kernel (it computes in float32)")
    batches, channels, height, width = shape
    total = element_count("roi align output", regions, channels, *out_size)
    if not total:
        return []
    local = lanes(caps, total)
    return [
        ROI_ALIGN.call(
            grid=grid(ceil_div(total, local)),
            operands={"x": x, "rois": rois, "indices": indices, "y": y},
            params={
                "total": total,
                "channels": channels,
                "height": height,
                "width": width,
                "batches": batches,
                "out_height": out_size[0],
                "out_width": out_size[1],
                "sampling_ratio": sampling_ratio,
                "spatial_scale": spatial_scale,
                "offset": 0.5 if half_pixel else 0.0,
            },
            spec={"MAXIMUM": int(maximum)},
            defines={**element_defines(dtype), "INDEX_WORDS": _index_words(index_dtype)},
            local_size=(local,),
        )
    ]


def max_roi_pool(
    shape: Sequence[int],
    regions: int,
    out_size: tuple[int, int],
    spatial_scale: float,
    dtype: str,
    caps: DeviceCapabilities,
    x: Any,
    rois: Any,
    y: Any,
) -> list[KernelCall]:
    """ONNX MaxRoiPool: ``y`` [regions, C, *out_size] from ``x`` of ``shape`` [N, C, H, W]; ``rois`` [regions, 5].

    Raises `ValueError` for a result of another size than one with elements, or an empty image.
    """
    batches, channels, height, width = shape
    if min(out_size) < 1:
        raise ValueError(f"max roi pool: pooled_shape is {out_size}, expected two positive sizes")
    total = element_count("max roi pool output", regions, channels, *out_size)
    element_count("max roi pool input", *shape)
    if not total:
        return []
    if not batches * height * width:
        raise ValueError(f"max roi pool: the input {tuple(shape)} is empty, the output is not")
    local = lanes(caps, total)
    return [
        MAX_ROI_POOL.call(
            grid=grid(ceil_div(total, local)),
            operands={"x": x, "rois": rois, "y": y},
            params={
                "total": total,
                "channels": channels,
                "height": height,
                "width": width,
                "batches": batches,
                "out_height": out_size[0],
                "out_width": out_size[1],
                "spatial_scale": spatial_scale,
            },
            defines=element_defines(dtype),
            local_size=(local,),
        )
    ]


def determinant(
    count: int, n: int, dtype: str, caps: DeviceCapabilities, x: Any, y: Any, workspace: Workspace
) -> list[KernelCall]:
    """``y`` [count]: determinants of ``x`` [count, n, n], by elimination with partial pivoting.

    Raises `ValueError` for matrices beyond `LARGEST_MATRIX`: each takes one lane.
    """
    if n > LARGEST_MATRIX:
        raise ValueError(f"determinant: {n} x {n} matrices, expected at most {LARGEST_MATRIX}")
    if not count:
        return []
    work = workspace.scratch("float64" if dtype == "float64" else "float32", (count, n, n))
    local = lanes(caps, count)
    return [
        DETERMINANT.call(
            grid=grid(ceil_div(count, local)),
            operands={"x": x, "work": work, "y": y},
            params={"total": count, "n": n},
            defines=element_defines(dtype),
            local_size=(local,),
            flops=count * n**3,
        )
    ]
