"""Resampling images: Resize and Upsample, GridSample, AffineGrid, RoiAlign, MaxRoiPool, Col2Im; and Det."""

from __future__ import annotations

import math
from collections.abc import Sequence

from vkep.graph.attributes import ResizeAttributes
from vkep.graph.resize import Resized, resolve_resize, resolve_roi
from vkep.graph.windows import Window, check_window
from vkep.ir import algebra as fn
from vkep.ir.builder import Builder
from vkep.ir.tensor import Tensor
from vkep.kernels.images.resize import ResizeMode, ResizeProblem
from vkep.kernels.images.sampling import CropProblem, GridSampleProblem, MaxRoiPoolProblem, RoiAlignProblem
from vkep.ops.allowed import ARITHMETIC, FLOATING, SINGLE, every
from vkep.ops.convolution import sum_of_windows
from vkep.ops.generators import positions
from vkep.ops.microsoft import MICROSOFT
from vkep.ops.registry import FLOATS, operator
from vkep.sizes import largest

_RESIZED = (
    "float32", "float16", "bfloat16", "int8", "int16", "int32", "uint8", "uint16", "uint32", "bool", "int64",
    "uint64", "float64",
)  # fmt: skip

#: what GridSample takes; of integers the nearest alone
_SAMPLED = (*FLOATING, "int8", "int16", "int32", "uint8", "uint16", "uint32", "bool")


def _resize(b: Builder, x: Tensor, to: Resized, mode: ResizeMode, roi: tuple[float, ...] | None = None) -> Tensor:
    problem = ResizeProblem(x.shape, to.shape, to.scales, mode, x.dtype.name, roi)
    return b.result(problem, x) if problem.changed else x


def _floats(b: Builder, tensor: Tensor, what: str) -> list[float]:
    return [float(v) for v in b.value(tensor, what).reshape(-1)]


@operator("Upsample", since=7, until=8, types={"T": every("Upsample", among=_RESIZED)})
def upsample_7(b: Builder, x: Tensor, *, scales: Sequence[float], mode: str = "nearest") -> Tensor:
    made = ResizeMode(mode=mode, coordinates="asymmetric", nearest="outwards")
    return _resize(b, x, resolve_resize(x.shape, scales, None), made)


@operator("Upsample", since=9, until=9, types={"T": every("Upsample", among=_RESIZED)})
def upsample(b: Builder, x: Tensor, scales: Tensor, *, mode: str = "nearest") -> Tensor:
    return upsample_7(b, x, scales=_floats(b, scales, "scales"), mode=mode)


@operator("Resize", since=10, until=10, types={"T": every("Resize", among=_RESIZED)})
def resize_10(b: Builder, x: Tensor, scales: Tensor, *, mode: str = "nearest") -> Tensor:
    return upsample(b, x, scales, mode=mode)


@operator("Resize", since=11, types={"T1": every("Resize", "T1", _RESIZED)})
def resize(
    b: Builder,
    x: Tensor,
    roi: Tensor | None = None,
    scales: Tensor | None = None,
    sizes: Tensor | None = None,
    *,
    a: ResizeAttributes,
) -> Tensor:
    made = ResizeMode(
        a.mode, a.coordinate_transformation_mode, a.nearest_mode, a.cubic_coeff_a, bool(a.exclude_outside), bool(a.antialias),
        a.extrapolation_value,
    )  # fmt: skip
    if a.antialias and a.mode == "nearest":
        b.invalid("antialias with mode 'nearest'; expected 'linear' or 'cubic'")
    if a.exclude_outside and not (a.mode == "cubic" or a.antialias):
        b.invalid(f"exclude_outside with mode {a.mode!r}; expected 'cubic', or 'linear' with antialias")
    lengths = b.ints(sizes, "sizes") if sizes is not None and sizes.size else None
    factors = _floats(b, scales, "scales") if scales is not None and scales.size else None
    to = resolve_resize(x.shape, factors, lengths, a.axes, a.keep_aspect_ratio_policy)
    box = None
    if a.coordinate_transformation_mode == "tf_crop_and_resize":
        if roi is not None:  # without one it is the whole image, as in ONNX Runtime; ONNX leaves it open
            box = resolve_roi(x.rank, _floats(b, roi, "roi"), a.axes)
        else:
            box = resolve_roi(x.rank, [0.0] * x.rank + [1.0] * x.rank, None)
    return _resize(b, x, to, made, box)


@operator(
    "GridSample", until=19, types={"T1": every("GridSample", "T1", _SAMPLED), "T2": every("GridSample", "T2", FLOATING)}
)
def grid_sample_16(
    b: Builder, x: Tensor, grid: Tensor, *, align_corners: int = 0, mode: str = "bilinear", padding_mode: str = "zeros"
) -> Tensor:
    return _grid_sample(b, x, grid, align_corners, mode, padding_mode)


@operator(
    "GridSample", since=20, types={"T1": every("GridSample", "T1", _SAMPLED), "T2": every("GridSample", "T2", FLOATING)}
)
def grid_sample_(
    b: Builder, x: Tensor, grid: Tensor, *, align_corners: int = 0, mode: str = "linear", padding_mode: str = "zeros"
) -> Tensor:
    return _grid_sample(b, x, grid, align_corners, mode, padding_mode)


