"""ONNX Runtime's operators that are those of the ONNX standard with little besides (domain com.microsoft), and operators of
the standard's first years that ONNX Runtime still runs (no schema in ONNX).

Semantics: ONNX Runtime, docs/ContribOperators.md and its kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from vkep.dtypes import DTYPES
from vkep.graph.attributes import PoolAttributes
from vkep.ir import algebra as fn
from vkep.ir.algebra import where
from vkep.ir.builder import Builder
from vkep.ir.expr import Expr
from vkep.ir.tensor import Tensor, broadcast_shapes
from vkep.kernels.elimination import InverseProblem
from vkep.kernels.sampling import CropProblem
from vkep.ops.allowed import ARITHMETIC, SINGLE, every
from vkep.ops.contraction import matrix_product
from vkep.ops.gather import gather_nd_11, pad
from vkep.ops.generators import range_, trilu
from vkep.ops.microsoft import MICROSOFT, channels_first, channels_last
from vkep.ops.movement import concat, slice_
from vkep.ops.normalization import centred, over_deviation, softmax_over
from vkep.ops.pooling import average_pool, global_average_pool, max_pool
from vkep.ops.quantized.elementwise import real
from vkep.ops.quantized.linear import quantized, rounded_to
from vkep.ops.reduction import middle, reduce_axes
from vkep.ops.registry import FLOATS, INDICES, operator
from vkep.ops.resize import grid_sample_16

_BYTES = ("uint8", "int8")
_FLOAT32, _REAL = DTYPES["float32"], ("float32",)
_QUANTIZED = {"x x_zero_point y_zero_point": _BYTES, "x_scale y_scale": _REAL}

operator("Trilu", domain=MICROSOFT, types={"x": every("Trilu"), "k": ("int64",)})(trilu)
operator("GridSample", domain=MICROSOFT, types={"x": SINGLE, "grid": SINGLE})(grid_sample_16)


@operator("GatherND", domain=MICROSOFT, types={"data": every("GatherND"), "indices": INDICES})
def gather_nd(b: Builder, data: Tensor, indices: Tensor) -> Tensor:
    return gather_nd_11(b, data, indices)


@operator("Pad", domain=MICROSOFT, types={"data value": every("Pad"), "pads": ("int64",)})
def pad_(b: Builder, data: Tensor, pads: Tensor, value: Tensor | None = None, *, mode: str = "constant") -> Tensor:
    return pad(b, data, b.reshape(pads, [pads.size]), value, mode=mode)


@operator("Range", domain=MICROSOFT, types={"start limit delta": ARITHMETIC})
def range_from_one(b: Builder, start: Tensor, limit: Tensor, delta: Tensor | None = None) -> Tensor:
    return range_(b, start, limit, b.full((), 1, start.dtype) if delta is None else delta)


@operator("ExpandDims", domain=MICROSOFT, types={"x": every("Unsqueeze"), "axis": ("int32",)})
def expand_dims(b: Builder, x: Tensor, axis: Tensor) -> Tensor:
    at = int(b.value(axis, "axis").reshape(-1)[0])
    if not -x.rank - 1 <= at <= x.rank:
        b.invalid(f"axis is {at}, expected {-x.rank - 1} to {x.rank}")
    at = at if at >= 0 else at + x.rank + 1
    return b.reshape(x, [*x.shape[:at], 1, *x.shape[at:]])


@operator("UnfoldTensor", domain=MICROSOFT, types={"x": every("Transpose")})
def unfold_tensor(b: Builder, x: Tensor, *, size: int, dim: int = -1, step: int = 1) -> Tensor:
    """Windows of ``size`` along ``dim``, ``step`` apart: the window's number in dim's place, its elements last."""
    axis = b.axis(dim, x.rank)
    if not 0 < size <= x.shape[axis] or step < 1:
        b.invalid(f"windows of {size}, {step} apart, along an axis of {x.shape[axis]}")
    count = (x.shape[axis] - size) // step + 1
    stride = x.strides[axis]
    shape = (*x.shape[:axis], count, *x.shape[axis + 1 :], size)
    return x.view(shape, (*x.strides[:axis], stride * step, *x.strides[axis + 1 :], stride))


@operator("CDist", domain=MICROSOFT, types={"x y": ("float32", "float64")})
def distances(b: Builder, x: Tensor, y: Tensor, *, metric: str = "sqeuclidean") -> Tensor:
    """Distances of rows, by the sums of squares less twice the product, as ONNX Runtime's."""
    if metric not in ("sqeuclidean", "euclidean"):
        b.decline(f"metric is {metric!r}")
    if x.rank != 2 or y.rank != 2 or x.shape[1] != y.shape[1]:
        b.invalid(f"distances of rows of {x.shape} and {y.shape}")
    squares = [reduce_axes(b, "sumsq", t, [1], keepdims=True) for t in (x, y)]
    product = matrix_product(b, x, y.transpose((1, 0)))

    def distance(x: Expr, y: Expr, both: Expr) -> Expr:
        square = fn.maximum(x + y - 2.0 * both, 0.0)
        return fn.sqrt(square) if metric == "euclidean" else square

    return b.pointwise(distance, squares[0], squares[1].transpose((1, 0)), product, shape=product.shape)


