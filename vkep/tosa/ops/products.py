"""Matrix products and batch normalization."""

from __future__ import annotations

import math

import numpy as np

from vkep.graph.attributes import BatchNormAttributes, GemmAttributes
from vkep.tosa.graph import TosaBuilder, TosaTensor, Value
from vkep.tosa.ops import quantized
from vkep.tosa.ops.casts import cast_to
from vkep.tosa.ops.movement import tile_of
from vkep.tosa.registry import FLOATS, constant_of, tosa_operator


def matmul_3d(b: TosaBuilder, x: Value, y: Value, dtype: str, x_zero: int = 0, y_zero: int = 0) -> Value:
    """[N, H, C] times [N, C, W]."""
    return b.op(
        "matmul",
        [x, y, b.zero_point(x.dtype, x_zero), b.zero_point(y.dtype, y_zero)],
        (x.shape[0], x.shape[1], y.shape[2]),
        dtype,
    )


@tosa_operator("MatMul", types=FLOATS)
def matmul(b: TosaBuilder, x: TosaTensor, y: TosaTensor) -> TosaTensor:
    if x.scalar or y.scalar:
        b.decline("a scalar operand")
    if x.rank == 1:
        made = matmul(b, b.reshape(x, (1, *x.shape)), y)
        return b.reshape(made, (*made.shape[:-2], made.shape[-1]) if made.rank > 1 else made.shape[1:])
    if y.rank == 1:
        made = matmul(b, x, b.reshape(y, (*y.shape, 1)))
        return b.reshape(made, made.shape[:-1])
    known = quantized.product(x, y, max(x.rank, y.rank) - 1, y.rank - 1)
    if known is not None:
        left, right, scale, axis = known
        ints = batched(b, left.ints, right.ints, "int32", left.zero, right.zero)
        return quantized.accumulated(b, ints, scale, axis)
    # summed in float32, also of float16
    return cast_to(b, batched(b, x, y, "float32", 0, 0), x.dtype)


def batched(b: TosaBuilder, x: TosaTensor, y: TosaTensor, dtype: str, x_zero: int, y_zero: int) -> TosaTensor:
    """The product of matrices over broadcast batch axes."""
    batch = np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    rows, inner, columns = x.shape[-2], x.shape[-1], y.shape[-1]
    if math.prod(y.shape[:-2]) == 1:  # one matrix for all rows
        left = b.ordered(b.reshape(x, (1, x.size // inner, inner)))
        value = matmul_3d(b, left, b.ordered(b.reshape(y, (1, inner, columns))), dtype, x_zero, y_zero)
    else:

        def full(t: TosaTensor) -> Value:
            grown = b.reshape(t, (1,) * (len(batch) + 2 - t.rank) + t.shape)
            repeats = [w // s for w, s in zip(batch, grown.shape, strict=False)] + [1, 1]
            tiled = tile_of(b, grown, repeats)
            return b.ordered(b.reshape(tiled, (math.prod(batch), *t.shape[-2:])))

        value = matmul_3d(b, full(x), full(y), dtype, x_zero, y_zero)
    return b.reshape(b.tensor(value), (*batch, rows, columns))


@tosa_operator("Gemm", types=FLOATS, since=7)
def gemm(
    b: TosaBuilder,
    x: TosaTensor,
    y: TosaTensor,
    bias: TosaTensor | None = None,
    *,
    a: GemmAttributes,
) -> TosaTensor:
    made = matmul(b, b.permute(x, (1, 0)) if a.transA else x, b.permute(y, (1, 0)) if a.transB else y)
    known = made.quantized
    if known is not None and a.alpha == 1 and a.beta == 1 and bias is not None and bias.rank == 1:
        shift = quantized.bias_of(b, bias, known.scale, made.shape[-1])
        if shift is not None:
            return quantized.accumulated(b, b.add(known.ints, shift), known.scale, known.axis)
    if a.alpha != 1:
        made = b.mul(made, b.fill(made, a.alpha))
    if bias is None:
        return made
    return b.add(made, b.mul(bias, b.fill(bias, a.beta)) if a.beta != 1 else bias)


@tosa_operator("BatchNormalization", types=("float32",), since=9)
def batch_normalization(
    b: TosaBuilder,
    x: TosaTensor,
    scale: TosaTensor,
    bias: TosaTensor,
    mean: TosaTensor,
    var: TosaTensor,
    *,
    a: BatchNormAttributes,
) -> TosaTensor:
    if a.training_mode:
        b.decline("training mode")
    parts = (constant_of(t, "scale, bias, mean and variance").astype(np.float64) for t in (scale, bias, mean, var))
    gamma, beta, mu, sigma = parts
    factor = gamma / np.sqrt(sigma + a.epsilon)
    shape = (x.shape[1],) + (1,) * (x.rank - 2)
    slope, shift = (b.constant(v.astype(np.float32).reshape(shape)) for v in (factor, beta - mu * factor))
    return b.add(b.mul(x, slope), shift)
