"""Operators that the ONNX standard no longer has, or never had outside of its experiments (Affine, Crop, ImageScaler, ...), and
that ONNX Runtime still runs. Semantics: ONNX Runtime's CPU provider."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vkep.ir import algebra as fn
from vkep.ir.builder import Builder
from vkep.ir.tensor import Tensor
from vkep.ops.allowed import every
from vkep.ops.movement import slice_
from vkep.ops.normalization import centred, over_deviation
from vkep.ops.registry import INDICES, operator


@operator("Affine", types={"x": ("float32",)}, schema=False)
def affine(b: Builder, x: Tensor, *, alpha: float = 1.0, beta: float = 0.0) -> Tensor:
    return b.pointwise("mul_add", x, alpha, beta)


@operator("Scale", types={"x": ("float32",)}, schema=False)
def scale_(b: Builder, x: Tensor, *, scale: float = 1.0) -> Tensor:
    return b.pointwise("mul", x, scale)


@operator("MeanVarianceNormalization", until=8, types={"x": ("float32",)}, schema=False)
def mean_variance_normalization_1(
    b: Builder, x: Tensor, *, across_channels: int = 0, normalize_variance: int = 1
) -> Tensor:
    if x.rank != 4:
        b.invalid(f"the input has shape {x.shape}, expected (n, channels, height, width)")
    axes = [0, 1, 2, 3] if across_channels == 1 else [0, 2, 3]
    apart, variance, _ = centred(b, x, axes)
    return over_deviation(b, apart, variance) if normalize_variance == 1 else apart


@operator("ImageScaler", types={"x": ("float32",)}, schema=False)
def image_scaler(b: Builder, x: Tensor, *, bias: Sequence[float] = (), scale: float = 1.0) -> Tensor:
    if x.rank != 4 or len(bias) != x.shape[1]:
        b.invalid(f"{len(bias)} biases for an input of shape {x.shape}, expected (n, channels, height, width)")
    channels = b.constant(np.array(bias, np.float32).reshape(1, -1, 1, 1))
    return b.pointwise("mul_add", x, scale, channels, shape=x.shape)


@operator("ParametricSoftplus", types={"x": ("float32",)}, schema=False)
def parametric_softplus(b: Builder, x: Tensor, *, alpha: float, beta: float) -> Tensor:
    return b.pointwise(lambda v, size, steep: size * fn.softplus(steep * v), x, alpha, beta)


@operator("ScaledTanh", types={"x": ("float32",)}, schema=False)
def scaled_tanh(b: Builder, x: Tensor, *, alpha: float, beta: float) -> Tensor:
    return b.pointwise(lambda v, size, steep: size * fn.tanh(steep * v), x, alpha, beta)


@operator("Crop", types={"x": ("float32",)}, schema=False)
def crop(b: Builder, x: Tensor, *, border: Sequence[int], scale: Sequence[int] | None = None) -> Tensor:
    """A part of images: ``border`` is cut off (left, top, right, bottom), or ``scale`` (height, width) kept from left and top."""
    if x.rank != 4 or len(border) < 4 or (scale is not None and len(scale) != 2):
        b.invalid(f"border {list(border)} and scale {scale} for an input of shape {x.shape}")
    left, top, right, bottom = border[:4]
    height, width = scale or (x.shape[2] - top - bottom, x.shape[3] - left - right)
    if min(left, top) < 0 or height < 0 or width < 0 or top + height > x.shape[2] or left + width > x.shape[3]:
        b.invalid(
            f"a part of {height} by {width} from ({top}, {left}) on of an input of shape {list(x.shape)}, "
            "expected a part within it"
        )
    return x.slice(2, top, height).slice(3, left, width)


@operator("DynamicSlice", types={"data": every("Slice"), "starts ends axes": INDICES}, schema=False)
def dynamic_slice(b: Builder, data: Tensor, starts: Tensor, ends: Tensor, axes: Tensor | None = None) -> Tensor:
    return slice_(b, data, starts, ends, axes)
