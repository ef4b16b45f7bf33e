"""Quantized regions: QuantizeLinear and DequantizeLinear (QDQ) around operators, folded into integer TOSA and RESCALE.

A DequantizeLinear annotates its float result with the integers that it represents (`Quantized`); an operator that
supports integers computes with those and annotates its own result; the QuantizeLinear after it becomes one RESCALE. The
float operations are added too, and dropped where nothing reads them. uint8 is represented by the int8 that is 128 less,
as is its zero point.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from vkep import dtypes
from vkep.errors import Decline
from vkep.graph.attributes import DequantizeAttributes, QuantizeAttributes
from vkep.tosa.graph import Array, Quantized, TosaBuilder, TosaTensor, Value
from vkep.tosa.ops.casts import cast_to
from vkep.tosa.registry import axis_of, constant_of, tosa_operator
from vkep.tosa.type_legalization import flip

_HALF_LIMIT = 31

#: the attributes of an internal call
_DEQUANTIZE, _QUANTIZE = DequantizeAttributes(), QuantizeAttributes()


def multiplier_and_shift(scale: float) -> tuple[int, int]:
    """``scale`` as a multiplier of 31 bits and a shift: scale = multiplier / 2**shift, 2 <= shift <= 62 (RESCALE).

    Raises ``ValueError`` for a scale that is not positive or beyond those.
    """
    if not 0 < scale < math.inf:
        raise ValueError(f"a scale of {scale}")
    mantissa, exponent = math.frexp(scale)
    multiplier, shift = round(mantissa * (1 << _HALF_LIMIT)), _HALF_LIMIT - exponent
    if multiplier == 1 << _HALF_LIMIT:
        multiplier, shift = multiplier >> 1, shift - 1
    if shift > 62:
        multiplier, shift = multiplier >> min(shift - 62, 31), 62
    if shift < 2 or not multiplier:
        raise ValueError(f"a scale of {scale} needs a shift of {shift}, RESCALE has 2 to 62")
    return multiplier, shift


def rescale(b: TosaBuilder, known: Quantized, scale: Array, zero: int, dtype: str, axis: int) -> TosaTensor:
    """Convert integers of scale ``known.scale`` to integers of ``scale`` and ``zero``: RESCALE."""
    ints = known.ints
    ratio = np.atleast_1d(np.asarray(known.scale, np.float64) / np.asarray(scale, np.float64))
    per_channel = ratio.size > 1
    channel = known.axis if known.axis >= 0 else axis
    order = [i for i in range(ints.rank) if i != channel] + [channel] if per_channel else None
    if order is None:
        value, perm = ints.value, ints.perm  # whatever the order of the axes
    else:
        value = b.ordered(ints, order)
        perm = tuple(int(i) for i in np.argsort(order))
    try:
        pairs = [multiplier_and_shift(float(r)) for r in ratio]
    except ValueError as error:
        b.decline(str(error))
    numbers = Value("int32", (len(pairs),), np.array([m for m, _ in pairs], np.int32))
    shifts = Value("int8", (len(pairs),), np.array([s for _, s in pairs], np.int8))
    made = b.op(
        "rescale",
        [value, numbers, shifts, b.zero_point(ints.dtype, known.zero), b.zero_point(dtype, zero)],
        value.shape,
        dtype,
        scale32="true",
        rounding_mode="#tosa.rounding_mode<SINGLE_ROUND>",
        per_channel="true" if per_channel else "false",
        input_unsigned="false",
        output_unsigned="false",
    )
    return TosaTensor(made, perm, ints.scalar)


def _along(array: Array, rank: int, axis: int) -> Array:
    """A scale shaped to broadcast along ``axis``."""
    flat = np.asarray(array).reshape(-1)
    if flat.size == 1:
        return flat.reshape((1,) * rank)
    return flat.reshape([flat.size if i == axis else 1 for i in range(rank)])


def described(b: TosaBuilder, known: Quantized, dtype: str = "float32") -> TosaTensor:
    """The float tensor that the integers represent, annotated with them."""
    ints = known.ints
    if ints.array is not None:
        wide = ints.array.astype(np.float64) - known.zero
        floats = b.constant((wide * _along(known.scale, ints.rank, known.axis)).astype(dtype))
    else:
        floats = b.elementwise("cast", ints, dtype=dtype)
        if known.zero:
            floats = b.sub(floats, b.fill(floats, known.zero))
        floats = b.mul(floats, b.constant(_along(known.scale, max(ints.rank, 1), known.axis), dtype))
    return replace(floats, quantized=known)


_INTEGERS = {"int8": (-128, 127), "uint8": (0, 255), "int16": (-(2**15), 2**15 - 1)}


def _parameters(
    scale: TosaTensor, zero: TosaTensor | None, dtype: str, x: TosaTensor, axis: int
) -> tuple[Array, Array, int]:
    """Scales and zero points (one, or one for each entry of the axis) and the axis (-1: one)."""
    scales = constant_of(scale, "the scale").reshape(-1)
    if scale.dtype != "float32" or dtype not in _INTEGERS:
        raise Decline(f"a scale of {scale.dtype} and integers of {dtype}")
    zeros = constant_of(zero, "the zero point").reshape(-1) if zero is not None else np.zeros(1)
    return scales, zeros.astype(np.int64), axis_of(axis, x.rank) if max(scales.size, zeros.size) > 1 else -1


@tosa_operator("DequantizeLinear", types=("int8", "uint8", "int16", "int32"), since=10)
def dequantize_linear(
    b: TosaBuilder,
    x: TosaTensor,
    scale: TosaTensor,
    zero_point: TosaTensor | None = None,
    *,
    a: DequantizeAttributes = _DEQUANTIZE,
) -> TosaTensor:
    if a.block_size or a.output_dtype not in (0, 1) or scale.dtype != "float32":
        b.decline("blocks, and results other than float32, are not lowered")
    if x.dtype == "int32":  # biases: no zero point, and a constant
        if x.array is None or (zero_point is not None and constant_of(zero_point, "the zero point").any()):
            b.decline("int32 that is no constant, or has a zero point")
        scales = constant_of(scale, "the scale").reshape(-1)
        return described(b, Quantized(x, scales, 0, a.axis % max(x.rank, 1) if scales.size > 1 else -1))
    scales, zeros, where = _parameters(scale, zero_point, x.dtype, x, a.axis)
    if x.dtype == "uint8":
        x, zeros = flip(b, x), zeros - 128
    if len(set(zeros.tolist())) == 1:
        return described(b, Quantized(x, scales, int(zeros[0]), where))
    # a zero point for each channel: constants are moved to the common zero point 0 where they still fit
    if x.array is not None:
        moved = x.array.astype(np.int64) - _along(zeros, x.rank, where)
        if x.dtype == "int8" and moved.min() >= -128 and moved.max() <= 127:
            return described(b, Quantized(b.constant(moved.astype(np.int8)), scales, 0, where))
    floats = cast_to(b, x, "float32")
    centered_ = b.sub(floats, b.constant(_along(zeros, x.rank, where), "float32"))
    return b.mul(centered_, b.constant(_along(scales, x.rank, where), "float32"))


@tosa_operator("QuantizeLinear", types=("float32",), since=10)
def quantize_linear(
    b: TosaBuilder,
    x: TosaTensor,
    scale: TosaTensor,
    zero_point: TosaTensor | None = None,
    *,
    a: QuantizeAttributes = _QUANTIZE,
) -> TosaTensor:
    wanted = dtypes.from_onnx(a.output_dtype) if a.output_dtype else None
    dtype = zero_point.dtype if zero_point is not None else wanted.name if wanted is not None else "uint8"
    if a.block_size or a.precision:
        b.decline("blocks and precision are not lowered")
    scales, zeros, where = _parameters(scale, zero_point, dtype, x, a.axis)
    if dtype == "uint8":
        return flip(b, _quantize(b, x, scales, zeros - 128, where, "int8"))
    return _quantize(b, x, scales, zeros, where, dtype)


def _quantize(b: TosaBuilder, x: TosaTensor, scales: Array, zeros: Array, where: int, dtype: str) -> TosaTensor:
    zero = int(zeros[0]) if len(set(zeros.tolist())) == 1 else None
    known = x.quantized
    # RESCALE supports zero points of 8 bits only
    fits = zero is not None and (zero == 0 or dtype == "int8")
    if known is not None and fits and (known.zero == 0 or known.ints.dtype != "int16"):
        assert zero is not None
        if known.axis < 0 or where < 0 or known.axis == where:
            return rescale(b, known, scales, zero, dtype, where)
    low, high = _INTEGERS[dtype]
    if x.table is not None and zero is not None and where < 0 and dtype == "int8":
        steps = x.table.outputs.astype(np.float32) / scales[0]
        entries = np.clip(np.rint(np.nan_to_num(steps, nan=0.0)).astype(np.float64) + zero, low, high)
        table = Value("int8", (256,), entries.astype(np.int8))
        source = x.table.ints
        return TosaTensor(b.op("table", [source.value, table], source.value.shape), source.perm, source.scalar)
    rank = max(x.rank, 1)
    inverse = b.constant(_along(1 / scales.astype(np.float64), rank, where), "float32")
    scaled = b.mul(x, inverse)
    # rounded before the zero point is added, as ONNX does: CAST rounds halves to even
    whole = b.elementwise("cast", b.clamp(scaled, -1e6, 1e6), dtype="int32")
    if zero != 0:
        whole = b.add(whole, b.constant(_along(zeros, rank, where), "int32"))
    return b.elementwise("cast", b.clamp(whole, low, high), dtype=dtype)


# ---- for operators that support integers


def product(x: TosaTensor, w: TosaTensor, out_axis: int, w_axis: int) -> tuple[Quantized, Quantized, Array, int] | None:
    """The operands of a sum of products of two quantized tensors: both, the accumulator's scale and its axis.

    None where one accumulator cannot hold the sum: ``x`` needs one scale, ``w`` one, or one for each entry of
    ``w_axis``, which is the result's ``out_axis``.
    """
    a, c = x.quantized, w.quantized
    if a is None or c is None or a.axis >= 0 or c.axis not in (-1, w_axis):
        return None
    if a.ints.dtype != "int8" or c.ints.dtype != "int8":
        return None
    scale = np.asarray(a.scale, np.float64) * np.asarray(c.scale, np.float64)
    return a, c, scale, out_axis if c.axis >= 0 else -1


def bias_of(b: TosaBuilder, bias: TosaTensor | None, scale: Array, count: int) -> TosaTensor | None:
    """A bias in the accumulator's scale; None where it is not constant."""
    if bias is None:
        return b.constant(np.zeros(count, np.int32))
    if bias.array is None:
        return None
    if bias.quantized is not None and np.allclose(bias.quantized.scale, scale, rtol=1e-6, atol=0):
        return bias.quantized.ints
    whole = np.round(np.broadcast_to(bias.array.astype(np.float64).reshape(-1) / scale, (count,)))
    return b.constant(np.clip(whole, -(2**31), 2**31 - 1).astype(np.int32))


