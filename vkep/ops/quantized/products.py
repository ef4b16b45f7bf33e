"""Products and convolutions of quantized tensors.

Exact sums in int32, rounded once: ONNX MatMulInteger, QLinearMatMul, ConvInteger and QLinearConv, and ONNX Runtime's operators
of domain com.microsoft.

float32 holds every whole number up to 2**24, and its kernels are the fast ones: sums of at most that size are computed there, a
longer one in parts, which are added in int32. Sums of more than a few parts are computed in int32 as a whole.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from vkep.dtypes import DTYPES, FLOAT16, FLOAT32, INT8, INT16, INT32, DType
from vkep.graph.attributes import ConvAttributes
from vkep.graph.weights import PackedWeight
from vkep.ir import algebra as fn
from vkep.ir import float8
from vkep.ir.builder import Builder
from vkep.ir.expr import Expr
from vkep.ir.tensor import Tensor, channels_first
from vkep.ir.tensor import channels_last as as_channels_last
from vkep.kernels.launch import ceil_div
from vkep.ops.allowed import BYTES, SINGLE, every
from vkep.ops.codes import Operands, known_halves, known_operands, takes_halves
from vkep.ops.contraction import matrix_product, takes_wide
from vkep.ops.convolution import convolution
from vkep.ops.convolution import takes_wide as convolves_wide
from vkep.ops.elementwise import gelu
from vkep.ops.generators import numeric
from vkep.ops.microsoft import MICROSOFT, activated
from vkep.ops.quantized.linear import dynamic_quantize_linear, known_values, rounded_to
from vkep.ops.registry import FLOATS, operator
from vkep.sizes import matches, serves_others

#: float32 holds every whole number up to this
_EXACT = 2**24
#: parts of a sum beyond which it is computed in int32
_MOST_PARTS = 8


def plus_bias(b: Builder, total: Tensor, bias: Tensor | None) -> Expr:
    """A sum of whole numbers in int32 or float32 and a bias in int32, rounded to float32 once."""
    known = None if bias is None else bias.array
    if bias is None:
        return b.expr("cast", total, ctype="float")
    if total.dtype is FLOAT32 and known is not None and _most_of(known) <= _EXACT:
        return b.expr("add", total, b.constant(known.astype(np.float32)))
    return fn.cast(b.expr("add", b.expr("cast", total, ctype="int"), bias), "float")


def _may_round(bias: Tensor | None, factor: Expr) -> bool:
    """Whether 8-bit codes are the same where float32 rounds the sums before the bias is added, and not only after it: each sum of
    more than 2**24 then becomes the end of the range, whatever the zero point."""
    if bias is None:
        return True
    known, scales = bias.array, known_values(factor)
    if known is None or scales is None:
        return False
    return bool(np.all((_EXACT - np.abs(known.astype(np.float64))) * np.abs(scales.astype(np.float64)) >= 257))


def _most_of(values: np.ndarray) -> int:
    return int(np.abs(values.astype(np.int64)).max(initial=0))


def ratio(b: Builder, x: Tensor, y: Tensor, z: Tensor) -> Expr:
    """``x * y / z`` in float32, by which an integer result is scaled before it is rounded: so rounded at each step itself."""
    known = [t.array for t in (x, y, z)]
    if all(values is not None and values.dtype == np.float32 for values in known):
        return b.expr("same", b.constant(known[0] * known[1] / known[2]))  # type: ignore[operator]
    return b.divide(b.expr("mul", x, y, ctype="float"), z)


@operator("MatMulInteger", types={"T1": BYTES, "T2": BYTES})
def matmul_integer(
    b: Builder, a: Tensor, y: Tensor, a_zero_point: Tensor | None = None, b_zero_point: Tensor | None = None
) -> Tensor:
    return integer_product(b, a, y, a_zero_point, b_zero_point)


@operator(
    "QLinearMatMul",
    types={
        **{name: every("QLinearMatMul", name, (*BYTES, *float8.FORMATS)) for name in ("T1", "T2", "T3")},
        "TS": SINGLE,
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
        floats = matrix_product(b, b.cast(a, FLOAT32), b.cast(y, FLOAT32))
        return b.store(float8.encode(b.expr("mul", floats, factor), made), made, shape=floats.shape)
    product = product_sums(b, a, y, a_zero_point, b_zero_point, may_round=True)
    value = b.expr("cast", product, ctype="float") * factor
    result = rounded_to(b, value, of_rows(b, y_zero_point), y_zero_point.dtype)
    return b.store(result, y_zero_point.dtype, shape=product.shape)


# ---- convolutions


@operator("ConvInteger", types={"T1": BYTES, "T2": BYTES})
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


@operator("QLinearConv", types={"T1": BYTES, "T2": BYTES, "T3": BYTES, "T4": ("int32",)})
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
    b.expect("the bias", bias, w.shape[:1])
    bias = None if bias is None else of_channels(b, bias, x.rank, 1)
    factor = ratio(b, x_scale, of_channels(b, w_scale, x.rank, 1), y_scale)
    total = convolution_sums(b, x, w, x_zero_point, w_zero_point, a, _may_round(bias, factor))
    result = rounded_to(b, plus_bias(b, total, bias) * factor, y_zero_point, y_zero_point.dtype)
    return b.store(result, y_zero_point.dtype, shape=total.shape)


# ---- domain com.microsoft


@operator("MatMulIntegerToFloat", domain=MICROSOFT, types={"a": BYTES, "y": BYTES, "a_scale b_scale bias": FLOATS})
def matmul_integer_to_float(
    b: Builder,
    a: Tensor,
    y: Tensor,
    a_scale: Tensor,
    b_scale: Tensor,
    a_zero_point: Tensor | None = None,
    b_zero_point: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    product = product_sums(b, a, y, a_zero_point, b_zero_point, may_round=True)
    return _scaled_to_float(b, product, a_scale, b_scale, bias)


@operator("DynamicQuantizeMatMul", domain=MICROSOFT, types={"a b_scale bias": ("float32",), "y": BYTES})
def dynamic_quantize_matmul(
    b: Builder,
    a: Tensor,
    y: Tensor,
    b_scale: Tensor,
    b_zero_point: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    codes, scale, zero_point = dynamic_quantize_linear(b, a)
    product = product_sums(b, codes, y, zero_point, b_zero_point, may_round=True)
    return _scaled_to_float(b, product, scale, b_scale, bias)


def _scaled_to_float(b: Builder, product: Tensor, a_scale: Tensor, b_scale: Tensor, bias: Tensor | None) -> Tensor:
    factor = b.expr("mul", a_scale, b_scale, ctype="float")
    value = b.expr("cast", product, ctype="float") * factor
    b.expect("bias", bias, product.shape[-1:])
    if bias is not None:
        value = b.expr("add", value, bias)
    return b.store(value, a_scale.dtype, shape=product.shape)


@operator(
    "QGemm",
    domain=MICROSOFT,
    types={"a": BYTES, "y": BYTES, "a_scale b_scale y_scale": ("float32",), "c": ("int32",)},
)
def qgemm(
    b: Builder,
    a: Tensor,
    a_scale: Tensor,
    a_zero_point: Tensor,
    y: Tensor,
    b_scale: Tensor,
    b_zero_point: Tensor,
    c: Tensor | None = None,
    y_scale: Tensor | None = None,
    y_zero_point: Tensor | None = None,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Tensor:
    for what, one in {
        "a_scale": a_scale,
        "a_zero_point": a_zero_point,
        "y_scale": y_scale,
        "y_zero_point": y_zero_point,
    }.items():
        b.expect(what, one, (), (1,))
    if a.rank != 2 or y.rank != 2:
        b.invalid(f"matrices of shape {list(a.shape)} and {list(y.shape)}, expected 2 axes each")
    columns = y.shape[0] if transB else y.shape[1]
    for what, one in {"b_scale": b_scale, "b_zero_point": b_zero_point}.items():
        b.expect(what, one, (), (1,), (columns,))
    b.expect("b_scale", b_scale, b_zero_point.shape)
    a = a.transpose((1, 0)) if transA else a
    if transB:
        y = y.transpose((1, 0))
    total = product_sums(b, a, y, a_zero_point, b_zero_point, may_round=c is None)
    factor = b.expr("mul", b.expr("mul", a_scale, b_scale), alpha)
    result = plus_bias(b, total, c) * factor
    if y_scale is not None:
        result = b.divide(result, y_scale)
    if y_scale is None or y_zero_point is None:
        return b.store(result, a_scale.dtype, shape=total.shape)
    dtype = y_zero_point.dtype
    result = rounded_to(b, result, y_zero_point, dtype)
    return b.store(result, dtype, shape=total.shape)


@operator(
    "QLinearConv",
    domain=MICROSOFT,
    types={
        "x x_zero_point": BYTES,
        "w w_zero_point": BYTES,
        "y_zero_point": BYTES,
        "x_scale w_scale y_scale": ("float32",),
        "bias": ("int32",),
    },
)
def qlinear_conv_(
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
    channels_last: int = 0,
) -> Tensor:
    if channels_last:
        x = channels_first(x)
    y = qlinear_conv(b, x, x_scale, x_zero_point, w, w_scale, w_zero_point, y_scale, y_zero_point, bias, a=a)
    return as_channels_last(y) if channels_last else y


_EIGHT_BITS = ("float8_e4m3fn", "float8_e5m2", "float32", "float16", "bfloat16")


@operator(
    "GemmFloat8",
    domain=MICROSOFT,
    types={"x": _EIGHT_BITS, "y": _EIGHT_BITS, "c": _EIGHT_BITS[2:], "x_scale y_scale z_scale": ("float32",)},
)
def gemm_float8(
    b: Builder,
    x: Tensor,
    y: Tensor,
    c: Tensor | None = None,
    x_scale: Tensor | None = None,
    y_scale: Tensor | None = None,
    z_scale: Tensor | None = None,
    *,
    activation: str = "NONE",
    alpha: float = 1.0,
    beta: float = 0.0,
    dtype: int = 1,
    transA: int = 0,
    transB: int = 0,
) -> Tensor:
    """``scaleY * activation(alpha * scaleA * scaleB * x @ y + beta * c)``, in float32."""
    if activation not in ("NONE", "RELU", "GELU"):
        b.invalid(f"activation is {activation!r}, expected NONE, RELU or GELU")
    if x.rank != 2 or y.rank != 2:
        b.invalid(f"matrices of shape {list(x.shape)} and {list(y.shape)}, expected 2 axes each")
    made = numeric(b, dtype, FLOAT32)
    left, right = (
        t.transpose((1, 0)) if swap else t for t, swap in ((b.cast(x, FLOAT32), transA), (b.cast(y, FLOAT32), transB))
    )
    value = b.expr("mul", matrix_product(b, left, right), alpha)
    shape = (left.shape[0], right.shape[1])
    for what, scale in {"scaleA": x_scale, "scaleB": y_scale, "scaleY": z_scale}.items():
        b.expect(what, scale, (), (1,))
        if scale is not None and what != "scaleY":
            value = b.expr("mul", value, scale)
    if c is not None and beta:
        b.broadcast("C", c, shape)
        value = value + b.expr("mul", c, beta)
    out = b.store(value, FLOAT32, shape=shape)
    out = gelu(b, out) if activation == "GELU" else activated(b, out, "Relu" if activation == "RELU" else "")
    if z_scale is not None:
        out = b.pointwise("mul", out, z_scale, shape=shape)
    return b.cast(out, made)


@operator("MatMulInteger16", domain=MICROSOFT, types={"a": ("int16", "uint16"), "y": ("int16", "uint16")})
def matmul_integer_16(b: Builder, a: Tensor, y: Tensor) -> Tensor:
    made = DTYPES["uint32" if a.dtype.kind == y.dtype.kind == "uint" else "int32"]
    return matrix_product(b, b.cast(a, made), b.cast(y, made))


# ---- sums of whole numbers


def of_rows(b: Builder, values: Tensor) -> Tensor:
    """Per-row values of a matrix (or its stack), shaped to broadcast (MatMulInteger: [M], or [..., M, 1])."""
    return b.reshape(values, (values.size, 1)) if values.rank == 1 and values.size > 1 else values


def of_channels(b: Builder, values: Tensor, rank: int, axis: int) -> Tensor:
    """Per-channel values (or one for all), shaped to broadcast along ``axis``."""
    shape = [1] * rank
    shape[axis] = values.size
    return b.reshape(values, shape)


def integer_product(b: Builder, x: Tensor, y: Tensor, x_zero: Tensor | None, y_zero: Tensor | None) -> Tensor:
    """`product_sums` in int32."""
    return b.cast(product_sums(b, x, y, x_zero, y_zero), INT32)


def product_sums(
    b: Builder, x: Tensor, y: Tensor, x_zero: Tensor | None, y_zero: Tensor | None, may_round: bool = False
) -> Tensor:
    """``(x - x_zero) @ (y - y_zero)`` in int32, or in float32 where that holds the sums, or with ``may_round`` rounds them:
    each is rounded once. Zero points broadcast; several of rank 1 for x are those of its rows."""
    x_zero = None if x_zero is None else of_rows(b, x_zero)
    along_x, along_y = max(x.rank - 1, 0), max(y.rank - 2, 0)
    of = (
        known_operands(b, x, y, x_zero, y_zero) if y.rank == 2 and takes_wide(b, x.shape, y.shape, dtype=INT8) else None
    )
    if of is not None and (may_round or _is_exact(of, 1)):
        return matrix_product(b, of.x, of.w, FLOAT32, of.zero)
    length = x.shape[along_x] if 0 not in (x.rank, y.rank) and x.shape[along_x] == y.shape[along_y] else 0
    step = _step(length, _most(x, x_zero), _sizes(y, y_zero, along_y))
    step = step or _step(length, _most(y, y_zero), _sizes(x, x_zero, along_x))
    if not step:
        return matrix_product(b, _in_integers(b, x, x_zero), _in_integers(b, y, y_zero), INT32)
    both = known_halves(b, x, y, x_zero, y_zero)
    if both is not None and _takes_both(b, *both):
        x, y = both
    else:
        halves = y.storage.weight is not None and takes_halves(b) and takes_wide(b, x.shape, y.shape)
        kind = FLOAT16 if halves else FLOAT32
        x, y = _in_floats(b, x, x_zero, kind), _in_floats(b, y, y_zero, kind)
    parts = [(x.slice(along_x, *at), y.slice(along_y, *at)) for at in _parts(length, step)]
    return _total(b, [matrix_product(b, left, right, FLOAT32) for left, right in parts])


def integer_convolution(
    b: Builder, x: Tensor, w: Tensor, x_zero: Tensor | None, w_zero: Tensor | None, a: ConvAttributes
) -> Tensor:
    """`convolution_sums` in int32."""
    return b.cast(convolution_sums(b, x, w, x_zero, w_zero, a), INT32)


def convolution_sums(
    b: Builder,
    x: Tensor,
    w: Tensor,
    x_zero: Tensor | None,
    w_zero: Tensor | None,
    a: ConvAttributes,
    may_round: bool = False,
) -> Tensor:
    """A convolution of 8-bit tensors in int32 or float32, as `product_sums`; the padding is the zero point. ``w_zero`` is one
    value, or one for each output channel."""
    b.expect("the weights' zero point", w_zero, (), (1,), w.shape[:1])
    if x_zero is not None and x_zero.size != 1:
        b.decline(f"{x_zero.size} zero points of the input; a convolution has one")
    x_zero = None if x_zero is None else b.reshape(x_zero, ())
    of = known_operands(b, x, w, x_zero, w_zero)
    if of is not None and convolves_wide(b, of.x.shape, of.w.shape, a, dtype=INT8) and (may_round or _is_exact(of, 0)):
        return convolution(b, of.x, of.w, a, FLOAT32, zero=of.zero)
    w_zero = None if w_zero is None else of_channels(b, w_zero, w.rank, 0)
    channels = w.shape[1] if w.rank > 2 and w.shape[1] * a.group == x.shape[1] else 0
    step = _step(channels, _most(x, x_zero), _sizes(w, w_zero, 1, outputs=0))
    if not step or (step < channels and a.group > 1):
        return convolution(b, _in_integers(b, x, x_zero), _in_integers(b, w, w_zero), a, INT32)
    parts = _parts(channels, step)
    shapes = [((x.shape[0], n * a.group, *x.shape[2:]), (w.shape[0], n, *w.shape[2:])) for _, n in parts]
    halves = _is_known(w, w_zero) and takes_halves(b) and all(convolves_wide(b, *s, a, exact=True) for s in shapes)
    kind = FLOAT16 if halves else FLOAT32
    images = _in_floats(b, x, x_zero, kind)
    sums = []
    for start, count in parts:
        weights = _in_floats(b, w, w_zero, kind, (start, count))
        part = images if count == channels else images.slice(1, start, count)
        sums.append(convolution(b, part, weights, a, FLOAT32, exact=True))
    return _total(b, sums)


def _is_exact(of: Operands, outputs: int) -> bool:
    """Whether float32 holds all sums of codes by these weights, whose results' axis is ``outputs``."""
    values = of.w.array
    assert values is not None
    w = np.moveaxis(values, outputs, 0).reshape(of.w.shape[outputs], -1).astype(np.int64)
    up, down = np.maximum(w, 0).sum(axis=1), np.maximum(-w, 0).sum(axis=1)
    highest, lowest = 127 - of.zero, 128 + of.zero  # distances to the zero point
    sums = highest * up + lowest * down, highest * down + lowest * up
    return all(most.max(initial=0) <= _EXACT for most in sums)