def _grid_sample(b: Builder, x: Tensor, grid: Tensor, align_corners: int, mode: str, padding_mode: str) -> Tensor:
    method = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    points, types = grid.shape[1:-1], (x.dtype.name, grid.dtype.name)
    problem = GridSampleProblem(x.shape, points, method, padding_mode, bool(align_corners), *types)
    return b.result(problem, x, grid)


@operator("AffineGrid", types={"T1": every("AffineGrid", "T1", FLOATING), "T2": ("int64",)})
def affine_grid(b: Builder, theta: Tensor, size: Tensor, *, align_corners: int = 0) -> Tensor:
    sizes = b.ints(size, "size") or []
    rank = len(sizes) - 2
    if rank not in (2, 3) or theta.shape != (sizes[0], rank, rank + 1) or any(n < 1 for n in sizes):
        b.invalid(f"matrices {list(theta.shape)} for images of size {sizes}; expected [n, 2, 3] for [n, c, h, w] or "
                  "[n, 3, 4] for [n, c, d, h, w]")  # fmt: skip
    batch, _, *spatial = sizes
    total = b.expr("same", b.reshape(theta.slice(2, rank, 1), [batch, *[1] * rank, rank]))
    wide = "double" if theta.dtype.name == "float64" else "float"
    for column, axis in enumerate(reversed(range(rank))):  # theta's columns have x first, the last axis
        length = spatial[axis]
        steps = (
            length - 1 if align_corners else length
        )  # between the first place and the last, or between the image's edges
        place = b.reshape(positions(b, length), [length, *[1] * (rank - axis)])
        factor = b.reshape(theta.slice(2, column, 1), [batch, *[1] * rank, rank])
        [by], [at, last, most] = b.reads(factor), b.reads(place, length - 1, largest(steps, 1))
        total = total + by * fn.exact_divide(fn.cast(at + at - last, wide), fn.cast(most, wide))
    return b.store(total, theta.dtype, shape=[batch, *spatial, rank])


@operator("RoiAlign", since=10, types={"T1": every("RoiAlign", "T1", FLOATING), "T2": ("int64",)})
def roi_align(
    b: Builder, x: Tensor, rois: Tensor, batch_indices: Tensor, *, opset: int,
    coordinate_transformation_mode: str = "half_pixel", mode: str = "avg", output_height: int = 1, output_width: int = 1,
    sampling_ratio: int = 0, spatial_scale: float = 1.0,
) -> Tensor:  # fmt: skip
    """Before version 16 there is no ``coordinate_transformation_mode``; coordinates are as for "output_half_pixel"."""
    if coordinate_transformation_mode not in ("half_pixel", "output_half_pixel"):
        b.invalid(
            f"coordinate_transformation_mode is {coordinate_transformation_mode!r}, expected half_pixel or output_half_pixel"
        )
    if sampling_ratio < 0:
        b.invalid(f"sampling_ratio is {sampling_ratio}, expected 0 or more")
    if mode not in ("avg", "max"):
        b.invalid(f"mode is {mode!r}, expected 'avg' or 'max'")
    half_pixel = opset >= 16 and coordinate_transformation_mode == "half_pixel"
    problem = RoiAlignProblem(
        x.shape, math.prod(rois.shape[:1]), (output_height, output_width), x.dtype.name, spatial_scale,
        batch_indices.dtype.name, sampling_ratio, half_pixel, mode == "max",
    )  # fmt: skip
    return b.result(problem, x, rois, batch_indices)


@operator("MaxRoiPool", types={"T": every("MaxRoiPool", among=(*SINGLE, "float64"))})
def max_roi_pool_(
    b: Builder, x: Tensor, rois: Tensor, *, pooled_shape: Sequence[int], spatial_scale: float = 1.0
) -> Tensor:
    if len(pooled_shape) != 2:
        b.invalid(f"pooled_shape is {list(pooled_shape)}, expected two sizes")
    size = (pooled_shape[0], pooled_shape[1])
    problem = MaxRoiPoolProblem(x.shape, math.prod(rois.shape[:1]), size, x.dtype.name, spatial_scale)
    return b.result(problem, x, rois)


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
    blocks = 0 if x.rank != 3 or x.shape[1] % math.prod(block) else x.shape[1] // math.prod(block)
    if not blocks or any(d < 1 for d in counts) or x.shape[2] != math.prod(counts):
        b.invalid(f"blocks {block} lie at {counts} places of the image {image}; the columns have shape {x.shape}")
    return sum_of_windows(b, x, (x.shape[0], blocks), counts, window)


operator("GridSample", domain=MICROSOFT, types={"x": SINGLE, "grid": SINGLE})(grid_sample_16)


@operator("CropAndResize", domain=MICROSOFT, types={"x rois": FLOATS, "batch_indices crop_size": ("int32",)})
def crop_and_resize(
    b: Builder,
    x: Tensor,
    rois: Tensor,
    batch_indices: Tensor,
    crop_size: Tensor,
    *,
    extrapolation_value: float = 0.0,
    mode: str = "bilinear",
) -> Tensor:
    if mode not in ("bilinear", "nearest"):
        b.invalid(f"mode is {mode!r}, expected 'bilinear' or 'nearest'")
    size = b.ints(crop_size, "crop_size") or []
    if len(size) != 2 or rois.rank != 2:
        b.invalid(f"crop_size is {size}, expected two sizes; rois have shape {list(rois.shape)}")
    problem = CropProblem(
        x.shape, rois.shape[0], (size[0], size[1]), x.dtype.name, extrapolation_value, mode == "nearest"
    )
    return b.result(problem, x, rois, batch_indices)
