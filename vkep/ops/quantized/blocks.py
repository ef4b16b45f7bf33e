"""Weights of few bits in blocks that share a scale (domain com.microsoft: MatMulNBits, MatMulNBitsMlp, MatMulNBitsQkv,
MatMulBnb4, GatherBlockQuantized).

Semantics: the operators' schemas in ONNX Runtime (docs/ContribOperators.md), and its CPU provider's kernels where those
say no more.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vkep.dtypes import UINT8, DType
from vkep.graph.attributes import LayerNormAttributes
from vkep.graph.weights import PackedWeight, pack
from vkep.ir import algebra as fn
from vkep.ir.algebra import not_equal, where
from vkep.ir.builder import Builder
from vkep.ir.expr import Expr, literal
from vkep.ir.tensor import Tensor
from vkep.kernels.launch import is_cpu
from vkep.kernels.matmul.nbits import FEW_ROWS
from vkep.kernels.matmul.nbits_problem import MatMulNBitsProblem
from vkep.ops.allowed import SINGLE
from vkep.ops.contraction import matrix_product
from vkep.ops.gather import gather_, padded
from vkep.ops.microsoft import MICROSOFT, outputs
from vkep.ops.normalization import row_norm, simplified_layer_normalization, with_skip
from vkep.ops.registry import FLOATS, operator
from vkep.sizes import stays_few


def _normalized(
    b: Builder, x: Tensor, skip: Tensor | None, scale: Tensor | None, epsilon: float
) -> tuple[Tensor, Tensor | None]:
    """The input after its norm, where there is a scale for it, and its sum with ``skip``."""
    if scale is None:
        if skip is not None:
            b.invalid("a skip input without norm_scale")
        return x, None
    if skip is None:
        return simplified_layer_normalization(b, x, scale, a=LayerNormAttributes(epsilon=epsilon))[0], None
    total = with_skip(b, x, skip, None, epsilon, gamma=scale)
    return row_norm(b, total, scale, epsilon=epsilon, rms=True)[0], total


@operator(
    "MatMulNBitsMlp",
    domain=MICROSOFT,
    types={"x skip norm_scale gate_scales gate_bias up_scales up_bias": FLOATS, "gate up": ("uint8",)},
)
def matmul_nbits_mlp(
    b: Builder,
    x: Tensor,
    skip: Tensor | None,
    norm_scale: Tensor | None,
    gate: Tensor,
    gate_scales: Tensor,
    gate_bias: Tensor | None,
    up: Tensor,
    up_scales: Tensor,
    up_bias: Tensor | None = None,
    *,
    K: int,
    N: int,
    accuracy_level: int = 0,
    activation: str,
    bits: int = 4,
    block_size: int,
    epsilon: float = 1e-5,
) -> list[Tensor]:
    if activation != "silu":
        b.decline(f"activation {activation!r}; the kernels take silu")
    rows, summed = _normalized(b, x, skip, norm_scale, epsilon)
    gated, raised = (
        matmul_nbits_(b, rows, codes, scales, None, None, bias, K=K, N=N, bits=bits, block_size=block_size)
        for codes, scales, bias in ((gate, gate_scales, gate_bias), (up, up_scales, up_bias))
    )
    return outputs(b, b.pointwise(lambda gate, up: fn.swish(gate) * up, gated, raised, dtype=x.dtype), summed)


@operator(
    "MatMulNBitsQkv",
    domain=MICROSOFT,
    types={
        "x skip norm_scale q_scales q_bias k_scales k_bias v_scales v_bias": FLOATS,
        "q k v": ("uint8",),
    },
)
def matmul_nbits_qkv(
    b: Builder,
    x: Tensor,
    skip: Tensor | None,
    norm_scale: Tensor,
    q: Tensor,
    q_scales: Tensor,
    q_bias: Tensor | None,
    k: Tensor,
    k_scales: Tensor,
    k_bias: Tensor | None,
    v: Tensor,
    v_scales: Tensor,
    v_bias: Tensor | None = None,
    *,
    K: int,
    Nkv: int,
    Nq: int,
    accuracy_level: int = 0,
    bits: int = 4,
    block_size: int,
    epsilon: float = 1e-6,
) -> list[Tensor]:
    rows, summed = _normalized(b, x, skip, norm_scale, epsilon)
    made = (
        matmul_nbits_(b, rows, codes, scales, None, None, bias, K=K, N=count, bits=bits, block_size=block_size)
        for codes, scales, bias, count in (
            (q, q_scales, q_bias, Nq),
            (k, k_scales, k_bias, Nkv),
            (v, v_scales, v_bias, Nkv),
        )
    )
    return outputs(b, *made, summed)


def _block(b: Builder, size: int) -> int:
    if size < 16 or size & (size - 1):
        b.invalid(f"block_size is {size}, expected a power of two of at least 16")
    return size


@operator("MatMulNBits", domain=MICROSOFT, types={"a": FLOATS, "weights": ("uint8",), "scales": FLOATS})
def matmul_nbits_(
    b: Builder,
    a: Tensor,
    weights: Tensor,
    scales: Tensor,
    zero_points: Tensor | None = None,
    g_idx: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    K: int,
    N: int,
    bits: int = 4,
    block_size: int,
    accuracy_level: int = 0,
    weight_prepacked: int = 0,
) -> Tensor:
    if bits not in (2, 4, 8) or weight_prepacked:
        b.decline(f"weights of {bits} bits{', prepacked' if weight_prepacked else ''}; the kernels take 2, 4 or 8")
    if K < 1 or N < 1:
        b.invalid(f"K is {K} and N {N}, expected at least 1")
    blocks = -(-K // _block(b, block_size))
    bytes_a_block = block_size * bits // 8
    if not a.rank or a.shape[-1] != K:
        b.invalid(f"the input has shape {list(a.shape)}, expected a last axis of K = {K}")
    b.expect("B", weights, (N, blocks, bytes_a_block))
    b.expect("scales", scales, (N, blocks), (N * blocks,))
    b.expect("bias", bias, (N,))
    if zero_points is not None:
        width = -(-blocks * bits // 8) if zero_points.dtype is UINT8 else blocks
        b.expect("zero_points", zero_points, (N, width), (N * width,))
    rows = a.size // K
    scales = b.reshape(b.cast(scales, a.dtype), (N, blocks))
    codes = b.reshape(weights, (N, blocks, bytes_a_block))
    zero_bytes = -(-blocks * bits // 8)
    # a CPU driver's products of many rows are faster on weights that are unpacked before
    if g_idx is None and codes.offset % 4 == 0 and (not is_cpu(b.caps) or stays_few(rows, FEW_ROWS)):
        zeros, kind = zero_points, ""
        if zeros is not None:
            packed = zeros.dtype is UINT8
            zeros, kind = (zeros, "packed") if packed else (b.cast(zeros, a.dtype), a.dtype.name)
        out = b.empty(a.dtype, (rows, N))
        problem = MatMulNBitsProblem(rows, N, K, bits, block_size, a.dtype.name, kind)
        b.compute(problem, [b.contiguous(t) for t in (a, codes, scales, zeros) if t is not None], [out])
        out = b.reshape(out, (*a.shape[:-1], N))
    else:
        zeros = _zero_points(b, zero_points, N, blocks, zero_bytes, bits)
        unpacked = unpacked_codes(b, codes, bits)
        if g_idx is None:
            matrix = _dequantized(b, unpacked, _each(scales), None if zeros is None else _each(zeros), bits, a.dtype)
            columns = b.reshape(matrix, (N, blocks * block_size)).slice(1, 0, K)
        else:  # the block of each row is given, not its position's
            places = _places(b, g_idx, K, blocks, block_size)
            each = [None if t is None else gather_(b, t, places, axis=1) for t in (scales, zeros)]
            wide = b.reshape(unpacked, (N, blocks * block_size)).slice(1, 0, K)
            assert each[0] is not None
            columns = _dequantized(b, wide, each[0], each[1], bits, a.dtype)
        columns = columns.transpose((1, 0))
        out = matrix_product(b, a, columns)
    return out if bias is None else b.pointwise("add", out, bias, shape=out.shape)


def _zero_points(
    b: Builder, zero_points: Tensor | None, columns: int, blocks: int, packed_bytes: int, bits: int
) -> Tensor | None:
    """Zero points [columns, blocks]: packed bytes, rows of whole bytes, or values of the scales' type."""
    if zero_points is None:
        return None
    if zero_points.dtype is not UINT8:
        return b.reshape(zero_points, (columns, blocks))
    codes = unpacked_codes(b, b.reshape(zero_points, (columns, packed_bytes)), bits)
    return codes.slice(1, 0, blocks)


