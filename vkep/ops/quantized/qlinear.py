"""Elementwise operators, pooling, concatenation and reductions on 8-bit tensors with scales (domain com.microsoft: QLinearAdd,
QLinearSigmoid, ...).

Semantics: the operators' schemas in ONNX Runtime (docs/ContribOperators.md), and its CPU provider's kernels where those
say no more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from vkep.dtypes import DTYPES, FLOAT32, INT32
from vkep.graph.attributes import PoolAttributes
from vkep.ir import algebra as fn
from vkep.ir.algebra import where
from vkep.ir.builder import Builder
from vkep.ir.expr import Expr
from vkep.ir.tensor import Tensor, broadcast_shapes, channels_first, channels_last
from vkep.ops.allowed import BYTES
from vkep.ops.codes import signed, takes_codes
from vkep.ops.microsoft import MICROSOFT
from vkep.ops.movement import concat
from vkep.ops.normalization import softmax_over
from vkep.ops.pooling import average_pool, global_average_pool
from vkep.ops.quantized.linear import over_scale, quantized, rounded_to
from vkep.ops.reduction import middle, reduce_axes
from vkep.ops.registry import operator

_REAL = ("float32",)

_QUANTIZED = {"x x_zero_point y_zero_point": BYTES, "x_scale y_scale": _REAL}


def _declare_qlinear(op_type: str, op: str) -> None:
    def lower(
        b: Builder,
        x: Tensor,
        x_scale: Tensor,
        x_zero_point: Tensor | None,
        y: Tensor,
        y_scale: Tensor,
        y_zero_point: Tensor | None,
        z_scale: Tensor,
        z_zero_point: Tensor | None = None,
    ) -> Tensor:
        b.expect("C_scale", z_scale, (), (1,))
        b.expect("C_zero_point", z_zero_point, (), (1,))
        left, right = real(b, x, x_scale, x_zero_point), real(b, y, y_scale, y_zero_point)
        value = over_scale(b, b.expr(op, left, right), z_scale)
        shape = broadcast_shapes(x.shape, y.shape)
        return b.store(rounded_to(b, value, z_zero_point, x.dtype), x.dtype, shape=shape)

    lower.__name__ = op_type.lower()
    scales = ("float32",)
    operator(
        op_type,
        domain=MICROSOFT,
        types={"x x_zero_point y y_zero_point z_zero_point": BYTES, "x_scale y_scale z_scale": scales},
    )(lower)


def real(b: Builder, x: Tensor, scale: Tensor, zero_point: Tensor | None) -> Expr:
    """``(x - zero_point) * scale``. Raises `InvalidNode` unless both are single elements of the types that go with ``x``."""
    b.expect("scale", scale, (), (1,))
    b.expect("zero_point", zero_point, (), (1,))
    if scale.dtype.name != "float32" or (zero_point is not None and zero_point.dtype is not x.dtype):
        b.invalid(f"a scale of {scale.dtype} and a zero point of {zero_point and zero_point.dtype} for {x.dtype}")
    known = np.zeros((), x.dtype.numpy) if zero_point is None else zero_point.array
    if x.array is not None and scale.array is not None and known is not None:
        values = (x.array.astype(np.int32) - known.astype(np.int32)).astype(np.float32) * scale.array
        return b.expr("same", b.constant(values.reshape(x.shape)))
    if known is not None and x.storage.weight is None and takes_codes(b):  # as products read them
        codes, zero = signed(b, x, int(known))
        value = b.expr("cast", codes, ctype="int") - zero
    else:
        value = b.expr("cast", x, ctype="int")
        if zero_point is not None:
            value = value - b.expr("cast", zero_point, ctype="int")
    return b.expr("mul", fn.cast(value, "float"), scale)


_declare_qlinear("QLinearAdd", "add")


_declare_qlinear("QLinearMul", "mul")


@operator("MulInteger", domain=MICROSOFT, types={"x x_zero y y_zero": BYTES})
def mul_integer(b: Builder, x: Tensor, x_zero: Tensor | None, y: Tensor, y_zero: Tensor | None = None) -> Tensor:
    parts = []
    for what, tensor, zero in (("A", x, x_zero), ("B", y, y_zero)):
        b.expect(f"{what}_zero_point", zero, (), (1,))
        wide = b.expr("cast", tensor, ctype="int")
        parts.append(wide if zero is None else wide - b.expr("cast", zero, ctype="int"))
    return b.store(b.expr("mul", *parts), INT32, shape=broadcast_shapes(x.shape, y.shape))


def _axes(b: Builder, x: Tensor, axes: Sequence[int]) -> list[int]:
    return [b.axis(axis, x.rank) for axis in axes] or list(range(x.rank))


@operator("ReduceSumInteger", domain=MICROSOFT, types={"x": BYTES})
def reduce_sum_integer(b: Builder, x: Tensor, *, axes: Sequence[int], keepdims: int) -> Tensor:
    made = DTYPES["int32" if x.dtype.kind == "int" else "uint32"]
    return reduce_axes(b, "sum", b.cast(x, made), _axes(b, x, axes), bool(keepdims))


@operator(
    "QLinearReduceMean",
    domain=MICROSOFT,
    types={"x zero y_zero": BYTES, "scale y_scale": ("float32",)},
)
def qlinear_reduce_mean(
    b: Builder,
    x: Tensor,
    scale: Tensor,
    zero: Tensor | None,
    y_scale: Tensor,
    y_zero: Tensor | None = None,
    *,
    axes: Sequence[int],
    keepdims: int,
) -> Tensor:
    for what, tensor in {"reduced_scale": y_scale, "reduced_zero_point": y_zero}.items():
        b.expect(what, tensor, (), (1,))
    wide = b.store(real(b, x, scale, zero), FLOAT32, shape=x.shape)
    means = reduce_axes(b, "mean", wide, _axes(b, x, axes), bool(keepdims))
    return b.store(quantized(b, b.expr("same", means), y_scale, y_zero, x.dtype), x.dtype, shape=means.shape)


@operator("QLinearConcat", domain=MICROSOFT, types={"y_scale": ("float32",), "y_zero_point": BYTES})
def qlinear_concat(b: Builder, y_scale: Tensor, y_zero_point: Tensor, *parts: Tensor, axis: int) -> Tensor:
    if len(parts) % 3:
        b.invalid(f"{len(parts)} inputs after the result's scale and zero point, expected three for each part")
    made = []
    for x, scale, zero in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
        if scale.dtype is not FLOAT32 or {x.dtype, zero.dtype} != {y_zero_point.dtype}:
            b.invalid(f"a part of {x.dtype} with a scale of {scale.dtype} and a zero point of {zero.dtype}; "
                      f"expected {y_zero_point.dtype}, float32 and {y_zero_point.dtype}")  # fmt: skip
        value = quantized(b, real(b, x, scale, zero), y_scale, y_zero_point, y_zero_point.dtype)
        made.append(b.store(value, y_zero_point.dtype, shape=x.shape))
    return concat(b, *made, axis=axis)


@operator(
    "QLinearWhere",
    domain=MICROSOFT,
    types={
        "condition": ("bool",),
        "x x_zero_point y y_zero_point z_zero_point": BYTES,
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
    dense, sizes = middle(b, b.store(real(b, x, x_scale, x_zero_point), FLOAT32, shape=x.shape), list(axes))
    # ONNX Runtime counts whole steps: 1 / scale is cut to a whole number
    share, steps = b.reads(softmax_over(b, dense, *sizes, log=False), b.divide(1.0, y_scale))
    return b.store(rounded_to(b, share * fn.floor(steps), y_zero_point, x.dtype), x.dtype, shape=x.shape)


def _in_floats(
    b: Builder,
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor | None,
    function: Callable[[Tensor], Tensor],
    nhwc: int,
) -> Tensor:
    """Apply a function of images to the dequantized values of quantized ones."""
    wide = b.store(real(b, x, scale, zero_point), FLOAT32, shape=x.shape)
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
    value = over_scale(b, means, y_scale)
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