@operator("MatMulInteger16", domain=MICROSOFT, types={"a": ("int16", "uint16"), "y": ("int16", "uint16")})
def matmul_integer_16(b: Builder, a: Tensor, y: Tensor) -> Tensor:
    made = DTYPES["uint32" if a.dtype.kind == y.dtype.kind == "uint" else "int32"]
    return matrix_product(b, b.cast(a, made), b.cast(y, made))


# ---- quantized


@operator("QLinearConcat", domain=MICROSOFT, types={"y_scale": ("float32",), "y_zero_point": _BYTES})
def qlinear_concat(b: Builder, y_scale: Tensor, y_zero_point: Tensor, *parts: Tensor, axis: int) -> Tensor:
    if len(parts) % 3:
        b.invalid(f"{len(parts)} inputs after the result's scale and zero point, expected three for each part")
    made = []
    for x, scale, zero in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
        if scale.dtype is not _FLOAT32 or {x.dtype, zero.dtype} != {y_zero_point.dtype}:
            b.invalid(f"a part of {x.dtype} with a scale of {scale.dtype} and a zero point of {zero.dtype}")
        value = quantized(b, real(b, x, scale, zero), y_scale, y_zero_point, y_zero_point.dtype)
        made.append(b.store(value, y_zero_point.dtype, shape=x.shape))
    return concat(b, *made, axis=axis)


@operator(
    "QLinearWhere",
    domain=MICROSOFT,
    types={
        "condition": ("bool",),
        "x x_zero_point y y_zero_point z_zero_point": _BYTES,
        "x_scale y_scale z_scale": ("float32",),
    },
)
def qlinear_where(
    b: Builder,
    condition: Tensor,
    x: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor,
    y: Tensor,
    y_scale: Tensor,
    y_zero_point: Tensor,
    z_scale: Tensor,
    z_zero_point: Tensor,
) -> Tensor:
    for what, one in {"z_scale": z_scale, "z_zero_point": z_zero_point}.items():
        b.expect(what, one, (), (1,))
    value = b.expr(
        "where", condition, real(b, x, x_scale, x_zero_point), real(b, y, y_scale, y_zero_point), ctype="float"
    )
    shape = broadcast_shapes(condition.shape, x.shape, y.shape)
    return b.store(quantized(b, value, z_scale, z_zero_point, x.dtype), x.dtype, shape=shape)


@operator("QLinearSoftmax", domain=MICROSOFT, types=_QUANTIZED)
def qlinear_softmax(
    b: Builder,
    x: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor | None,
    y_scale: Tensor,
    y_zero_point: Tensor,
    *,
    opset: int,
    axis: int = -1,
) -> Tensor:
    """``opset`` is the version of Softmax: before version 13, all axes from ``axis`` on together."""
    first = b.axis(axis, x.rank)
    axes = range(first, x.rank if opset < 13 else first + 1)
    dense, sizes = middle(b, b.store(real(b, x, x_scale, x_zero_point), _FLOAT32, shape=x.shape), list(axes))
    # ONNX Runtime counts whole steps: 1 / scale is cut to a whole number
    share, steps = b.reads(softmax_over(b, dense, *sizes, log=False), b.divide(1.0, y_scale))
    return b.store(rounded_to(b, share * fn.floor(steps), y_zero_point, x.dtype), x.dtype, shape=x.shape)


