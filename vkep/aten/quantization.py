"""Quantizing and dequantizing, and choosing scales: per tensor, channel, token, and block.

Semantics: the reference functions of PyTorch (``torch.ao.quantization.fx._decomposed``) and torchao (``quant_primitives``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vkep.aten.arguments import Codes
from vkep.aten.builder import FLOAT, GraphBuilder, Number, Size, Val
from vkep.aten.reduction import reduced
from vkep.aten.registry import aten

_FLOAT32_EPS = 1.1920928955078125e-07
_FLOAT32_SMALLEST_NORMAL = 1.1754943508222875e-38


def quantized(
    b: GraphBuilder,
    x: Val,
    scale: Val | float,
    zero_point: Val | int | None,
    low: Number | None,
    high: Number | None,
    elem: int | None = None,
    zero_before_round: bool = False,
) -> Val:
    """``clamp(round(x / scale) + zero point)``, cast to ``elem``. Without a zero point the result is floating point."""
    x = b.cast(x, FLOAT)
    inverse = b.op("Reciprocal", b.cast(scale, FLOAT)) if isinstance(scale, Val) else b.number(1.0 / scale, FLOAT)
    out = b.op("Mul", x, inverse)
    shift = None if zero_point is None or zero_point == 0 else b.cast(_tensor(b, zero_point), FLOAT)
    if shift is not None and zero_before_round:
        out = b.op("Round", b.op("Add", out, shift))
    else:
        out = b.op("Round", out)
        out = out if shift is None else b.op("Add", out, shift)
    bounds = [None if v is None else b.number(float(v), FLOAT) for v in (low, high)]
    if bounds != [None, None]:
        out = b.op("Clip", out, *bounds)
    return out if elem is None else b.cast(out, elem)


def dequantized(b: GraphBuilder, x: Val, scale: Val | float, zero_point: Val | int | None) -> Val:
    """``(x - zero point) * scale`` in float32."""
    x = b.cast(x, FLOAT)
    if zero_point is not None and zero_point != 0:
        x = b.op("Sub", x, b.cast(_tensor(b, zero_point), FLOAT))
    return b.op("Mul", x, b.cast(_tensor(b, scale), FLOAT))


def _tensor(b: GraphBuilder, value: Val | float) -> Val:
    return value if isinstance(value, Val) else b.number(float(value), FLOAT)


def _present(zero_point: Val | None) -> Val | None:
    """Whether there is a zero point: an empty tensor stands for none."""
    return None if zero_point is None or 0 in zero_point.dims else zero_point


# ---- per tensor


@aten("quantized_decomposed.quantize_per_tensor.default")
def quantize_per_tensor(
    b: GraphBuilder, x: Val, scale: float, zero_point: int, quant_min: int, quant_max: int, dtype: object = None
) -> Val:
    return quantized(b, x, scale, zero_point, quant_min, quant_max, b.results[0].elem)


@aten("quantized_decomposed.quantize_per_tensor.tensor")
def quantize_per_tensor_tensor(
    b: GraphBuilder, x: Val, scale: Val, zero_point: Val, quant_min: int, quant_max: int, dtype: object = None
) -> Val:
    one, zero = _scalar(b, scale), _scalar(b, zero_point)
    return quantized(b, x, one, zero, quant_min, quant_max, b.results[0].elem)


@aten("quantized_decomposed.dequantize_per_tensor.default")
def dequantize_per_tensor(b: GraphBuilder, x: Val, scale: float, zero_point: int, codes: Codes) -> Val:
    return dequantized(b, x, scale, zero_point)


@aten("quantized_decomposed.dequantize_per_tensor.tensor")
def dequantize_per_tensor_tensor(b: GraphBuilder, x: Val, scale: Val, zero_point: Val, codes: Codes) -> Val:
    return dequantized(b, x, _scalar(b, scale), _scalar(b, zero_point))


def _scalar(b: GraphBuilder, value: Val) -> Val:
    return value if not value.rank else b.reshape(value, [])


# ---- per channel and per token


def _along(b: GraphBuilder, values: Val, axis: int, rank: int) -> Val:
    return b.reshape(values, [-1 if k == axis else 1 for k in range(rank)])


@aten("quantized_decomposed.quantize_per_channel.default")
def quantize_per_channel(
    b: GraphBuilder,
    x: Val,
    scales: Val,
    zero_points: Val | None,
    axis: int,
    quant_min: int,
    quant_max: int,
    dtype: object = None,
) -> Val:
    axis, zeros = b.axis(axis, x.rank), _present(zero_points)
    zeros = zeros and _along(b, zeros, axis, x.rank)
    return quantized(b, x, _along(b, scales, axis, x.rank), zeros, quant_min, quant_max, b.results[0].elem)


@aten("quantized_decomposed.dequantize_per_channel.default")
def dequantize_per_channel(
    b: GraphBuilder, x: Val, scales: Val, zero_points: Val | None, axis: int, codes: Codes
) -> Val:
    axis, zeros = b.axis(axis, x.rank), _present(zero_points)
    return dequantized(b, x, _along(b, scales, axis, x.rank), zeros and _along(b, zeros, axis, x.rank))


def per_token(b: GraphBuilder, values: Val, x: Val) -> Val:
    """One value for each row of ``x``, as a tensor that broadcasts against it."""
    if values.rank == x.rank or not values.rank:
        return values
    if values.rank == x.rank - 1:
        return b.unsqueeze(values, [values.rank])
    return b.reshape(values, [*x.shape[:-1], 1])


@aten("quantized_decomposed.quantize_per_token.default")
def quantize_per_token(
    b: GraphBuilder, x: Val, scales: Val, zero_points: Val, quant_min: int, quant_max: int, dtype: object = None
) -> Val:
    zeros = per_token(b, zero_points, x)
    return quantized(b, x, per_token(b, scales, x), zeros, quant_min, quant_max, b.results[0].elem, True)


@aten("quantized_decomposed.dequantize_per_token.default")
def dequantize_per_token(b: GraphBuilder, x: Val, scales: Val, zero_points: Val, codes: Codes) -> Val:
    return dequantized(b, x, per_token(b, scales, x), per_token(b, zero_points, x))


# ---- choosing


def _range(b: GraphBuilder, x: Val, axes: Sequence[int]) -> tuple[Val, Val]:
    """The minimum and maximum along some axes (kept with size 1); the range always includes zero."""
    x, zero = b.cast(x, FLOAT), b.number(0.0, FLOAT)
    if not x.rank:
        return b.op("Min", x, zero), b.op("Max", x, zero)
    least, greatest = (reduced(b, op_type, x, axes, True) for op_type in ("ReduceMin", "ReduceMax"))
    return b.op("Min", least, zero), b.op("Max", greatest, zero)


def _asymmetric(b: GraphBuilder, least: Val, greatest: Val, low: Number, high: Number, eps: float) -> tuple[Val, Val]:
    scale = b.op("Div", b.op("Sub", greatest, least), b.number(float(high - low), FLOAT))
    scale = b.op("Max", scale, b.number(eps, FLOAT))
    zero = b.op("Sub", b.number(float(low), FLOAT), b.op("Round", b.op("Div", least, scale)))
    return scale, b.op("Clip", zero, b.number(float(low), FLOAT), b.number(float(high), FLOAT))


@aten("quantized_decomposed.choose_qparams.tensor")
def choose_qparams(
    b: GraphBuilder, x: Val, quant_min: int, quant_max: int, eps: float, dtype: object = None
) -> list[Val]:
    found = _asymmetric(b, *_range(b, x, range(x.rank)), quant_min, quant_max, eps)
    return [b.reshape(v, r.shape) for v, r in zip(found, b.results, strict=True)]


@aten("quantized_decomposed.choose_qparams_per_token_asymmetric.default")
def choose_qparams_per_token(b: GraphBuilder, x: Val, dtype: object = None) -> list[Val]:
    """As XNNPACK does: the zero point is computed from the end of the range with the smaller rounding error."""
    least, greatest = _range(b, x, [x.rank - 1])
    low, high = b.number(-128.0, FLOAT), b.number(127.0, FLOAT)
    scale = b.op("Div", b.op("Sub", greatest, least), b.number(255.0, FLOAT))
    scale = b.op("Max", scale, b.number(_FLOAT32_EPS, FLOAT))
    down, up = b.op("Div", least, scale), b.op("Div", greatest, scale)
    error = b.op("Add", b.op("Add", low, down), b.op("Add", high, up))
    zero = b.op(
        "Where",
        b.op("Greater", error, b.number(0.0, FLOAT)),
        b.op("Sub", low, down),
        b.op("Sub", high, up),
        elem=FLOAT,
    )
    return [scale, b.op("Round", b.op("Clip", zero, low, high))]


# ---- by blocks (torchao)


@dataclass(frozen=True)
class _Blocks:
    """A tensor in which every axis with several blocks is split in two."""

    x: Val
    reduced: tuple[int, ...]  #: axes of ``x`` that lie within a block
    split: bool

    def parameters(self, b: GraphBuilder, values: Val | None) -> Val | None:
        """Scales or zero points of the blocks, as a tensor that broadcasts against ``x``."""
        values = _present(values)
        if values is None or not values.rank or (not self.split and values.rank == self.x.rank):
            return values
        if not self.split and values.rank == self.x.rank - len(self.reduced):
            return b.unsqueeze(values, self.reduced) if self.reduced else values
        return b.reshape(values, [1 if k in self.reduced else d for k, d in enumerate(self.x.shape)])


def _blocks(b: GraphBuilder, x: Val, block_size: Sequence[Size]) -> _Blocks:
    sizes: list[int] = []
    inside: list[int] = []
    split = False
    for axis, block in enumerate(block_size):
        size = x.dims[axis]
        if isinstance(block, int) and block != 1 and size is not None and block != size:
            if size % block:
                b.decline(f"axis {axis} of size {size} in blocks of {block}")
            split = True
            sizes += [size // block, block]
            inside.append(len(sizes) - 1)
        else:
            if block != 1:
                inside.append(len(sizes))
            sizes.append(-1 if size is None else size)
    return _Blocks(b.reshape(x, sizes) if split else x, tuple(inside), split)


@aten("torchao.quantize_affine.default")
def quantize_affine(
    b: GraphBuilder,
    x: Val,
    block_size: Sequence[Size],
    scale: Val,
    zero_point: Val | None,
    output_dtype: object = None,
    quant_min: Number | None = None,
    quant_max: Number | None = None,
) -> Val:
    blocks, elem = _blocks(b, x, block_size), b.results[0].elem
    scales = blocks.parameters(b, scale)
    assert scales is not None
    low, high = (-128 if elem == 3 else 0, 127 if elem == 3 else 255) if quant_min is None else (quant_min, quant_max)
    out = quantized(b, blocks.x, scales, blocks.parameters(b, zero_point), low, high, elem)
    return b.reshape(out, x.shape) if blocks.split else out


@aten("torchao.dequantize_affine.default")
def dequantize_affine(
    b: GraphBuilder,
    x: Val,
    block_size: Sequence[Size],
    scale: Val,
    zero_point: Val | None,
    input_dtype: object = None,
    quant_min: Number | None = None,
    quant_max: Number | None = None,
    output_dtype: object = None,
) -> Val:
    blocks = _blocks(b, x, block_size)
    scales = blocks.parameters(b, scale)
    assert scales is not None
    out = dequantized(b, blocks.x, scales, blocks.parameters(b, zero_point))
    return b.reshape(out, x.shape) if blocks.split else out


@aten("torchao.choose_qparams_affine.default")
def choose_qparams_affine(
    b: GraphBuilder,
    x: Val,
    mapping_type: str,
    block_size: Sequence[Size],
    target_dtype: object = None,
    quant_min: Number | None = None,
    quant_max: Number | None = None,
    eps: float | None = None,
    scale_dtype: object = None,
    zero_point_dtype: object = None,
    keepdim: bool = False,
) -> list[Val]:
    """The blob does not record the target type: without a range it is int8, the only one that the backend has."""
    low: Number = -128 if quant_min is None else quant_min
    high: Number = 127 if quant_max is None else quant_max
    eps = _FLOAT32_SMALLEST_NORMAL if eps is None else eps
    blocks = _blocks(b, x, block_size)
    if not blocks.reduced:
        b.decline("blocks of one element")
    least, greatest = _range(b, blocks.x, blocks.reduced)
    if mapping_type == "ASYMMETRIC":
        scale, zero = _asymmetric(b, least, greatest, low, high, eps)
    elif mapping_type in ("SYMMETRIC", "SYMMETRIC_NO_CLIPPING_ERR"):
        if mapping_type == "SYMMETRIC":
            largest = b.op("Max", b.op("Neg", least), greatest)
            scale = b.op("Div", largest, b.number(float(high - low) / 2, FLOAT))
        else:
            ends = (b.op("Div", v, b.number(float(n), FLOAT)) for v, n in ((least, low), (greatest, high)))
            scale = b.op("Max", *ends)
        scale = b.op("Max", scale, b.number(eps, FLOAT))
        zero = b.op("Expand", b.number(float(int((high + low + 1) / 2)), FLOAT), b.sizes(scale), dims=scale.dims)
    else:
        b.decline(f"mapping_type {mapping_type!r}")
    if keepdim and blocks.split:
        return [b.reshape(v, r.shape) for v, r in zip((scale, zero), b.results, strict=True)]
    return [scale, zero] if keepdim else [b.squeeze(v, blocks.reduced) for v in (scale, zero)]