def accumulated(b: TosaBuilder, ints: TosaTensor, scale: Array, axis: int) -> TosaTensor:
    """The float tensor that an int32 accumulator represents."""
    return described(b, Quantized(ints, np.asarray(scale, np.float64).reshape(-1), 0, axis))


def clamped(b: TosaBuilder, x: TosaTensor, floats: TosaTensor, low: float | None, high: float | None) -> TosaTensor:
    """A clamp of floats, also computed on the integers."""
    known = x.quantized
    if known is None or known.axis >= 0:
        return floats
    scale = float(np.asarray(known.scale).reshape(-1)[0])

    def whole(limit: float | None) -> int | None:
        if limit is None or math.isinf(limit):
            return None
        value = round(limit / scale) + known.zero
        return max(-(2**31), min(2**31 - 1, value)) if known.ints.dtype == "int32" else max(-128, min(127, value))

    ints = b.clamp(known.ints, whole(low), whole(high))
    return replace(floats, quantized=Quantized(ints, known.scale, known.zero))


def added(b: TosaBuilder, x: TosaTensor, y: TosaTensor, floats: TosaTensor, name: str = "add") -> TosaTensor:
    """A sum (or difference) of floats, also computed on integers: both are rescaled to a common scale that fits 32
    bits."""
    a, c = same_everywhere(x), same_everywhere(y)
    if a is None or c is None:
        return floats
    common = 2.0 * max(float(a.scale.reshape(-1)[0]), float(c.scale.reshape(-1)[0])) / (1 << 20)
    scale = np.array([common])
    try:
        left, right = (rescale(b, q, scale, 0, "int32", -1) for q in (a, c))
    except Decline:  # no RESCALE for these scales: only the floats are computed
        return floats
    return replace(floats, quantized=Quantized(b.elementwise(name, left, right), scale, 0))


def multiplied(b: TosaBuilder, x: TosaTensor, y: TosaTensor, floats: TosaTensor) -> TosaTensor:
    """A product of floats, also computed exactly on integers."""
    a, c = same_everywhere(x), same_everywhere(y)
    if a is None or c is None or a.ints.value is c.ints.value:
        return floats
    scale = np.asarray(a.scale, np.float64).reshape(-1) * np.asarray(c.scale, np.float64).reshape(-1)
    return replace(floats, quantized=Quantized(b.mul(centered(b, a), centered(b, c)), scale, 0))


def alike(floats: TosaTensor, known: Quantized, ints: TosaTensor) -> TosaTensor:
    """Floats that represent ``ints`` with the same scale and zero point."""
    return replace(floats, quantized=Quantized(ints, known.scale, known.zero))


def same_everywhere(x: TosaTensor) -> Quantized | None:
    """The int8 integers of a tensor with one scale."""
    known = x.quantized
    return known if known is not None and known.axis < 0 and known.ints.dtype == "int8" else None


def centered(b: TosaBuilder, known: Quantized) -> TosaTensor:
    """int8 integers less their zero point, in 32 bits."""
    return rescale(b, known, known.scale, 0, "int32", -1)
