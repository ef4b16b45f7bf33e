"""ONNX Runtime's operators on quantised tensors (domain com.microsoft).

Semantics: ONNX Runtime, docs/ContribOperators.md.
"""

from __future__ import annotations

from vkep.dtypes import DTYPES, DType
from vkep.graph.weights import PackedWeight, pack
from vkep.ir import algebra as fn
from vkep.ir.builder import Builder
from vkep.ir.expr import Expr
from vkep.ir.tensor import Tensor, broadcast_shapes
from vkep.kernels.launch import is_cpu
from vkep.kernels.matmul_nbits import FEW_ROWS
from vkep.kernels.matmul_nbits_problem import MatMulNBitsProblem
from vkep.ops.contraction import matrix_product
from vkep.ops.gather import gather_
from vkep.ops.microsoft import MICROSOFT, unpacked_codes
from vkep.ops.quantized.integer_sums import integer_product
from vkep.ops.quantized.linear import (
    dequantize_linear,
    dynamic_quantize_linear,
    quantize_linear,
    rounded_to,
)
from vkep.ops.registry import FLOATS, operator

_BYTES = ("int8", "uint8")
_UINT8 = DTYPES["uint8"]

operator("QuantizeLinear", domain=MICROSOFT, types={"x": FLOATS})(quantize_linear)
operator("DequantizeLinear", domain=MICROSOFT, types={"x": (*_BYTES, "int32", "int16", "uint16", "int4", "uint4")})(
    dequantize_linear
)