def _dequantized(b: Builder, codes: Tensor, scales: Tensor, zeros: Tensor | None, bits: int, dtype: DType) -> Tensor:
    value = b.expr("cast", codes, ctype="float")
    if zeros is None:
        value = b.expr("sub", value, float(1 << (bits - 1)))
    else:
        value = value - b.expr("cast", zeros, ctype="float")
    return b.store(b.expr("mul", value, scales, ctype="float"), dtype, shape=codes.shape)


def _places(b: Builder, g_idx: Tensor, rows: int, blocks: int, block_size: int) -> Tensor:
    """The block of every row of the weights: int32 [rows], or with the padding of the last block."""
    b.expect("g_idx", g_idx, (rows,), (blocks * block_size,))
    b.expect_range("g_idx", g_idx, 0, blocks - 1)
    return b.reshape(g_idx, (g_idx.size,)).slice(0, 0, rows)


def _each(t: Tensor) -> Tensor:
    return t.view((*t.shape, 1), (*t.strides, 0))


@operator(
    "GatherBlockQuantized",
    domain=MICROSOFT,
    types={"data": ("int4", "uint4", "uint8"), "indices": ("int32", "int64"), "scales": SINGLE},
)
def gather_block_quantized(
    b: Builder,
    data: Tensor,
    indices: Tensor,
    scales: Tensor,
    zero_points: Tensor | None = None,
    *,
    bits: int = 4,
    block_size: int = 128,
    gather_axis: int = 0,
    quantize_axis: int = 1,
) -> Tensor:
    gather_axis, quantize_axis = b.axis(gather_axis, data.rank), b.axis(quantize_axis, data.rank)
    widths = (2, 4, 8) if data.dtype is UINT8 else (4,)
    if bits not in widths:
        b.invalid(f"bits is {bits} for {data.dtype}, expected one of {widths}")
    if gather_axis == quantize_axis or (data.dtype is UINT8 and (gather_axis, quantize_axis) != (0, data.rank - 1)):
        b.invalid(
            f"axis {gather_axis} is gathered and {quantize_axis} is in blocks, of {data.dtype} {list(data.shape)}"
        )
    each = 8 // bits if data.dtype is UINT8 else 1
    lead, tail = data.shape[:quantize_axis], data.shape[quantize_axis + 1 :]
    count = -(-data.shape[quantize_axis] * each // _block(b, block_size))
    b.expect("scales", scales, (*lead, count, *tail))
    b.expect("zero_points", zero_points, (*lead, -(-count // each), *tail))
    if zero_points is not None and zero_points.dtype is not data.dtype:
        b.invalid(f"zero points are {zero_points.dtype}, expected {data.dtype} as the data")
    table, packed = _packed_table(b, data, gather_axis)
    rows = gather_(b, table, indices, axis=gather_axis)
    if packed:
        rows = unpacked_codes(b, rows, data.dtype.bits if data.dtype.sub_byte_bits else bits)
    factors = gather_(b, scales, indices, axis=gather_axis)
    zeros = None
    if zero_points is not None:
        zeros = gather_(b, zero_points, indices, axis=gather_axis)
        if data.dtype is UINT8 and bits < 8:
            zeros = unpacked_codes(b, zeros, bits)
    axis = quantize_axis + (indices.rank - 1 if quantize_axis > gather_axis else 0)
    length, blocks = rows.shape[axis], factors.shape[axis]
    if zeros is not None:
        zeros = zeros.slice(axis, 0, blocks)
    value = b.expr("cast", rows, ctype="int")
    if packed and data.dtype.kind == "int":
        value = fn.stored_as(value, data.dtype)
    if zeros is not None:
        value = value - b.expr("cast", _repeated(b, zeros, axis, block_size, length), ctype="int")
    elif data.dtype is UINT8:
        value = b.expr("sub", value, 1 << (bits - 1))
    factor = _repeated(b, factors, axis, block_size, length)
    result = b.expr("mul", fn.cast(value, "float"), factor)
    return b.store(fn.stored_as(result, scales.dtype), scales.dtype, shape=rows.shape)


def _packed_table(b: Builder, data: Tensor, gather_axis: int) -> tuple[Tensor, bool]:
    """The table as bytes of packed codes, where its rows are whole bytes: uint8 tables are, constants can be made so."""
    if data.dtype is UINT8:
        return data, True
    weight, each = data.storage.weight, 8 // data.dtype.bits
    if weight is None or not data.is_whole or data.shape[-1] % each or gather_axis == data.rank - 1:
        return data, False
    made = b.weight(PackedWeight(weight, 0, lambda values: pack(values, data.dtype), f"{weight.key}/packed"))
    return b.reshape(made, (*data.shape[:-1], data.shape[-1] // each)), True


def _repeated(b: Builder, t: Tensor, axis: int, block: int, length: int) -> Tensor:
    """Each element along ``axis`` ``block`` times, ``length`` in all."""
    wide = t.view((*t.shape[: axis + 1], 1, *t.shape[axis + 1 :]), (*t.strides[: axis + 1], 0, *t.strides[axis + 1 :]))
    wide = wide.expand((*t.shape[: axis + 1], block, *t.shape[axis + 1 :]))
    return b.reshape(wide, (*t.shape[:axis], t.shape[axis] * block, *t.shape[axis + 1 :])).slice(axis, 0, length)


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
        b.invalid(f"quant_type {quant_type}, blocks of {block_size}, a matrix of {N} by {K}; "
                  "expected 0 or 1, a power of two of at least 16, and 1 or more")  # fmt: skip
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


def unpacked_codes(b: Builder, packed: Tensor, bits: int) -> Tensor:
    """uint8 codes [..., n * 8 / bits] from bytes [..., n]; the first code is in the lowest bits."""
    each = 8 // bits
    if each == 1:
        return packed
    wide = packed.view((*packed.shape, each), (*packed.strides, 0))
    codes, shifts = b.reads(wide, b.constant(np.arange(0, 8, bits, dtype=np.int32)))
    code = (codes >> shifts) & (1 << bits) - 1
    return b.reshape(b.store(code, packed.dtype), (*packed.shape[:-1], packed.shape[-1] * each))
