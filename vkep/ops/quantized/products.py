"""Products and convolutions of quantised tensors: exact sums in int32, rounded once.

Semantics: ONNX MatMulInteger, QLinearMatMul, ConvInteger and QLinearConv.
"""

from __future__ import annotations

from vkep.dtypes import DTYPES
from vkep.graph.attributes import ConvAttributes
from vkep.ir import algebra as fn
from vkep.ir import float8
from vkep.ir.builder import Builder
from vkep.ir.expr import Expr
from vkep.ir.tensor import Tensor
from vkep.ops.allowed import every
from vkep.ops.contraction import matrix_product
from vkep.ops.quantized.integer_sums import integer_convolution, integer_product, of_channels, of_rows
from vkep.ops.quantized.linear import rounded_to
from vkep.ops.registry import operator

_FLOAT32, _INT32 = DTYPES["float32"], DTYPES["int32"]
_SCALES = ("float32", "float16", "bfloat16")
_BYTES = ("int8", "uint8")


def ratio(b: Builder, x: Tensor, y: Tensor, z: Tensor) -> Expr:
    """``x * y / z`` in float32, by which an integer result is scaled before it is rounded: so rounded at each step itself."""
    return b.divide(b.expr("mul", x, y, ctype="float"), z)


@operator("MatMulInteger", types={"T1": _BYTES, "T2": _BYTES})
def matmul_integer(
    b: Builder, a: Tensor, y: Tensor, a_zero_point: Tensor | None = None, b_zero_point: Tensor | None = None
) -> Tensor:
    return integer_product(b, a, y, a_zero_point, b_zero_point)


@operator(
    "QLinearMatMul",
    types={
        **{name: every("QLinearMatMul", name, (*_BYTES, *float8.FORMATS)) for name in ("T1", "T2", "T3")},
        "TS": _SCALES,
    },
)
def qlinear_matmul(
    b: Builder,
    a: Tensor,
    a_scale: Tensor,
    a_zero_point: Tensor,
    y: Tensor,
    b_scale: Tensor,
    b_zero_point: Tensor,
    y_scale: Tensor,
    y_zero_point: Tensor,
) -> Tensor:
    factor = ratio(b, of_rows(b, a_scale), b_scale, of_rows(b, y_scale))
    made = y_zero_point.dtype
    if "bits" in (a.dtype.kind, y.dtype.kind, made.kind):  # 8-bit floats, whose zero points are 0
        if {"bits"} != {a.dtype.kind, y.dtype.kind, made.kind}:
            b.decline(f"{a.dtype} times {y.dtype} to {made}; the kernels take 8-bit floats or integers, not both")
        floats = matrix_product(b, b.cast(a, _FLOAT32), b.cast(y, _FLOAT32))
        return b.store(float8.encode(b.expr("mul", floats, factor), made), made, shape=floats.shape)
    product = integer_product(b, a, y, a_zero_point, b_zero_point)
    value = b.expr("cast", product, ctype="float") * factor
    result = rounded_to(b, value, of_rows(b, y_zero_point), y_zero_point.dtype)
    return b.store(result, y_zero_point.dtype, shape=product.shape)


# ---- convolutions


@operator("ConvInteger", types={"T1": _BYTES, "T2": _BYTES})
def conv_integer(
    b: Builder,
    x: Tensor,
    w: Tensor,
    x_zero_point: Tensor | None = None,
    w_zero_point: Tensor | None = None,
    *,
    a: ConvAttributes,
) -> Tensor:
    return integer_convolution(b, x, w, x_zero_point, w_zero_point, a)


@operator("QLinearConv", types={"T1": _BYTES, "T2": _BYTES, "T3": _BYTES, "T4": ("int32",)})
def qlinear_conv(
    b: Builder,
    x: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor,
    w: Tensor,
    w_scale: Tensor,
    w_zero_point: Tensor,
    y_scale: Tensor,
    y_zero_point: Tensor,
    bias: Tensor | None = None,
    *,
    a: ConvAttributes,
) -> Tensor:
    total = integer_convolution(b, x, w, x_zero_point, w_zero_point, a)
    shape = total.shape
    value = b.expr("same", total)
    b.expect("the bias", bias, (shape[1],))
    if bias is not None:
        value = b.expr("add", value, of_channels(b, bias, len(shape), 1))
    factor = ratio(b, x_scale, of_channels(b, w_scale, len(shape), 1), y_scale)
    result = rounded_to(b, fn.cast(value, "float") * factor, y_zero_point, y_zero_point.dtype)
    return b.store(result, y_zero_point.dtype, shape=shape)
