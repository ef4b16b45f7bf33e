"""Upsampling, grid sampling, and the grid of a detector's prior boxes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from vkep.aten.builder import FLOAT, GraphBuilder, Size, Val
from vkep.aten.registry import aten


def _resized(
    b: GraphBuilder, x: Val, size: Sequence[Size] | None, scales: Sequence[float] | None, **attributes: Any
) -> Val:
    if (size is None) == (scales is None):
        b.decline("it needs either a size or scale factors")
    if scales is not None:
        return b.op("Resize", x, None, b.constant(np.array(scales, np.float32)), axes=[2, 3], **attributes)
    return b.op("Resize", x, None, None, b.ints(size or ()), axes=[2, 3], **attributes)


@aten("aten.upsample_nearest2d.vec")
def upsample_nearest(
    b: GraphBuilder, x: Val, output_size: Sequence[Size] | None, scale_factors: Sequence[float] | None
) -> Val:
    return _resized(
        b,
        x,
        output_size,
        scale_factors,
        mode="nearest",
        nearest_mode="floor",
        coordinate_transformation_mode="asymmetric",
    )


@aten("aten.upsample_bilinear2d.vec")
def upsample_bilinear(
    b: GraphBuilder,
    x: Val,
    output_size: Sequence[Size] | None,
    align_corners: bool,
    scale_factors: Sequence[float] | None,
) -> Val:
    mode = "align_corners" if align_corners else "half_pixel"
    return _resized(b, x, output_size, scale_factors, mode="linear", coordinate_transformation_mode=mode)


@aten("aten.grid_sampler_2d.default")
def grid_sampler(
    b: GraphBuilder, x: Val, grid: Val, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Val:
    return b.op(
        "GridSample",
        x,
        b.cast(grid, x.elem),
        mode=("linear", "nearest", "cubic")[interpolation_mode],
        padding_mode=("zeros", "border", "reflection")[padding_mode],
        align_corners=int(align_corners),
    )


@aten("et_vk.grid_priors.default")
def grid_priors(b: GraphBuilder, x: Val, stride: int, offset: float) -> Val:
    """(x, y) of each cell of a feature map, [height * width, 2]: ``(position + offset) * stride``."""
    height, width = b.size(x, x.rank - 2), b.size(x, x.rank - 1)

    def positions(length: Size, axis: int) -> Val:
        steps = b.op("Add", b.cast(b.range(length), FLOAT), b.number(offset, FLOAT))
        steps = b.unsqueeze(b.op("Mul", steps, b.number(float(stride), FLOAT)), [axis])
        return b.unsqueeze(b.op("Expand", steps, b.ints([height, width]), dims=(None, None)), [2])

    both = b.op("Concat", positions(width, 0), positions(height, 1), axis=2, dims=(None, None, 2))
    return b.reshape(both, [-1, 2])
