"""Resampling images: Resize and Upsample, GridSample, AffineGrid, RoiAlign, Col2Im, CenterCropPad; and Det."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from vkep.graph.resize import Resized, resolve_resize, resolve_roi
from vkep.graph.windows import Window, check_window
from vkep.ir.builder import Builder
from vkep.ir.tensor import Tensor
from vkep.kernels.resize import ResizeMode, resize
from vkep.kernels.sampling import determinant, grid_sample, max_roi_pool, roi_align
from vkep.ops.allowed import ARITHMETIC, SINGLE, every
from vkep.ops.convolution import sum_of_windows
from vkep.ops.registry import operator

_RESIZED = ("float32", "float16", "bfloat16", "int8", "int16", "int32", "uint8", "uint16", "uint32", "bool", "int64")


def _resize(b: Builder, x: Tensor, to: Resized, mode: ResizeMode, roi: Sequence[float] | None = None) -> Tensor:
    out = b.empty(x.dtype, to.shape)
    scales = [float(s) for s in to.scales]
    b.kernel(
        [b.contiguous(x)],
        [out],
        lambda t, i, o, _: resize(x.shape, to.shape, scales, mode, x.dtype.name, t.caps, i[0], o[0], t, roi),
        flops=2 * out.size,
    )
    return out


def _floats(b: Builder, tensor: Tensor, what: str) -> list[float]:
    return [float(v) for v in b.value(tensor, what).reshape(-1)]


@operator("Upsample", since=7, until=8, types={"T": every("Upsample", among=_RESIZED)})
def upsample_7(b: Builder, x: Tensor, *, scales: Sequence[float], mode: str = "nearest") -> Tensor:
    made = ResizeMode(mode=mode, coordinates="asymmetric", nearest="floor")
    return _resize(b, x, resolve_resize(x.shape, scales, None), made)


@operator("Upsample", since=9, until=9, types={"T": every("Upsample", among=_RESIZED)})
def upsample(b: Builder, x: Tensor, scales: Tensor, *, mode: str = "nearest") -> Tensor:
    return upsample_7(b, x, scales=_floats(b, scales, "scales"), mode=mode)


@operator("Resize", since=10, until=10, types={"T": every("Resize", among=_RESIZED)})
def resize_10(b: Builder, x: Tensor, scales: Tensor, *, mode: str = "nearest") -> Tensor:
    return upsample(b, x, scales, mode=mode)


@operator("Resize", since=11, until=17, types={"T1": every("Resize", "T1", _RESIZED)})
def resize_11(
    b: Builder,
    x: Tensor,
    roi: Tensor | None = None,
    scales: Tensor | None = None,
    sizes: Tensor | None = None,
    *,
    coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0,
    extrapolation_value: float = 0.0,
    mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
) -> Tensor:
    return resize_18(
        b, x, roi, scales, sizes, coordinate_transformation_mode=coordinate_transformation_mode,
        cubic_coeff_a=cubic_coeff_a, exclude_outside=exclude_outside, extrapolation_value=extrapolation_value,
        mode=mode, nearest_mode=nearest_mode,
    )  # fmt: skip


@operator("Resize", since=18, types={"T1": every("Resize", "T1", _RESIZED)})
def resize_18(
    b: Builder,
    x: Tensor,
    roi: Tensor | None = None,
    scales: Tensor | None = None,
    sizes: Tensor | None = None,
    *,
    antialias: int = 0,
    axes: Sequence[int] | None = None,
    coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0,
    extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch",
    mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
) -> Tensor:
    try:
        made = ResizeMode(
            mode, coordinate_transformation_mode, nearest_mode, cubic_coeff_a, bool(exclude_outside), bool(antialias),
            extrapolation_value,
        )  # fmt: skip
    except ValueError as error:
        b.decline(str(error))
    lengths = b.ints(sizes, "sizes") if sizes is not None and sizes.size else None
    factors = _floats(b, scales, "scales") if scales is not None and lengths is None else None
    to = resolve_resize(x.shape, factors, lengths, axes, keep_aspect_ratio_policy)
    box = None
    if coordinate_transformation_mode == "tf_crop_and_resize":
        if roi is None:
            b.decline("tf_crop_and_resize without a roi")
        box = resolve_roi(x.rank, _floats(b, roi, "roi"), axes)
    return _resize(b, x, to, made, box)


@operator(
    "GridSample", until=19, types={"T1": every("GridSample", "T1", SINGLE), "T2": every("GridSample", "T2", SINGLE)}
)
def grid_sample_16(
    b: Builder, x: Tensor, grid: Tensor, *, align_corners: int = 0, mode: str = "bilinear", padding_mode: str = "zeros"
) -> Tensor:
    return _grid_sample(b, x, grid, align_corners, mode, padding_mode)


@operator(
    "GridSample", since=20, types={"T1": every("GridSample", "T1", SINGLE), "T2": every("GridSample", "T2", SINGLE)}
)
def grid_sample_(
    b: Builder, x: Tensor, grid: Tensor, *, align_corners: int = 0, mode: str = "linear", padding_mode: str = "zeros"
) -> Tensor:
    return _grid_sample(b, x, grid, align_corners, mode, padding_mode)


def _grid_sample(b: Builder, x: Tensor, grid: Tensor, align_corners: int, mode: str, padding_mode: str) -> Tensor:
    method = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    points = grid.shape[1:-1]
    out = b.empty(x.dtype, [*x.shape[:2], *points])
    b.kernel(
        [b.contiguous(x), b.contiguous(grid)],
        [out],
        lambda t, i, o, _: grid_sample(
            x.shape, points, method, padding_mode, bool(align_corners), x.dtype.name, grid.dtype.name, t.caps,
            i[0], i[1], o[0],
        ),
    )  # fmt: skip
    return out


@operator("AffineGrid", types={"T1": every("AffineGrid", "T1", SINGLE), "T2": ("int64",)})
def affine_grid(b: Builder, theta: Tensor, size: Tensor, *, align_corners: int = 0) -> Tensor:
    batch, _, *spatial = b.ints(size, "size") or [0, 0]
    rank = len(spatial)
    total = b.expr("same", b.reshape(theta.slice(2, rank, 1), [batch, *[1] * rank, rank]))
    for column, axis in enumerate(reversed(range(rank))):  # theta's columns are x first, the last axis
        length = spatial[axis]
        if align_corners:
            places = np.linspace(-1.0, 1.0, length) if length > 1 else np.zeros(length)
        else:
            places = (2 * np.arange(length) + 1) / max(length, 1) - 1
        place = b.constant(places.astype(np.float32).reshape([length, *[1] * (rank - axis)]))
        factor = b.reshape(theta.slice(2, column, 1), [batch, *[1] * rank, rank])
        total = b.expr("({2} + {0} * {1})", factor, place, total)
    return b.store(total, theta.dtype, shape=[batch, *spatial, rank])


def _roi_align(
    b: Builder, x: Tensor, rois: Tensor, indices: Tensor, half_pixel: bool, mode: str, height: int, width: int,
    sampling_ratio: int, spatial_scale: float,
) -> Tensor:  # fmt: skip
    if x.rank != 4 or mode not in ("avg", "max"):
        b.decline(f"rank {x.rank} and mode {mode!r}, expected rank 4 and 'avg' or 'max'")
    out = b.empty(x.dtype, [rois.shape[0], x.shape[1], height, width])
    b.kernel(
        [b.contiguous(t) for t in (x, rois, indices)],
        [out],
        lambda t, i, o, _: roi_align(
            x.shape, rois.shape[0], (height, width), sampling_ratio, spatial_scale, half_pixel, mode == "max",
            x.dtype.name, indices.dtype.name, t.caps, i[0], i[1], i[2], o[0],
        ),
    )  # fmt: skip
    return out


@operator("RoiAlign", since=10, until=15, types={"T1": every("RoiAlign", "T1", SINGLE), "T2": ("int64",)})
def roi_align_10(
    b: Builder, x: Tensor, rois: Tensor, batch_indices: Tensor, *, mode: str = "avg", output_height: int = 1,
    output_width: int = 1, sampling_ratio: int = 0, spatial_scale: float = 1.0,
) -> Tensor:  # fmt: skip
    return _roi_align(
        b, x, rois, batch_indices, False, mode, output_height, output_width, sampling_ratio, spatial_scale
    )


@operator("RoiAlign", since=16, types={"T1": every("RoiAlign", "T1", SINGLE), "T2": ("int64",)})
def roi_align_16(
    b: Builder, x: Tensor, rois: Tensor, batch_indices: Tensor, *, coordinate_transformation_mode: str = "half_pixel",
    mode: str = "avg", output_height: int = 1, output_width: int = 1, sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
) -> Tensor:  # fmt: skip
    half = coordinate_transformation_mode == "half_pixel"
    return _roi_align(b, x, rois, batch_indices, half, mode, output_height, output_width, sampling_ratio, spatial_scale)


@operator("MaxRoiPool", types={"T": every("MaxRoiPool", among=(*SINGLE, "float64"))})
def max_roi_pool_(
    b: Builder, x: Tensor, rois: Tensor, *, pooled_shape: Sequence[int], spatial_scale: float = 1.0
) -> Tensor:
    if x.rank != 4 or rois.rank != 2 or rois.shape[1] != 5 or len(pooled_shape) != 2:
        b.decline(f"input {x.shape}, regions {rois.shape} and pooled_shape {list(pooled_shape)}; expected images [N, C, H, W], "
                  "regions [R, 5] and two sizes")  # fmt: skip
    size = (pooled_shape[0], pooled_shape[1])
    out = b.empty(x.dtype, [rois.shape[0], x.shape[1], *size])
    b.kernel(
        [b.contiguous(x), b.contiguous(rois)],
        [out],
        lambda t, i, o, _: max_roi_pool(
            x.shape, rois.shape[0], size, spatial_scale, x.dtype.name, t.caps, i[0], i[1], o[0]
        ),
    )
    return out


@operator("Col2Im", types={"T": every("Col2Im", among=ARITHMETIC)})
def col2im_(
    b: Builder, x: Tensor, image_shape: Tensor, block_shape: Tensor, *, dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None, strides: Sequence[int] | None = None,
) -> Tensor:  # fmt: skip
    image, block = b.ints(image_shape, "image_shape") or [], b.ints(block_shape, "block_shape") or []
    window = Window(
        kernel=tuple(block),
        strides=tuple(strides or (1,) * len(image)),
        dilations=tuple(dilations or (1,) * len(image)),
        pads=tuple(pads or (0,) * 2 * len(image)),
        out=tuple(image),
    )
    rank = len(image)
    check_window(
        rank, window.pads, kernel_shape=block, strides=window.strides, dilations=window.dilations, output_shape=image
    )
    counts = [
        (image[k] + window.pads[k] + window.pads[rank + k] - window.dilations[k] * (block[k] - 1) - 1)
        // window.strides[k]
        + 1
        for k in range(rank)
    ]
    if min(counts) < 1 or x.rank != 3 or x.shape[2] != math.prod(counts):
        b.decline(f"blocks {block} lie at {counts} places of the image {image}; the columns have shape {x.shape}")
    return sum_of_windows(b, x, (x.shape[0], x.shape[1] // math.prod(block)), counts, window)


@operator("Det", types={"T": every("Det", among=(*SINGLE, "float64"))})
def det(b: Builder, x: Tensor) -> Tensor:
    if x.rank < 2 or x.shape[-1] != x.shape[-2]:
        b.decline(f"shape {x.shape}, expected square matrices")
    n = x.shape[-1]
    out = b.empty(x.dtype, x.shape[:-2])
    b.kernel([b.contiguous(x)], [out], lambda t, i, o, _: determinant(out.size, n, x.dtype.name, t.caps, i[0], o[0], t))
    return out
