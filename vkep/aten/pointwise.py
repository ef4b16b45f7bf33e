"""Elementwise operators: arithmetic, activations, casts, constants by shape, comparisons, logic and selection."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from vkep.aten.arguments import TensorOptions
from vkep.aten.builder import BOOL, FLOAT, INT64, GraphBuilder, Number, Size, Val
from vkep.aten.registry import aten


def promoted(b: GraphBuilder, x: Val, y: Val | Number | Size, elem: int | None = None) -> tuple[Val, Val]:
    """Convert two operands to one element type: ``elem``, or the result of PyTorch's promotion of the two.

    Floating point wins over integers, integers over booleans; of two of a kind, the wider one.
    """
    if not isinstance(y, Val):
        whole = isinstance(y, int) and not isinstance(y, bool)
        other = x.elem if x.is_float or (whole and x.elem != BOOL) or isinstance(y, bool) else FLOAT
        y = b.number(y, other if not (whole and x.elem == BOOL) else INT64)
    if elem is None:
        order = [BOOL, 2, 3, 6, 7, 10, 1, 11]  # bool, uint8, int8, int32, int64, float16, float32, float64
        # a scalar tensor does not widen a tensor of the same kind
        if x.is_float == y.is_float and BOOL not in (x.elem, y.elem) and (x.rank == 0) != (y.rank == 0):
            elem = x.elem if x.rank else y.elem
        else:
            elem = max(x.elem, y.elem, key=order.index)
    return b.cast(x, elem), b.cast(y, elem)


def binary(b: GraphBuilder, op_type: str, x: Val, y: Val | Number | Size) -> Val:
    """An operator of two operands, in the type that the blob records for its result."""
    return b.op(op_type, *promoted(b, x, y, b.results[0].elem))


def _scaled(b: GraphBuilder, y: Val | Number, alpha: Number, elem: int) -> Val | Number:
    if alpha == 1:
        return y
    if not isinstance(y, Val):
        return y * alpha
    return b.op("Mul", b.cast(y, elem), b.number(alpha, elem))


@aten("aten.add.Tensor")
def add(b: GraphBuilder, x: Val, other: Val | Number, alpha: Number = 1) -> Val:
    return binary(b, "Add", x, _scaled(b, other, alpha, b.results[0].elem))


@aten("aten.sub.Tensor")
def sub(b: GraphBuilder, x: Val, other: Val | Number, alpha: Number = 1) -> Val:
    return binary(b, "Sub", x, _scaled(b, other, alpha, b.results[0].elem))


@aten("aten.mul.Tensor")
def mul(b: GraphBuilder, x: Val, other: Val | Number) -> Val:
    return binary(b, "Mul", x, other)


@aten("aten.minimum.default")
def minimum(b: GraphBuilder, x: Val, other: Val) -> Val:
    return binary(b, "Min", x, other)


@aten("aten.div.Tensor")
def div(b: GraphBuilder, x: Val, other: Val | Number) -> Val:
    return binary(b, "Div", x, other)


@aten("aten.div.Tensor_mode")
def div_mode(b: GraphBuilder, x: Val, other: Val | Number, rounding_mode: str | None) -> Val:
    elem = b.results[0].elem
    x, y = promoted(b, x, other, elem)
    quotient = b.op("Div", x, y)
    if rounding_mode is None:
        return quotient
    if rounding_mode not in ("floor", "trunc"):
        b.decline(f"rounding_mode {rounding_mode!r}; expected None, 'floor' or 'trunc'")
    if quotient.is_float:
        if rounding_mode == "floor":
            return b.op("Floor", quotient)
        negative = b.op("Less", quotient, b.number(0, elem))
        return b.op("Where", negative, b.op("Ceil", quotient), b.op("Floor", quotient), elem=elem)
    if rounding_mode == "trunc":  # ONNX's integer division truncates
        return quotient
    return b.op("Div", b.op("Sub", x, b.op("Mod", x, y)), y)  # Mod has the divisor's sign


@aten("aten.pow.Tensor_Tensor", "aten.pow.Tensor_Scalar")
def power(b: GraphBuilder, x: Val, exponent: Val | Number) -> Val:
    elem = b.results[0].elem
    if not isinstance(exponent, Val):
        x = b.cast(x, elem)
        simple = {0.5: ("Sqrt",), 1: (), -1: ("Reciprocal",), -0.5: ("Sqrt", "Reciprocal")}.get(exponent)
        if exponent == 2:
            return b.op("Mul", x, x)
        if simple is not None and x.is_float:
            for op_type in simple:
                x = b.op(op_type, x)
            return x
    return binary(b, "Pow", x, exponent)


def _unary(name: str, op_type: str) -> None:
    @aten(name)
    def function(b: GraphBuilder, x: Val) -> Val:
        return b.op(op_type, b.cast(x, b.results[0].elem))


for _name, _op_type in {
    "abs": "Abs", "cos": "Cos", "exp": "Exp", "hardswish": "HardSwish", "neg": "Neg", "relu": "Relu", "round": "Round",
    "sigmoid": "Sigmoid", "sin": "Sin", "sqrt": "Sqrt", "tanh": "Tanh",
}.items():  # fmt: skip
    _unary(f"aten.{_name}.default", _op_type)


@aten("aten.rsqrt.default")
def rsqrt(b: GraphBuilder, x: Val) -> Val:
    return b.op("Reciprocal", b.op("Sqrt", x))


@aten("aten.log10.default")
def log10(b: GraphBuilder, x: Val) -> Val:
    return b.op("Mul", b.op("Log", x), b.number(1 / math.log(10), x.elem))


@aten("aten.gelu.default")
def gelu(b: GraphBuilder, x: Val, approximate: str = "none") -> Val:
    return b.op("Gelu", x, approximate=approximate)


@aten("aten.hardshrink.default")
def hardshrink(b: GraphBuilder, x: Val, lambd: float = 0.5) -> Val:
    return b.op("Shrink", x, lambd=lambd, bias=0.0)


@aten("aten.leaky_relu.default")
def leaky_relu(b: GraphBuilder, x: Val, negative_slope: float = 0.01) -> Val:
    return b.op("LeakyRelu", x, alpha=negative_slope)


def clipped(b: GraphBuilder, x: Val, low: Number | None, high: Number | None) -> Val:
    """Clip ``x`` between two numbers, either of which may be missing or infinite."""
    given = [None if v is None or (isinstance(v, float) and abs(v) >= 3.4028234e38) else v for v in (low, high)]
    if given == [None, None]:
        return x
    ends = (-math.inf, math.inf) if x.is_float else (None, None)  # without a limit, ONNX's Clip makes infinities finite
    bounds = [end if v is None else v for v, end in zip(given, ends, strict=True)]
    return b.op("Clip", x, *[None if v is None else b.number(v, x.elem) for v in bounds])


@aten("aten.clamp.default")
def clamp(b: GraphBuilder, x: Val, min: Number | None = None, max: Number | None = None) -> Val:
    return clipped(b, b.cast(x, b.results[0].elem), min, max)


@aten("aten.hardtanh.default")
def hardtanh(b: GraphBuilder, x: Val, min_val: Number = -1, max_val: Number = 1) -> Val:
    return clipped(b, x, min_val, max_val)


# ---- copies and casts: the result's element type is the blob's


@aten("aten.clone.default", "aten.alias_copy.default")
def clone(b: GraphBuilder, x: Val, memory_format: object = None) -> Val:
    return x


@aten("dim_order_ops._clone_dim_order.default")
def clone_dim_order(b: GraphBuilder, x: Val, non_blocking: bool = False, dim_order: object = None) -> Val:
    return x


@aten("aten._to_copy.default", "dim_order_ops._to_dim_order_copy.default")
def to_copy(
    b: GraphBuilder, x: Val, options: TensorOptions, non_blocking: bool = False, memory_format: object = None
) -> Val:
    return b.cast(x, b.results[0].elem)


@aten("aten.copy.default")
def copy(b: GraphBuilder, x: Val, src: Val, non_blocking: bool = False) -> Val:
    src = b.cast(src, x.elem)
    return src if src.dims == x.dims and x.is_static else b.op("Expand", src, b.sizes(x), dims=x.dims)


@aten("et_vk.prepack.default")
def prepack(b: GraphBuilder, x: Val) -> Val:
    return x


# ---- constants by shape


def filled(b: GraphBuilder, sizes: Val, dims: Sequence[int | None], value: Number | Size) -> Val:
    """A tensor of these sizes filled with one value, of the call's result type."""
    elem = b.results[0].elem
    return b.op("Expand", b.number(value, elem), sizes, elem=elem, dims=dims)