def _takes_both(b: Builder, x: Tensor, y: Tensor) -> bool:
    """Whether a kernel gives float32 results of two matrices of float16, or stacks of them, that are computed."""
    turned = bool(matches(y.strides[-2], 1))
    return min(x.rank, y.rank) >= 2 and takes_wide(b, x.shape[-2:], y.shape[-2:], turned)


def _total(b: Builder, parts: Sequence[Tensor]) -> Tensor:
    """The sum of whole numbers: as it is of one, in int32 of several."""
    if len(parts) == 1:
        return parts[0]
    total = b.expr("cast", parts[0], ctype="int")
    for part in parts[1:]:
        total = total + b.expr("cast", part, ctype="int")
    return b.store(total, INT32, shape=parts[0].shape)


def _most(x: Tensor, zero: Tensor | None) -> int:
    """The largest possible distance of a value to its zero point."""
    low, high = (int(limit) for limit in (np.iinfo(x.dtype.numpy).min, np.iinfo(x.dtype.numpy).max))
    known = None if zero is None else zero.array
    zeros = (0, 0) if zero is None else (low, high) if known is None else (int(known.min()), int(known.max()))
    return max(high - zeros[0], zeros[1] - low)


def _sizes(x: Tensor, zero: Tensor | None, axis: int, outputs: int | None = None) -> int | np.ndarray:
    """What the elements at one place along ``axis`` multiply others' distances by, at most: [length, sums], or one number where
    the values are not known while planning. A convolution's weights are added up for each output channel (axis ``outputs``)."""
    values, known = x.array, None if zero is None else zero.array
    if values is None or (zero is not None and known is None):
        taps = 1 if outputs is None else math.prod(d for i, d in enumerate(x.shape) if i not in (axis, outputs))
        return _most(x, zero) * taps
    distances = np.abs(values.astype(np.int32) - (0 if known is None else known.astype(np.int32)))
    if outputs is not None:
        distances = distances.sum(axis=tuple(i for i in range(x.rank) if i not in (axis, outputs)))
    return np.moveaxis(distances, axis, 0).reshape(x.shape[axis], -1)


