"""Operators whose inputs and results are integers with separate scales and zero points."""

from __future__ import annotations

import numpy as np

from vkep.graph.attributes import ConvAttributes, DequantizeAttributes
from vkep.tosa.graph import Quantized, TosaBuilder, TosaTensor
from vkep.tosa.ops.convolution import Summing, conv, convolution
from vkep.tosa.ops.products import batched, matmul
from vkep.tosa.ops.quantized import dequantize_linear, described, quantize_linear
from vkep.tosa.registry import constant_of, tosa_operator
from vkep.tosa.type_legalization import flip

_EIGHT = ("int8", "uint8")


def _integers(b: TosaBuilder, x: TosaTensor, zero: TosaTensor | None) -> tuple[TosaTensor, int]:
    """int8 integers and their zero point."""
    zeros = constant_of(zero, "the zero point").reshape(-1).astype(np.int64) if zero is not None else np.zeros(1, int)
    if len(set(zeros.tolist())) > 1:
        b.decline("a zero point of its own for each row or column")
    if x.dtype not in _EIGHT:
        b.decline(f"integers of type {x.dtype}")
    return (flip(b, x), int(zeros[0]) - 128) if x.dtype == "uint8" else (x, int(zeros[0]))


@tosa_operator("MatMulInteger", types=_EIGHT)
def matmul_integer(
    b: TosaBuilder, x: TosaTensor, y: TosaTensor, x_zero: TosaTensor | None = None, y_zero: TosaTensor | None = None
) -> TosaTensor:
    if min(x.rank, y.rank) < 2:
        b.decline("a vector operand")
    (left, left_zero), (right, right_zero) = _integers(b, x, x_zero), _integers(b, y, y_zero)
    return batched(b, left, right, "int32", left_zero, right_zero)


@tosa_operator("ConvInteger", types=_EIGHT)
def conv_integer(
    b: TosaBuilder,
    x: TosaTensor,
    w: TosaTensor,
    x_zero: TosaTensor | None = None,
    w_zero: TosaTensor | None = None,
    *,
    a: ConvAttributes,
) -> TosaTensor:
    window = a.window(x.shape, w.shape)
    (left, left_zero), (right, right_zero) = _integers(b, x, x_zero), _integers(b, w, w_zero)
    return convolution(b, left, right, None, Summing(window, a.group, "int32", left_zero, right_zero))


@tosa_operator("QLinearMatMul", types=_EIGHT)
def qlinear_matmul(
    b: TosaBuilder,
    x: TosaTensor,
    x_scale: TosaTensor,
    x_zero: TosaTensor,
    y: TosaTensor,
    y_scale: TosaTensor,
    y_zero: TosaTensor,
    scale: TosaTensor,
    zero: TosaTensor,
) -> TosaTensor:
    if any(t.size > 1 for t in (x_scale, x_zero, y_scale, y_zero)):
        b.decline("scales of rows or columns")
    left, right = dequantize_linear(b, x, x_scale, x_zero), dequantize_linear(b, y, y_scale, y_zero)
    return quantize_linear(b, matmul(b, left, right), scale, zero)


@tosa_operator("QLinearConv", types=_EIGHT)
def qlinear_conv(
    b: TosaBuilder,
    x: TosaTensor,
    x_scale: TosaTensor,
    x_zero: TosaTensor,
    w: TosaTensor,
    w_scale: TosaTensor,
    w_zero: TosaTensor,
    scale: TosaTensor,
    zero: TosaTensor,
    bias: TosaTensor | None = None,
    *,
    a: ConvAttributes,
) -> TosaTensor:
    left = dequantize_linear(b, x, x_scale, x_zero)
    right = dequantize_linear(b, w, w_scale, w_zero, a=DequantizeAttributes(axis=0))
    if bias is not None:  # its scale is the product of the two
        if bias.array is None:
            b.decline("a bias that is no constant")
        scales = constant_of(x_scale, "the scale").astype(np.float64) * constant_of(w_scale, "the scale").reshape(-1)
        bias = described(b, Quantized(bias, scales.reshape(-1), 0, 0 if scales.size > 1 else -1))
    made = conv(b, left, right, bias, a=a)
    return quantize_linear(b, made, scale, zero)