# ---- weights in blocks of few bits


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
        b.invalid(f"the input has shape {list(a.shape)}, K is {K}")
    b.expect("B", weights, (N, blocks, bytes_a_block))
    b.expect("scales", scales, (N, blocks), (N * blocks,))
    b.expect("bias", bias, (N,))
    if zero_points is not None:
        width = -(-blocks * bits // 8) if zero_points.dtype is _UINT8 else blocks
        b.expect("zero_points", zero_points, (N, width), (N * width,))
    rows = a.size // K
    scales = b.reshape(b.cast(scales, a.dtype), (N, blocks))
    codes = b.reshape(weights, (N, blocks, bytes_a_block))
    zero_bytes = -(-blocks * bits // 8)
    # a CPU driver's products of many rows are faster on weights that are unpacked before
    if g_idx is None and codes.offset % 4 == 0 and (rows <= FEW_ROWS or not is_cpu(b.caps)):
        zeros, kind = zero_points, ""
        if zeros is not None:
            packed = zeros.dtype is _UINT8
            zeros, kind = (zeros, "packed") if packed else (b.cast(zeros, a.dtype), a.dtype.name)
        out = b.empty(a.dtype, (rows, N))
        problem = MatMulNBitsProblem(rows, N, K, bits, block_size, a.dtype.name, kind)
        b.compute(problem, [b.contiguous(t) for t in (a, codes, scales, zeros) if t is not None], [out])
        out = b.reshape(out, (*a.shape[:-1], N))
    else:
        zeros = _zero_points(b, zero_points, N, blocks, zero_bytes, bits)
        unpacked = unpacked_codes(b, codes, bits)
        if g_idx is None:
            matrix = _dequantized_blocks(b, unpacked, scales, zeros, bits, a.dtype)
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
    if zero_points.dtype is not _UINT8:
        return b.reshape(zero_points, (columns, blocks))
    codes = unpacked_codes(b, b.reshape(zero_points, (columns, packed_bytes)), bits)
    return codes.slice(1, 0, blocks)


def _dequantized_blocks(
    b: Builder, codes: Tensor, scales: Tensor, zeros: Tensor | None, bits: int, dtype: DType
) -> Tensor:
    """``(codes - zeros) * scales``: codes [..., block], the others [...]."""
    return _dequantized(b, codes, _each(scales), None if zeros is None else _each(zeros), bits, dtype)


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
    types={"data": ("int4", "uint4", "uint8"), "indices": ("int32", "int64"), "scales": (*FLOATS, "bfloat16")},
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
    widths = (2, 4, 8) if data.dtype is _UINT8 else (4,)
    if bits not in widths:
        b.invalid(f"bits is {bits} for {data.dtype}, expected one of {widths}")
    if gather_axis == quantize_axis or (data.dtype is _UINT8 and (gather_axis, quantize_axis) != (0, data.rank - 1)):
        b.invalid(
            f"axis {gather_axis} is gathered and {quantize_axis} is in blocks, of {data.dtype} {list(data.shape)}"
        )
    each = 8 // bits if data.dtype is _UINT8 else 1
    lead, tail = data.shape[:quantize_axis], data.shape[quantize_axis + 1 :]
    count = -(-data.shape[quantize_axis] * each // _block(b, block_size))
    b.expect("scales", scales, (*lead, count, *tail))
    b.expect("zero_points", zero_points, (*lead, -(-count // each), *tail))
    if zero_points is not None and zero_points.dtype is not data.dtype:
        b.invalid(f"zero points are {zero_points.dtype}, the data {data.dtype}")
    table, packed = _packed_table(b, data, gather_axis)
    rows = gather_(b, table, indices, axis=gather_axis)
    if packed:
        rows = unpacked_codes(b, rows, data.dtype.bits if data.dtype.sub_byte_bits else bits)
    factors = gather_(b, scales, indices, axis=gather_axis)
    zeros = None
    if zero_points is not None:
        zeros = gather_(b, zero_points, indices, axis=gather_axis)
        if data.dtype is _UINT8 and bits < 8:
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
    elif data.dtype is _UINT8:
        value = b.expr("sub", value, 1 << (bits - 1))
    factor = _repeated(b, factors, axis, block_size, length)
    result = b.expr("mul", fn.cast(value, "float"), factor)
    return b.store(fn.stored_as(result, scales.dtype), scales.dtype, shape=rows.shape)


def _packed_table(b: Builder, data: Tensor, gather_axis: int) -> tuple[Tensor, bool]:
    """The table as bytes of packed codes, where its rows are whole bytes: uint8 tables are, constants can be made so."""
    if data.dtype is _UINT8:
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


# ---- products and sums of 8-bit tensors


@operator("MatMulIntegerToFloat", domain=MICROSOFT, types={"a": _BYTES, "y": _BYTES, "a_scale b_scale bias": FLOATS})
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
    product = integer_product(b, a, y, a_zero_point, b_zero_point)
    return _scaled_to_float(b, product, a_scale, b_scale, bias)


@operator("DynamicQuantizeMatMul", domain=MICROSOFT, types={"a b_scale bias": ("float32",), "y": _BYTES})
def dynamic_quantize_matmul(
    b: Builder,
    a: Tensor,
    y: Tensor,
    b_scale: Tensor,
    b_zero_point: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    codes, scale, zero_point = dynamic_quantize_linear(b, a)
    product = integer_product(b, codes, y, zero_point, b_zero_point)
    return _scaled_to_float(b, product, scale, b_scale, bias)


def _scaled_to_float(b: Builder, product: Tensor, a_scale: Tensor, b_scale: Tensor, bias: Tensor | None) -> Tensor:
    factor = b.expr("mul", a_scale, b_scale, ctype="float")
    value = b.expr("cast", product, ctype="float") * factor
    b.expect("bias", bias, product.shape[-1:])
    if bias is not None:
        value = b.expr("add", value, bias)
    return b.store(value, a_scale.dtype, shape=product.shape)


def _declare_qlinear(op_type: str, op: str) -> None:
    def lower(
        b: Builder,
        x: Tensor,
        x_scale: Tensor,
        x_zero_point: Tensor | None,
        y: Tensor,
        y_scale: Tensor,
        y_zero_point: Tensor | None,
        z_scale: Tensor,
        z_zero_point: Tensor | None = None,
    ) -> Tensor:
        b.expect("C_scale", z_scale, (), (1,))
        b.expect("C_zero_point", z_zero_point, (), (1,))
        left, right = real(b, x, x_scale, x_zero_point), real(b, y, y_scale, y_zero_point)
        value = b.divide(b.expr(op, left, right), z_scale)
        shape = broadcast_shapes(x.shape, y.shape)
        return b.store(rounded_to(b, value, z_zero_point, x.dtype), x.dtype, shape=shape)

    lower.__name__ = op_type.lower()
    scales = ("float32",)
    operator(
        op_type,
        domain=MICROSOFT,
        types={"x x_zero_point y y_zero_point z_zero_point": _BYTES, "x_scale y_scale z_scale": scales},
    )(lower)


def real(b: Builder, x: Tensor, scale: Tensor, zero_point: Tensor | None) -> Expr:
    """``(x - zero_point) * scale``. Raises `InvalidNode` unless both are single elements of the types that go with ``x``."""
    b.expect("scale", scale, (), (1,))
    b.expect("zero_point", zero_point, (), (1,))
    if scale.dtype.name != "float32" or (zero_point is not None and zero_point.dtype is not x.dtype):
        b.invalid(f"a scale of {scale.dtype} and a zero point of {zero_point and zero_point.dtype} for {x.dtype}")
    value = b.expr("cast", x, ctype="int")
    if zero_point is not None:
        value = value - b.expr("cast", zero_point, ctype="int")
    return b.expr("mul", fn.cast(value, "float"), scale)


_declare_qlinear("QLinearAdd", "add")
_declare_qlinear("QLinearMul", "mul")


@operator(
    "QGemm",
    domain=MICROSOFT,
    types={"a": _BYTES, "y": _BYTES, "a_scale b_scale y_scale": ("float32",), "c": ("int32",)},
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
        b.invalid(f"matrices of shape {list(a.shape)} and {list(y.shape)}")
    columns = y.shape[0] if transB else y.shape[1]
    for what, one in {"b_scale": b_scale, "b_zero_point": b_zero_point}.items():
        b.expect(what, one, (), (1,), (columns,))
    b.expect("b_scale", b_scale, b_zero_point.shape)
    a = a.transpose((1, 0)) if transA else a
    if transB:
        y = y.transpose((1, 0))
    total = integer_product(b, a, y, a_zero_point, b_zero_point)
    value = b.expr("same", total)
    if c is not None:
        value = b.expr("add", value, c)
    factor = b.expr("mul", b.expr("mul", a_scale, b_scale), alpha)
    result = fn.cast(value, "float") * factor
    if y_scale is not None:
        result = b.divide(result, y_scale)
    if y_scale is None or y_zero_point is None:
        return b.store(result, a_scale.dtype, shape=total.shape)
    dtype = y_zero_point.dtype
    result = rounded_to(b, result, y_zero_point, dtype)
    return b.store(result, dtype, shape=total.shape)