def _dims(sizes: Sequence[Size]) -> list[int | None]:
    return [s if isinstance(s, int) else None for s in sizes]


@aten("aten.full.default")
def full(b: GraphBuilder, size: Sequence[Size], fill_value: Number | Size, options: TensorOptions) -> Val:
    return filled(b, b.ints(size), _dims(size), fill_value)


@aten("aten.full_like.default")
def full_like(
    b: GraphBuilder, x: Val, fill_value: Number | Size, options: TensorOptions, memory_format: object = None
) -> Val:
    return filled(b, b.sizes(x), x.dims, fill_value)


def _fill(name: str, value: int) -> None:
    @aten(f"aten.{name}.default")
    def by_size(b: GraphBuilder, size: Sequence[Size], options: TensorOptions) -> Val:
        return filled(b, b.ints(size), _dims(size), value)

    @aten(f"aten.{name}_like.default")
    def like(b: GraphBuilder, x: Val, options: TensorOptions, memory_format: object = None) -> Val:
        return filled(b, b.sizes(x), x.dims, value)


_fill("zeros", 0)
_fill("ones", 1)


@aten("aten.scalar_tensor.default")
def scalar_tensor(b: GraphBuilder, s: Number | Size, options: TensorOptions) -> Val:
    return b.number(s, b.results[0].elem)


