"""More of ONNX Runtime's operators on quantised tensors (domain com.microsoft): convolution, reductions, embeddings, and
products with weights of 4-bit floats or with floats of 8 bits.

Semantics: ONNX Runtime, docs/ContribOperators.md. The values of 4-bit floats: Dettmers et al., "QLoRA", 2023, and bitsandbytes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vkep.dtypes import DTYPES
from vkep.graph.attributes import ConvAttributes
from vkep.ir.algebra import not_equal, where
from vkep.ir.builder import Builder
from vkep.ir.expr import Expr, literal
from vkep.ir.tensor import Tensor, broadcast_shapes
from vkep.ops.contraction import matrix_product
from vkep.ops.elementwise import gelu
from vkep.ops.gather import padded, rows_at
from vkep.ops.generators import numeric
from vkep.ops.microsoft import MICROSOFT, activated, outputs, wants_output
from vkep.ops.normalization import row_norm
from vkep.ops.quantized.elementwise import real
from vkep.ops.quantized.linear import quantized
from vkep.ops.quantized.products import qlinear_conv
from vkep.ops.reduction import reduce_axes
from vkep.ops.registry import FLOATS, operator

_BYTES = ("int8", "uint8")
_FLOAT32, _INT32 = DTYPES["float32"], DTYPES["int32"]


@operator(
    "QLinearConv",
    domain=MICROSOFT,
    types={
        "x x_zero_point": _BYTES,
        "w w_zero_point": _BYTES,
        "y_zero_point": _BYTES,
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
        x = x.transpose((0, x.rank - 1, *range(1, x.rank - 1)))
    y = qlinear_conv(b, x, x_scale, x_zero_point, w, w_scale, w_zero_point, y_scale, y_zero_point, bias, a=a)
    return y.transpose((0, *range(2, y.rank), 1)) if channels_last else y


@operator("MulInteger", domain=MICROSOFT, types={"x x_zero y y_zero": _BYTES})
def mul_integer(b: Builder, x: Tensor, x_zero: Tensor | None, y: Tensor, y_zero: Tensor | None = None) -> Tensor:
    parts = []
    for what, tensor, zero in (("A", x, x_zero), ("B", y, y_zero)):
        b.expect(f"{what}_zero_point", zero, (), (1,))
        wide = b.expr("cast", tensor, ctype="int")
        parts.append(wide if zero is None else wide - b.expr("cast", zero, ctype="int"))
    return b.store(b.expr("mul", *parts), _INT32, shape=broadcast_shapes(x.shape, y.shape))


def _axes(b: Builder, x: Tensor, axes: Sequence[int]) -> list[int]:
    return [b.axis(axis, x.rank) for axis in axes] or list(range(x.rank))


@operator("ReduceSumInteger", domain=MICROSOFT, types={"x": _BYTES})
def reduce_sum_integer(b: Builder, x: Tensor, *, axes: Sequence[int], keepdims: int) -> Tensor:
    made = DTYPES["int32" if x.dtype.kind == "int" else "uint32"]
    return reduce_axes(b, "sum", b.cast(x, made), _axes(b, x, axes), bool(keepdims))


@operator(
    "QLinearReduceMean",
    domain=MICROSOFT,
    types={"x zero y_zero": _BYTES, "scale y_scale": ("float32",)},
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
    wide = b.store(real(b, x, scale, zero), _FLOAT32, shape=x.shape)
    means = reduce_axes(b, "mean", wide, _axes(b, x, axes), bool(keepdims))
    return b.store(quantized(b, b.expr("same", means), y_scale, y_zero, x.dtype), x.dtype, shape=means.shape)


@operator(
    "QEmbedLayerNormalization",
    domain=MICROSOFT,
    types={
        "input_ids segment_ids mask": ("int32",),
        "words positions segments gamma beta words_zero positions_zero segments_zero gamma_zero beta_zero": _BYTES,
        "words_scale positions_scale segments_scale gamma_scale beta_scale": ("float32",),
    },
)
def qembed_layer_normalization(
    b: Builder,
    input_ids: Tensor,
    segment_ids: Tensor | None,
    words: Tensor,
    positions: Tensor,
    segments: Tensor | None,
    gamma: Tensor,
    beta: Tensor,
    mask: Tensor | None,
    words_scale: Tensor,
    positions_scale: Tensor,
    segments_scale: Tensor | None,
    gamma_scale: Tensor,
    beta_scale: Tensor,
    words_zero: Tensor,
    positions_zero: Tensor,
    segments_zero: Tensor | None,
    gamma_zero: Tensor,
    beta_zero: Tensor,
    *,
    epsilon: float = 1e-12,
) -> list[Tensor]:
    of_segments = (segment_ids, segments, segments_scale, segments_zero)
    if len({t is None for t in of_segments}) != 1:
        b.invalid("only a part of the segments' inputs is there")
    tables = [t for t in (words, positions, segments) if t is not None]
    if input_ids.rank != 2 or any(t.rank != 2 or t.shape[1:] != gamma.shape for t in tables) or not epsilon >= 0:
        told = f"ids of shape {list(input_ids.shape)}, tables of {[list(t.shape) for t in tables]}"
        b.invalid(f"{told}, gamma of {list(gamma.shape)}, epsilon {epsilon}")
    batch, length = input_ids.shape
    for what, tensor, shape in (
        ("beta", beta, gamma.shape),
        ("segment_ids", segment_ids, input_ids.shape),
        ("mask", mask, input_ids.shape),
    ):
        b.expect(what, tensor, shape)
    if length > positions.shape[0]:
        b.invalid(f"{length} positions; the table holds {positions.shape[0]}")
    total = real(b, rows_at(b, words, input_ids, "an input id"), words_scale, words_zero)
    total = b.expr("add", total, real(b, positions.slice(0, 0, length), positions_scale, positions_zero))
    if segments is not None and segment_ids is not None and segments_scale is not None:
        rows = rows_at(b, segments, segment_ids, "a segment id")
        total = b.expr("add", total, real(b, rows, segments_scale, segments_zero))
    summed = b.store(total, _FLOAT32, shape=(batch, length, gamma.size))
    pairs = ((gamma, gamma_scale, gamma_zero), (beta, beta_scale, beta_zero))
    factor, shift = (b.store(real(b, *pair), _FLOAT32, shape=gamma.shape) for pair in pairs)
    out, _, _ = row_norm(b, summed, factor, shift, epsilon=epsilon)
    index = b.full((batch,), 0, _INT32)
    if mask is not None and wants_output(b, 1):
        index = reduce_axes(b, "sum", mask, [1], False)
    return outputs(b, out, index)


# ---- small floats

_FP4 = (0, 1 / 192, 2 / 3, 1, 1 / 3, 1 / 2, 1 / 6, 1 / 4)
#: the values of the codes 0 to 15, by ``quant_type``
_FOUR_BITS = (
    (*_FP4, *(-v for v in _FP4)),
    (
        -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
        -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
        0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
    ),
)  # fmt: skip


def _choice(code: Expr, values: Sequence[float]) -> Expr:
    """The value of a code: ``values`` has a power of two of them."""
    choices: list[Expr] = [literal(value, "float") for value in values]
    bit = 1
    while len(choices) > 1:
        is_set = not_equal(code & bit, 0)
        choices = [where(is_set, odd, even) for even, odd in zip(choices[::2], choices[1::2], strict=True)]
        bit <<= 1
    return choices[0]


@operator("MatMulBnb4", domain=MICROSOFT, types={"a absmax": FLOATS, "codes": ("uint8",)})
def matmul_bnb4(
    b: Builder,
    a: Tensor,
    codes: Tensor,
    absmax: Tensor,
    *,
    K: int,
    N: int,
    block_size: int,
    quant_type: int,
    training_mode: int = 0,
    transB: int = 1,
) -> Tensor:
    """A product with a matrix [N, K] of 4-bit floats; of the two in a byte, the first has the higher bits."""
    if quant_type not in (0, 1) or block_size < 16 or block_size & (block_size - 1) or K < 1 or N < 1:
        b.invalid(f"quant_type {quant_type}, blocks of {block_size}, a matrix of {N} by {K}")
    if not a.rank or a.shape[-1] != (K if transB else N):
        b.invalid(f"the input has shape {list(a.shape)}; its last axis is {K if transB else N}")
    blocks = -(-N * K // block_size)
    b.expect("B", codes, (-(-N * K // 2),), (-(-N * K // 2), 1))
    b.expect("absmax", absmax, (blocks,))
    packed = b.contiguous(b.reshape(codes, (codes.size,)))
    wide = packed.view((packed.size, 2), (1, 0))
    code = b.expr("shift_right", wide, b.constant(np.array([4, 0], np.uint32)))
    value = b.store(_choice(code, _FOUR_BITS[quant_type]), a.dtype, shape=wide.shape)
    whole = padded(b, b.reshape(value, (2 * packed.size,)), [0], [blocks * block_size - 2 * packed.size])
    scaled = b.pointwise("mul", b.reshape(whole, (blocks, block_size)), b.reshape(absmax, (blocks, 1)))
    matrix = b.reshape(b.reshape(scaled, (scaled.size,)).slice(0, 0, N * K), (N, K))
    return matrix_product(b, a, matrix.transpose((1, 0)) if transB else matrix)


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
        b.invalid(f"matrices of shape {list(x.shape)} and {list(y.shape)}")
    made = numeric(b, dtype, _FLOAT32)
    left, right = (
        t.transpose((1, 0)) if swap else t for t, swap in ((b.cast(x, _FLOAT32), transA), (b.cast(y, _FLOAT32), transB))
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
    out = b.store(value, _FLOAT32, shape=shape)
    out = gelu(b, out) if activation == "GELU" else activated(b, out, "Relu" if activation == "RELU" else "")
    if z_scale is not None:
        out = b.pointwise("mul", out, z_scale, shape=shape)
    return b.cast(out, made)
