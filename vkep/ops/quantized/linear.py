"""Quantisation: QuantizeLinear and its inverse, per tensor, along an axis and in blocks, and DynamicQuantizeLinear.

Semantics: the ONNX operators: rounding to the nearest, ties to even, saturation to the type's range.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from vkep import dtypes
from vkep.dtypes import DTYPES, FLOAT32, UINT8, DType
from vkep.graph.attributes import DequantizeAttributes, QuantizeAttributes
from vkep.graph.weights import PackedWeight, pack
from vkep.ir import algebra as fn
from vkep.ir import expr as ex
from vkep.ir import float8
from vkep.ir.algebra import equal, where
from vkep.ir.builder import Builder, Operand
from vkep.ir.expr import Expr
from vkep.ir.tensor import Tensor, same_shape
from vkep.ops.allowed import BYTES, SINGLE, every
from vkep.ops.codes import dequantized_by_halves, is_code, takes_halves
from vkep.ops.microsoft import MICROSOFT
from vkep.ops.reduction import reduce_axes
from vkep.ops.registry import FLOATS, operator
from vkep.sizes import matches

_POWERS = "float8_e8m0fnu"  # scales that are powers of two, as in OCP's MX formats
_QUANTIZED = tuple(n for n in ("int8", "uint8", "int16", "uint16", "int4", "uint4", "int2", "uint2") if n in DTYPES)
_NARROW = tuple(n for n in float8.FORMATS if n in DTYPES)  # 8-bit and 4-bit floats


def value_range(dtype: DType) -> tuple[int, int]:
    """The minimum and maximum of an integer type."""
    bits = dtype.bits
    return (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if dtype.kind == "int" else (0, (1 << bits) - 1)


# ---- blocks: consecutive elements along an axis of x may share one scale


class Blocks:
    """The layout of scales along ``x``: x as [before, blocks, block, after], scales as [before or 1, blocks, 1, after
    or 1]. With one scale x keeps its axes, so that its producer's expression and this one have the same elements; where several
    elements are packed in a byte, it is [1, 1, 1, elements]."""

    def __init__(self, b: Builder, x: Tensor, scale: Tensor, axis: int, block_size: int) -> None:
        self.b = b
        if block_size < 0:
            b.invalid(f"block_size is {block_size}, expected 0 or more")
        if scale.rank > 1 and not block_size:
            b.invalid(f"scales have shape {list(scale.shape)}, expected one axis")
        if matches(scale.size, 1):
            self.shape: tuple[int, ...] = (1, 1, 1, x.size) if x.dtype.sub_byte_bits else tuple(x.shape)
            self._scales, self._tail = (1,) * len(self.shape), 0
            return
        axis = b.axis(axis, x.rank)
        before, length, after = math.prod(x.shape[:axis]), x.shape[axis], math.prod(x.shape[axis + 1 :])
        if not block_size:
            if scale.size != length:
                b.invalid(f"{scale.size} scales for {length} elements along axis {axis} of {x.shape}")
            self.shape, self._scales, self._tail = (before, length, 1, after), (1, length, 1, 1), 0
            return
        blocks = -(-length // block_size)
        if scale.shape != (*x.shape[:axis], blocks, *x.shape[axis + 1 :]):
            b.invalid(f"scales of shape {scale.shape} for {x.shape} in blocks of {block_size} along axis {axis}")
        if length % block_size:  # the last block is shorter: scales are repeated for all elements
            self.shape, self._scales, self._tail = (before, length, 1, after), (before, blocks, 1, after), length
            self._block = block_size
        else:
            self.shape, self._scales, self._tail = (before, blocks, block_size, after), (before, blocks, 1, after), 0

    def spread(self, values: Tensor) -> Tensor:
        """Scales or zero points, shaped to broadcast against ``shape``."""
        if values.size != math.prod(self._scales):
            self.b.invalid(f"scales or zero points have shape {list(values.shape)}, expected {list(self._scales)}")
        view = self.b.reshape(values, self._scales)
        if not self._tail:
            return view
        before, blocks, _, after = self._scales
        wide = view.expand((before, blocks, self._block, after))
        return self.b.reshape(wide, (before, blocks * self._block, 1, after)).slice(1, 0, self._tail)


# ---- QuantizeLinear, DequantizeLinear


def known_values(expr: ex.Expr) -> np.ndarray | None:
    """The numbers that an expression is in every run; None where it is computed, or of sizes."""
    while expr.op in ("cast", "same") and len(expr.args) == 1:
        [expr] = expr.args
    values = expr.tensor.array if isinstance(expr, ex.Leaf) and expr.tensor is not None else None
    if isinstance(expr, ex.Const):
        values = np.array(expr.value)
    return None if values is None or values.dtype == object else values


def _is_usual(divisor: ex.Expr) -> bool:
    """Whether an expression is of known numbers of sizes from 2**-60 to 2**60."""
    values = known_values(divisor)
    if values is None:
        return False
    sizes = np.abs(values.astype(np.float64))
    return bool(np.all((sizes >= 2.0**-60) & (sizes <= 2.0**60)))


def over_scale(b: Builder, x: Operand, scale: Operand) -> Expr:
    """``x / scale`` in float32, correctly rounded (`Builder.divide`), in few instructions where the scale is known."""
    quotient = b.divide(x, scale)
    usual = quotient.ctype == "float" and _is_usual(quotient.args[1])
    return Expr("float", "exact_div_by_usual", quotient.args) if usual else quotient


def quantized(b: Builder, x: Expr, scale: Expr | Tensor, zero_point: Expr | Tensor | None, to: DType) -> Expr:
    """``saturate(round(x / scale) + zero_point)`` of float expressions."""
    return rounded_to(b, over_scale(b, x, scale), zero_point, to)


def rounded_to(b: Builder, value: Expr, zero_point: Expr | Tensor | None, to: DType) -> Expr:
    """``saturate(round(value) + zero_point)``."""
    low, high = value_range(to)
    shifted = fn.round_even(value)
    if zero_point is not None:
        shifted = shifted + b.expr("cast", zero_point, ctype="float")
    return fn.cast(fn.clamp(shifted, low, high), to.glsl_compute)


@operator(
    "QuantizeLinear",
    since=10,
    types={
        "T1": (*SINGLE, "int32"),
        # zero points before version 23, then scales
        "T2": every("QuantizeLinear", "T2", (*SINGLE, *_QUANTIZED, *_NARROW, "int32", _POWERS)),
        "T3": (*_QUANTIZED, *_NARROW),
    },
)
def quantize_linear(
    b: Builder,
    x: Tensor,
    y_scale: Tensor,
    y_zero_point: Tensor | None = None,
    *,
    a: QuantizeAttributes,
) -> Tensor:
    to = (
        y_zero_point.dtype if y_zero_point is not None else dtypes.from_onnx(a.output_dtype) if a.output_dtype else None
    )
    to = to or (UINT8 if not a.output_dtype else None)
    if to is None or to.name not in (*_QUANTIZED, *_NARROW):
        b.decline(f"no kernel quantizes to {dtypes.onnx_name(a.output_dtype)}")
    blocks = Blocks(b, x, y_scale, a.axis, a.block_size)
    scale = blocks.spread(y_scale)
    powers = y_scale.dtype.name == _POWERS
    division = (dtypes.from_onnx(a.precision) if a.precision else x.dtype if powers else y_scale.dtype) or FLOAT32
    if division.name not in (*SINGLE, "int32"):
        b.decline(f"a division in {division}")
    value = b.expr("cast", b.reshape(x, blocks.shape), ctype="float")
    factor = b.cast_expr(ex.leaf(scale), scale.dtype, FLOAT32) if powers else b.expr("cast", scale, ctype="float")
    zero = None if y_zero_point is None else blocks.spread(y_zero_point)
    if to.kind == "bits":  # a float's zero point is 0 (ONNX QuantizeLinear)
        code = float8.encode(b.divide(value, factor), to, bool(a.saturate))
        return b.reshape(b.store(code, to, shape=blocks.shape), x.shape)
    result = rounded_to(b, fn.stored_as(over_scale(b, value, factor), division), zero, to)
    codes = b.reshape(b.store(result, to, shape=blocks.shape), x.shape)
    step = b.steps.get(x.storage)
    if step is not None and codes.is_whole and division is FLOAT32 and step == _step(y_scale, y_zero_point, to):
        b.in_steps[codes.storage] = x
    return codes


@operator(
    "DequantizeLinear",
    since=10,
    types={
        "T": ("int8", "uint8", "int32"),
        "T1": (*_QUANTIZED, *_NARROW, "int32"),
        "T2": every("DequantizeLinear", "T2", (*SINGLE, _POWERS)),
        "T3": SINGLE,
    },
)
def dequantize_linear(
    b: Builder,
    x: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor | None = None,
    *,
    a: DequantizeAttributes,
) -> Tensor:
    to = dtypes.from_onnx(a.output_dtype) if a.output_dtype else x_scale.dtype
    if to is None or to.name not in SINGLE:
        b.decline(f"no kernel dequantizes to {dtypes.onnx_name(a.output_dtype)}")
    step = _step(x_scale, x_zero_point, x.dtype) if to is FLOAT32 else None
    known = b.in_steps.get(x.storage) if step is not None and x.is_whole else None
    if known is not None and b.steps[known.storage] == step and same_shape(x.shape, known.shape):
        return known
    if step is not None and is_code(x.dtype) and x.storage.weight is None and takes_halves(b):
        _, factor, zero = step
        result = dequantized_by_halves(b, x, factor, zero)
    else:
        result = dequantized(b, x, x_scale, x_zero_point, to, a.axis, a.block_size)
    if step is not None and result.is_whole:
        b.steps[result.storage] = step
    return result


def _step(scale: Tensor, zero_point: Tensor | None, of: DType) -> tuple[str, float, int] | None:
    """The scale and the zero point of codes of a type; None unless each is one known number.

    A code's float32 has an error of 2**-24, and so has its quotient by the scale: of 16 bits and less, that rounds to the code.
    Codes of an already quantized tensor (around a Transpose, say) are therefore no new values.
    """
    factor, zero = (None if t is None else t.array for t in (scale, zero_point))
    if factor is None or factor.size != 1 or factor.dtype != np.float32 or of.kind == "bits" or of.bits > 16:
        return None
    if (zero_point is not None and (zero is None or zero.size != 1)) or not _is_usual(ex.leaf(scale)):
        return None
    return of.name, factor.item(), 0 if zero is None else int(zero.item())


def dequantized(
    b: Builder, x: Tensor, scale: Tensor, zero_point: Tensor | None, to: DType, axis: int, block_size: int
) -> Tensor:
    """``(x - zero_point) * scale``; constants of fewer than 8 bits stay packed in memory."""
    blocks = Blocks(b, x, scale, axis, block_size)
    shape = blocks.shape
    if scale.dtype.name == _POWERS:
        scale = b.cast(scale, FLOAT32)
    factor, zero = blocks.spread(scale), None if zero_point is None else blocks.spread(zero_point)
    if x.dtype.kind == "bits":
        number = b.cast_expr(ex.leaf(b.reshape(x, shape)), x.dtype, FLOAT32)
        scaled = b.expr("mul", number, factor, ctype="float")
        return b.reshape(b.store(fn.stored_as(scaled, to), to, shape=shape), x.shape)
    packed = _packed(b, x, shape)
    if packed is not None:  # several elements per byte: the innermost axis is split into bytes and the elements in them
        value, each = packed
        shape = (*shape[:-1], shape[-1] // each, each) if shape[-1] > 1 else (*shape[:2], shape[2] // each, each, 1)
        factor = _split(b, factor, blocks.shape, each)
        zero = None if zero is None else _split(b, zero, blocks.shape, each)
    else:
        value = b.expr("cast", b.reshape(x, shape), ctype="int")
    if zero is not None:
        value = value - b.expr("cast", zero, ctype="int")
    result = b.expr("mul", fn.cast(value, "float"), factor)
    return b.reshape(b.store(fn.stored_as(result, to), to, shape=shape), x.shape)


def _packed(b: Builder, x: Tensor, shape: Sequence[int]) -> tuple[Expr, int] | None:
    """A packed constant of fewer than 8 bits per element: the value in an expression, and the number of elements in a
    byte."""
    weight = x.storage.weight
    if not x.dtype.sub_byte_bits or weight is None or not x.is_whole:
        return None
    inner = shape[-1] if shape[-1] > 1 else shape[-2]
    if inner % (8 // x.dtype.bits):
        return None
    bits, each = x.dtype.bits, 8 // x.dtype.bits
    made = b.weight(PackedWeight(weight, 0, lambda values: pack(values, x.dtype), f"{weight.key}/packed"))
    split = (*shape[:-1], inner // each, each) if shape[-1] > 1 else (*shape[:-2], inner // each, each, 1)
    lead = split[: len(split) - (1 if shape[-1] > 1 else 2)]
    ones = (1,) * (len(split) - len(lead))
    view = b.reshape(made, (*lead, *ones)).expand(split)
    shifts = b.constant(np.arange(0, 8, bits, dtype=np.uint32)).view((each, *ones[1:]), (1, *(0,) * len(ones[1:])))
    code = fn.cast(b.expr("shift_right", view, shifts), x.dtype.glsl_compute)
    return fn.cast(fn.stored_as(code, x.dtype), "int"), each


def _split(b: Builder, t: Tensor, shape: Sequence[int], each: int) -> Tensor:
    """The scales after splitting the innermost axis of ``shape`` (of more than one element) into bytes and the elements
    in them."""
    if shape[-1] > 1:
        dims = (t.shape[-1] // each, each) if t.shape[-1] > 1 else (1, 1)
        return b.reshape(t, (*t.shape[:-1], *dims))
    dims = (t.shape[-2] // each, each) if t.shape[-2] > 1 else (1, 1)
    return b.reshape(t, (*t.shape[:-2], *dims, 1))


@operator("DynamicQuantizeLinear", types={"T1": ("float32",)})
def dynamic_quantize_linear(b: Builder, x: Tensor) -> list[Tensor]:
    if not x.size:  # as for zeros alone
        scale, zero_point = (b.constant(np.array(v)) for v in (np.float32(1), np.uint8(0)))
        return [b.empty(zero_point.dtype, x.shape), scale, zero_point]
    axes = list(range(x.rank))
    highest, lowest = (reduce_axes(b, op, x, axes, False) for op in ("max", "min"))
    most, least = b.reads(highest, lowest)
    spread = fn.maximum(most, 0) - fn.minimum(least, 0)
    scale = b.store(where(equal(spread, 0), 1, b.divide(spread, 255.0)), x.dtype)
    uint8 = UINT8
    initial = fn.clamp(0 - b.divide(fn.minimum(least, 0), scale), 0, 255)
    zero_point = b.store(fn.cast(fn.round_even(initial), "uint"), uint8, shape=())
    y = b.store(quantized(b, b.expr("same", x), scale, zero_point, uint8), uint8, shape=x.shape)
    return [y, scale, zero_point]


operator("QuantizeLinear", domain=MICROSOFT, types={"x": FLOATS})(quantize_linear)


operator("DequantizeLinear", domain=MICROSOFT, types={"x": (*BYTES, "int32", "int16", "uint16", "int4", "uint4")})(
    dequantize_linear
)
