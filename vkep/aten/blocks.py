"""Weights of four bits: products (``q4gsw``: a scale for each group of a row; ``qcs4w``: one for each row) and
embeddings.

A byte holds two codes, each the value plus 8. Products whose group size is a power of two and at least 16 run on packed
weights (com.microsoft.MatMulNBits); for others the weights are unpacked once while planning.
"""

from __future__ import annotations

import numpy as np

from vkep.aten.builder import FLOAT, UINT8, GraphBuilder, Val
from vkep.aten.int8 import cut, packed_product
from vkep.aten.movement import taken
from vkep.aten.quantization import dequantized, per_token, quantized
from vkep.aten.registry import aten


def codes4(b: GraphBuilder, packed: Val, low_first: bool) -> Val:
    """Codes 0 to 15 as float32 [..., 2 * n] from bytes [..., n]."""
    low = b.op("BitwiseAnd", packed, b.number(15, UINT8))
    high = b.op("BitShift", packed, b.number(4, UINT8), direction="RIGHT", dims=packed.dims)
    pair = [b.unsqueeze(v, [packed.rank]) for v in ((low, high) if low_first else (high, low))]
    joined = b.op("Concat", *pair, axis=packed.rank, dims=[*packed.dims, 2])
    last = packed.dims[-1]
    assert last is not None  # a packed row's length is a weight's
    lead = [b.size(packed, k) for k in range(packed.rank - 1)]
    return b.cast(b.reshape(joined, [*lead, 2 * last]), FLOAT)