def _step(length: int, most: int, sizes: int | np.ndarray) -> int:
    """The elements of a sum of ``length`` products that float32 holds, in equal parts; 0 where it takes too many parts."""
    known = isinstance(sizes, np.ndarray)
    if serves_others(length) or not length or (not known and serves_others(sizes)):
        return 0
    for count in range(1, min(_MOST_PARTS, length) + 1):
        step = ceil_div(length, count)
        largest = _largest_sum(sizes, step) if isinstance(sizes, np.ndarray) else step * sizes
        if largest * most <= _EXACT:
            return step
    return 0


def _largest_sum(sizes: np.ndarray, step: int) -> int:
    return int(np.add.reduceat(sizes, range(0, len(sizes), step), axis=0).max(initial=0))


def _parts(length: int, step: int) -> list[tuple[int, int]]:
    """(first, count) of each part of a sum."""
    return [(start, min(step, length - start)) for start in range(0, length, step)]


def _less_zero(b: Builder, x: Tensor, zero: Tensor, kind: str) -> Expr:
    return b.expr("cast", x, ctype=kind) - b.expr("cast", zero, ctype=kind)


def _in_integers(b: Builder, x: Tensor, zero: Tensor | None) -> Tensor:
    """``x`` less its zero point: as it is where that is 0, else int16, which holds every difference."""
    known = None if zero is None else zero.array
    if zero is None or (known is not None and not known.any()):
        return x
    values = x.array
    if values is not None and known is not None:
        return b.constant((values.astype(np.int32) - known.astype(np.int32)).astype(np.int16))
    return b.store(_less_zero(b, x, zero, "int"), INT16, shape=x.shape)