@operator("NhwcMaxPool", domain=MICROSOFT, types={"x": _BYTES})
def nhwc_max_pool(b: Builder, x: Tensor, *, a: PoolAttributes) -> Tensor:
    return channels_last(max_pool(b, channels_first(x), a=a)[0])


def _in_floats(
    b: Builder,
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor | None,
    function: Callable[[Tensor], Tensor],
    nhwc: int,
) -> Tensor:
    """Apply a function of images to the dequantized values of quantized ones."""
    wide = b.store(real(b, x, scale, zero_point), _FLOAT32, shape=x.shape)
    return channels_last(function(channels_first(wide))) if nhwc else function(wide)


@operator("QLinearAveragePool", domain=MICROSOFT, types=_QUANTIZED)
def qlinear_average_pool(
    b: Builder,
    x: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor | None,
    y_scale: Tensor,
    y_zero_point: Tensor | None = None,
    *,
    a: PoolAttributes,
    channels_last: int = 0,
    count_include_pad: int = 0,
) -> Tensor:
    def function(t: Tensor) -> Tensor:
        return average_pool(b, t, a=a, count_include_pad=count_include_pad)

    means = _in_floats(b, x, x_scale, x_zero_point, function, channels_last)
    value = b.divide(means, y_scale)
    if y_zero_point is not None:  # rounded with the zero point in it, unlike QuantizeLinear: ties differ
        value = value + fn.cast(b.reads(y_zero_point)[0], "float")
    return b.store(rounded_to(b, value, None, x.dtype), x.dtype, shape=means.shape)


@operator("QLinearGlobalAveragePool", domain=MICROSOFT, types=_QUANTIZED)
def qlinear_global_average_pool(
    b: Builder,
    x: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor | None,
    y_scale: Tensor,
    y_zero_point: Tensor | None = None,
    *,
    channels_last: int = 0,
) -> Tensor:
    means = _in_floats(b, x, x_scale, x_zero_point, lambda t: global_average_pool(b, t), channels_last)
    return b.store(quantized(b, b.expr("same", means), y_scale, y_zero_point, x.dtype), x.dtype, shape=means.shape)


@operator("QLinearSigmoid", domain=MICROSOFT, types=_QUANTIZED)
def qlinear_sigmoid(
    b: Builder,
    x: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor | None,
    y_scale: Tensor,
    y_zero_point: Tensor | None = None,
) -> Tensor:
    value = fn.sigmoid(real(b, x, x_scale, x_zero_point))
    return b.store(quantized(b, value, y_scale, y_zero_point, x.dtype), x.dtype, shape=x.shape)


@operator("QLinearLeakyRelu", domain=MICROSOFT, types=_QUANTIZED)
def qlinear_leaky_relu(
    b: Builder,
    x: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor | None,
    y_scale: Tensor,
    y_zero_point: Tensor | None = None,
    *,
    alpha: float = 0.01,
) -> Tensor:
    value, slope = b.reads(real(b, x, x_scale, x_zero_point), alpha)
    return b.store(
        quantized(b, where(value < 0.0, value * slope, value), y_scale, y_zero_point, x.dtype), x.dtype, shape=x.shape
    )


# ---- images and matrices


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


@operator("Inverse", domain=MICROSOFT, types={"x": (*FLOATS, "float64")})
def inverse(b: Builder, x: Tensor) -> Tensor:
    return b.result(InverseProblem(x.shape, x.dtype.name), x)


# ---- of ONNX's first years


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
        b.invalid(f"a part of {height} by {width} from ({top}, {left}) on of an input of shape {x.shape}")
    return x.slice(2, top, height).slice(3, left, width)


@operator("DynamicSlice", types={"data": every("Slice"), "starts ends axes": INDICES}, schema=False)
def dynamic_slice(b: Builder, data: Tensor, starts: Tensor, ends: Tensor, axes: Tensor | None = None) -> Tensor:
    return slice_(b, data, starts, ends, axes)