@aten("aten.arange.start_step")
def arange(
    b: GraphBuilder, start: Number | Size, end: Number | Size, step: Number | Size, options: TensorOptions
) -> Val:
    elem = b.results[0].elem
    if not (isinstance(start, Val) or isinstance(end, Val) or isinstance(step, Val)):
        b.limited([math.ceil((end - start) / step)])
        return b.constant(np.arange(start, end, step), elem)
    # computed in int64, then cast: positions are integers where the sizes are known only at run time
    kind = INT64 if not any(isinstance(v, float) for v in (start, end, step)) else FLOAT
    return b.cast(b.op("Range", *(b.number(v, kind) for v in (start, end, step)), elem=kind, dims=(None,)), elem)


def _comparison(name: str, op_type: str) -> None:
    @aten(f"aten.{name}.Tensor", f"aten.{name}.Scalar")
    def function(b: GraphBuilder, x: Val, other: Val | Number) -> Val:
        x, y = promoted(b, x, other)
        if x.elem == BOOL and op_type != "Equal":  # ONNX compares numbers only
            x, y = b.cast(x, b_int), b.cast(y, b_int)
        return b.op(op_type, x, y)

    b_int = 6  # int32


for _name, _op_type in {
    "eq": "Equal", "lt": "Less", "le": "LessOrEqual", "gt": "Greater", "ge": "GreaterOrEqual",
}.items():  # fmt: skip
    _comparison(_name, _op_type)


@aten("aten.ne.Scalar", "aten.ne.Tensor")
def not_equal(b: GraphBuilder, x: Val, other: Val | Number) -> Val:
    return b.op("Not", b.op("Equal", *promoted(b, x, other)))


def _logic(name: str, op_type: str) -> None:
    @aten(f"aten.logical_{name}.default")
    def logical(b: GraphBuilder, x: Val, other: Val) -> Val:
        return b.op(op_type, b.cast(x, BOOL), b.cast(other, BOOL))

    @aten(f"aten.bitwise_{name}.Tensor")
    def bitwise(b: GraphBuilder, x: Val, other: Val) -> Val:
        x, other = promoted(b, x, other)
        return b.op(op_type if x.elem == BOOL else f"Bitwise{op_type}", x, other)


_logic("and", "And")
_logic("or", "Or")


@aten("aten.logical_not.default")
def logical_not(b: GraphBuilder, x: Val) -> Val:
    return b.op("Not", b.cast(x, BOOL))


@aten("aten.bitwise_not.default")
def bitwise_not(b: GraphBuilder, x: Val) -> Val:
    return b.op("Not" if x.elem == BOOL else "BitwiseNot", x)


@aten("aten.where.self")
def where(b: GraphBuilder, condition: Val, x: Val, other: Val) -> Val:
    x, other = promoted(b, x, other, b.results[0].elem)
    return b.op("Where", b.cast(condition, BOOL), x, other, elem=x.elem)