def _scaled(b: GraphBuilder, codes: Val, scales: Val, groups: int) -> Val:
    """``(codes - 8) * scale`` of each group: codes [rows, width], scales [rows, groups]."""
    rows, width = codes.shape
    grouped = b.reshape(b.op("Sub", codes, b.number(8.0, FLOAT)), [rows, groups, width // groups])
    return b.reshape(b.op("Mul", grouped, b.unsqueeze(scales, [2])), [rows, width])


def _matrix(b: GraphBuilder, weights: Val, scales: Val, width: int, group_size: int) -> Val:
    """Weights [out, in] in float32, from their q4gsw form."""
    rows = weights.shape[0]
    rows_of_scales = b.transpose(b.cast(cut(b, scales, 1, rows), FLOAT), (1, 0))
    return _scaled(b, cut(b, codes4(b, weights, True), 1, width), rows_of_scales, width // group_size)


def linear4(b: GraphBuilder, x: Val, weights: Val, scales: Val, group_size: int, bias: Val | None) -> Val:
    """``x @ weights.T + bias``: weights [out, in / 2] bytes (low half first), scales [groups, out]; either may be
    padded."""
    count, width = weights.shape[0], b.fixed(x, -1)
    if group_size < 1 or width % group_size:
        b.decline(f"rows of {width} in groups of {group_size}")
    bias = bias and b.cast(cut(b, bias, 0, count), x.elem)
    packs = group_size >= 16 and group_size & (group_size - 1) == 0 and x.rank > 1
    if packs and weights.weight is not None and scales.weight is not None:
        blocks = width // group_size
        codes = b.derived(
            weights, "blocks", lambda a: a[:, : width // 2], (count, blocks, group_size // 2), weights.elem
        )
        rows = b.derived(scales, "rows", lambda a: a[:blocks, :count].T, (count, blocks), scales.elem)
        out = packed_product(b, x, codes, b.cast(rows, x.elem), 4)
    else:
        matrix = b.cast(_matrix(b, weights, scales, width, group_size), x.elem)
        out = b.op("MatMul", x, b.transpose(matrix, (1, 0)), dims=[*x.dims[:-1], count])
    return out if bias is None else b.op("Add", out, bias)


@aten("et_vk.linear_q4gsw.default")
def linear_q4gsw(
    b: GraphBuilder, x: Val, weights: Val, weight_scales: Val, group_size: int, bias: Val | None = None
) -> Val:
    return linear4(b, x, weights, weight_scales, group_size, bias)


@aten("et_vk.linear_dq8ca_q4gsw.default")
def linear_dq8ca_q4gsw(
    b: GraphBuilder,
    x: Val,
    input_scales: Val,
    input_zp: Val,
    weights: Val,
    weight_sums: object,
    weight_scales: Val,
    group_size: int,
    bias: Val | None = None,
) -> Val:
    """The activation is rounded to the values that int8 represents with each row's scale and zero point."""
    scales, zeros = per_token(b, input_scales, x), per_token(b, input_zp, x)
    rounded = dequantized(b, quantized(b, x, scales, zeros, -128, 127), scales, zeros)
    return linear4(b, b.cast(rounded, x.elem), weights, weight_scales, group_size, bias)


@aten("et_vk.linear_qcs4w.default")
def linear_qcs4w(b: GraphBuilder, x: Val, weight: Val, scales: Val) -> Val:
    """Bytes [out, in / 2] with the first of two codes in the high half; one scale a row."""
    count, width = weight.shape[0], b.fixed(x, -1)
    rows = cut(b, b.reshape(scales, [-1]), 0, count)
    if width % 16 == 0 and weight.weight is not None and x.rank > 1:
        # a row has one scale: repeat it for each block of the largest size that divides the row
        size = min(width & -width, 256)
        blocks = width // size
        codes = b.derived(
            weight, "swapped", lambda a: (a << 4 | a >> 4)[:, : width // 2], (count, blocks, size // 2), weight.elem
        )
        each = b.op("Expand", b.unsqueeze(rows, [1]), b.ints([count, blocks]), dims=(count, blocks))
        return packed_product(b, x, codes, b.cast(each, x.elem), 4)
    matrix = _scaled(b, cut(b, codes4(b, weight, False), 1, width), b.unsqueeze(b.cast(rows, FLOAT), [1]), 1)
    return b.op("MatMul", x, b.transpose(b.cast(matrix, x.elem), (1, 0)), dims=[*x.dims[:-1], count])


@aten("et_vk.linear_q4gsw_backward.default")
def linear_q4gsw_backward(b: GraphBuilder, d_out: Val, weights: Val, weight_scales: Val, group_size: int) -> Val:
    """The gradient of `linear_q4gsw` for its input: ``d_out @ weights``."""
    width = b.results[0].dims[-1] or weights.shape[1] * 2
    matrix = b.cast(_matrix(b, weights, weight_scales, width, group_size), d_out.elem)
    return b.op("MatMul", d_out, matrix, dims=[*d_out.dims[:-1], width])


def _looked_up(b: GraphBuilder, weight: Val, scales: Val, zeros: Val | None, indices: Val, low_first: bool) -> Val:
    """Rows of a table of codes, dequantized. Only the requested rows are unpacked."""
    codes = codes4(b, taken(b, weight, 0, indices), low_first)
    codes = b.op("Sub", codes, b.number(8.0, FLOAT))
    width = weight.shape[1] * 2

    def by_group(values: Val) -> Val:
        values = b.cast(values, FLOAT)
        if np.prod(values.shape) == 1:
            return b.reshape(values, [1] * (indices.rank + 2))
        rows = taken(b, values if values.rank == 2 else b.unsqueeze(values, [1]), 0, indices)
        return b.unsqueeze(rows, [rows.rank])

    groups = scales.shape[1] if scales.rank == 2 else 1
    lead = [b.size(indices, k) for k in range(indices.rank)]
    grouped = b.reshape(codes, [*lead, groups, width // groups])
    if zeros is not None:
        grouped = b.op("Sub", grouped, by_group(zeros))
    return b.reshape(b.op("Mul", grouped, by_group(scales)), [*lead, width])


@aten("et_vk.embedding_q4gsw.default")
def embedding_q4gsw(
    b: GraphBuilder, weight: Val, weight_scales: Val, group_size: int, indices: Val, is_linear_weight: bool = False
) -> Val:
    return _looked_up(b, weight, weight_scales, None, indices, is_linear_weight)


@aten("quantized_decomposed.embedding_4bit.dtype")
def embedding_4bit(
    b: GraphBuilder,
    weight: Val,
    weight_scales: Val,
    weight_zero_points: Val | None,
    weight_quant_min: int,
    weight_quant_max: int,
    indices: Val,
    dtype: object = None,
) -> Val:
    if (weight_quant_min, weight_quant_max) != (-8, 7):
        b.decline(f"codes from {weight_quant_min} to {weight_quant_max}; the format has -8 to 7")
    return _looked_up(b, weight, weight_scales, weight_zero_points, indices, False)
