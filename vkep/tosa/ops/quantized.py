"""Quantized regions: QuantizeLinear and DequantizeLinear (QDQ) around operators, folded into integer TOSA and RESCALE.

A DequantizeLinear says of its float result which integers it stands for (`Quantized`); an operator that knows integers
works on those and says the same of its own result; the QuantizeLinear after it becomes one RESCALE. The float forms are
made too, and dropped where nothing reads them.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from vkep.errors import Decline
from vkep.tosa.graph import Array, GraphBuilder, Quantized, Tensor, Value
from vkep.tosa.registry import constant_of, tosa_operator

_HALF_LIMIT = 31


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


def rescale(b: GraphBuilder, known: Quantized, scale: Array, zero: int, dtype: str, axis: int) -> Tensor:
    """Integers of scale ``known.scale`` as integers of ``scale`` and ``zero``: RESCALE."""
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
    return Tensor(made, perm, ints.scalar)


def _along(array: Array, rank: int, axis: int) -> Array:
    """A scale shaped to broadcast along ``axis``."""
    flat = np.asarray(array).reshape(-1)
    if flat.size == 1:
        return flat.reshape((1,) * rank)
    return flat.reshape([flat.size if i == axis else 1 for i in range(rank)])


def described(b: GraphBuilder, known: Quantized, dtype: str = "float32") -> Tensor:
    """The float tensor that the integers stand for, with what they are."""
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


def _parameters(
    b: GraphBuilder, x: Tensor, scale: Tensor, zero: Tensor | None, axis: int
) -> tuple[Array, int, int, str]:
    """Scale, zero point, axis (-1: one scale) and the integers' type."""
    scales = constant_of(scale, "the scale").reshape(-1)
    if zero is None:
        b.decline("no zero point: the integers are uint8, which TOSA computes with only in RESCALE")
    zeros = constant_of(zero, "the zero point").reshape(-1)
    if zeros.dtype != np.int8:
        b.decline(f"integers of type {zeros.dtype}; TOSA computes with int8")
    if len(set(zeros.tolist())) > 1:
        b.decline("a zero point of its own for each channel")
    return scales, int(zeros[0]), (axis % x.rank if scales.size > 1 else -1), "int8"


@tosa_operator("DequantizeLinear", types=("int8", "int32"), since=10)
def dequantize_linear(
    b: GraphBuilder,
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
) -> Tensor:
    if block_size or output_dtype not in (0, 1) or scale.dtype != "float32":
        b.decline("blocks, and results other than float32, are not lowered")
    if x.dtype == "int32":  # biases: no zero point, and a constant
        if x.array is None or (zero_point is not None and constant_of(zero_point, "the zero point").any()):
            b.decline("int32 that is no constant, or has a zero point")
        scales = constant_of(scale, "the scale").reshape(-1)
        return described(b, Quantized(x, scales, 0, axis % max(x.rank, 1) if scales.size > 1 else -1))
    scales, zero, where, _ = _parameters(b, x, scale, zero_point, axis)
    return described(b, Quantized(x, scales, zero, where))


@tosa_operator("QuantizeLinear", types=("float32",), since=10)
def quantize_linear(
    b: GraphBuilder,
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
    precision: int = 0,
    saturate: int = 1,
) -> Tensor:
    if block_size or output_dtype or precision:
        b.decline("blocks and output_dtype are not lowered")
    scales, zero, where, dtype = _parameters(b, x, scale, zero_point, axis)
    if x.quantized is not None and (x.quantized.axis < 0 or where < 0 or x.quantized.axis == where):
        return rescale(b, x.quantized, scales, zero, dtype, where)
    inverse = b.constant(_along(1 / scales.astype(np.float64), max(x.rank, 1), where), "float32")
    scaled = b.mul(x, inverse)
    # rounded before the zero point is added, as ONNX does: CAST rounds halves to even
    whole = b.elementwise("cast", b.clamp(scaled, -1e6, 1e6), dtype="int32")
    moved = b.add(whole, b.fill(whole, zero)) if zero else whole
    return b.elementwise("cast", b.clamp(moved, -128, 127), dtype=dtype)


# ---- for the operators that know integers


def product(x: Tensor, w: Tensor, out_axis: int, w_axis: int) -> tuple[Quantized, Quantized, Array, int] | None:
    """What a sum of products of two quantized tensors needs: both, the accumulator's scale and its axis.

    None where they are not quantized in a way that one accumulator can hold: ``x`` has one scale, ``w`` one, or one for
    each entry of ``w_axis``, which is the result's ``out_axis``.
    """
    a, c = x.quantized, w.quantized
    if a is None or c is None or a.axis >= 0 or c.axis not in (-1, w_axis):
        return None
    if a.ints.dtype != "int8" or c.ints.dtype != "int8":
        return None
    scale = np.asarray(a.scale, np.float64) * np.asarray(c.scale, np.float64)
    return a, c, scale, out_axis if c.axis >= 0 else -1


def bias_of(b: GraphBuilder, bias: Tensor | None, scale: Array, count: int) -> Tensor | None:
    """A bias in the accumulator's scale; None where it is no constant."""
    if bias is None:
        return b.constant(np.zeros(count, np.int32))
    if bias.array is None:
        return None
    if bias.quantized is not None and np.allclose(bias.quantized.scale, scale, rtol=1e-6, atol=0):
        return bias.quantized.ints
    whole = np.round(np.broadcast_to(bias.array.astype(np.float64).reshape(-1) / scale, (count,)))
    return b.constant(np.clip(whole, -(2**31), 2**31 - 1).astype(np.int32))


def accumulated(b: GraphBuilder, ints: Tensor, scale: Array, axis: int) -> Tensor:
    """The float tensor that an int32 accumulator stands for."""
    return described(b, Quantized(ints, np.asarray(scale, np.float64).reshape(-1), 0, axis))


def clamped(b: GraphBuilder, x: Tensor, floats: Tensor, low: float | None, high: float | None) -> Tensor:
    """A clamp of floats, done on the integers as well."""
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


def added(b: GraphBuilder, x: Tensor, y: Tensor, floats: Tensor) -> Tensor:
    """A sum of floats, done on integers as well: both rescaled to a common scale with room in 32 bits."""
    a, c = x.quantized, y.quantized
    if a is None or c is None or a.axis >= 0 or c.axis >= 0 or a.ints.dtype != "int8" or c.ints.dtype != "int8":
        return floats
    common = 2.0 * max(float(a.scale.reshape(-1)[0]), float(c.scale.reshape(-1)[0])) / (1 << 20)
    scale = np.array([common])
    try:
        left, right = (rescale(b, q, scale, 0, "int32", -1) for q in (a, c))
    except Decline:  # no RESCALE for these scales: the floats stand
        return floats
    return replace(floats, quantized=Quantized(b.add(left, right), scale, 0))


def pooled(floats: Tensor, known: Quantized, ints: Tensor) -> Tensor:
    """A maximum of floats that is also one of integers."""
    return replace(floats, quantized=Quantized(ints, known.scale, known.zero))


def same_everywhere(x: Tensor) -> Quantized | None:
    """The int8 integers of one scale behind a tensor."""
    known = x.quantized
    return known if known is not None and known.axis < 0 and known.ints.dtype == "int8" else None