def _is_known(x: Tensor, zero: Tensor | None) -> bool:
    """Whether ``x`` less its zero point is a constant."""
    return x.array is not None and (zero is None or zero.array is not None)


def _in_floats(b: Builder, x: Tensor, zero: Tensor | None, kind: DType, part: tuple[int, int] | None = None) -> Tensor:
    """``x`` less its zero point in float32 or float16, of a constant a constant; ``part``: of the elements (first, count) along
    axis 1."""
    weight, known = x.storage.weight, None if zero is None else zero.array
    part = None if part is None or part == (0, x.shape[1]) else part
    if weight is None or not _is_known(x, zero):
        x = x if part is None else x.slice(1, *part)
        value = b.expr("cast", x, ctype="float") if zero is None else _less_zero(b, x, zero, "float")
        return b.store(value, kind, shape=x.shape)
    less = np.float32(0) if known is None else known.astype(np.float32)
    key = f"{weight.key}/{x.offset}-{x.shape}-{x.strides}/{kind.name}-{less.tobytes().hex()}-{part}"

    def transform(_: np.ndarray) -> np.ndarray:
        values = x.array
        assert values is not None
        taken = values if part is None else values[:, slice(part[0], sum(part))]
        return (taken.astype(np.float32) - less).astype(kind.numpy)

    return b.weight(PackedWeight(weight, 0, transform, key))
