"""Operators on int8 matrices in cuBLASLt's orders of elements in memory (domain com.microsoft: QuantizeWithOrder,
DequantizeWithOrder, and the operators whose names begin with QOrdered).

A tensor's declared shape says nothing of the order. Semantics: the operators' schemas in ONNX Runtime
(docs/ContribOperators.md), its CUDA kernels where those say no more, and cublasLtOrder_t in NVIDIA's cuBLAS documentation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from vkep import dtypes
from vkep.dtypes import FLOAT16, FLOAT32, INT8, INT32, DType
from vkep.ir import algebra as fn
from vkep.ir.algebra import where
from vkep.ir.builder import Builder
from vkep.ir.expr import Expr
from vkep.ir.tensor import Tensor
from vkep.ops.attention.sdpa import default_scale, merge_heads, split_heads
from vkep.ops.attention.sparse import Projections, longformer
from vkep.ops.contraction import matrix_product
from vkep.ops.elementwise import gelu
from vkep.ops.microsoft import MICROSOFT
from vkep.ops.normalization import row_norm, softmax_over
from vkep.ops.quantized.linear import rounded_to
from vkep.ops.quantized.products import ratio
from vkep.ops.registry import FLOATS, operator

_Q, _S = ("int8",), ("float32",)
_COL, _ROW = 0, 1
#: of each order: the factors of a matrix's rows and columns (-1 is the rest) and, in memory, the order of the axes that they make
_ORDERS: dict[int, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = {
    _COL: ((-1,), (-1,), (1, 0)),
    _ROW: ((-1,), (-1,), (0, 1)),
    2: ((-1,), (-1, 32), (1, 0, 2)),  # COL32
    3: ((-1, 4, 2), (-1, 8, 4), (3, 0, 2, 4, 1, 5)),  # COL4_4R2_8C
    4: ((-1, 4, 4, 2), (-1, 32), (4, 0, 2, 1, 3, 5)),  # COL32_2R_4R4
}


def _factored(b: Builder, length: int, factors: Sequence[int], what: str) -> list[int]:
    tile = math.prod(factors[1:])
    if length % tile:
        b.invalid(f"{length} {what}, expected a multiple of {tile} for this order")
    return [length // tile, *factors[1:]]


def _layout(b: Builder, shape: Sequence[int], order: int) -> tuple[list[int], list[int]]:
    """A row-major matrix of ``shape`` [..., rows, columns] as axes, and the places of these axes in memory of ``order``."""
    if order not in _ORDERS:
        b.invalid(f"the order of a matrix is {order}, expected one of {', '.join(map(str, _ORDERS))}")
    of_rows, of_columns, places = _ORDERS[order]
    rows, columns = (1, *shape)[-2:]
    axes = [
        math.prod(shape[:-2]),
        *_factored(b, rows, of_rows, "rows"),
        *_factored(b, columns, of_columns, "columns"),
    ]
    return axes, [0, *(place + 1 for place in places)]


def _to_order(b: Builder, x: Tensor, order: int) -> Tensor:
    """The row-major matrix ``x`` with its elements in ``order``."""
    axes, places = _layout(b, x.shape, order)
    return b.reshape(b.contiguous(b.reshape(x, axes).transpose(places)), x.shape)


def _to_rows(b: Builder, x: Tensor, order: int) -> Tensor:
    """The matrix ``x``, whose elements lie in ``order``, in row-major order."""
    axes, places = _layout(b, x.shape, order)
    back = sorted(range(len(places)), key=places.__getitem__)
    return b.reshape(b.reshape(x, [axes[place] for place in places]).transpose(back), x.shape)


def _only(b: Builder, **orders: tuple[int, int]) -> None:
    """Decline orders that ONNX Runtime's kernel does not take either: (given, taken)."""
    for name, (given, taken) in orders.items():
        if given != taken:
            b.decline(f"{name} is {given}; the kernels take {taken}")


def _scalars(b: Builder, **scales: Tensor) -> None:
    for name, scale in scales.items():
        b.expect(name, scale, (), (1,))


def _saturated(b: Builder, value: Expr, shape: Sequence[int]) -> Tensor:
    return b.store(rounded_to(b, value, None, INT8), INT8, shape=shape)


def _quantized(b: Builder, x: Tensor, scale: Tensor) -> Tensor:
    """``x / scale``, rounded and saturated: times the reciprocal, in float16 for float16."""
    reciprocal = fn.stored_as(b.divide(1.0, scale), x.dtype)
    return _saturated(b, fn.stored_as(b.expr("mul", x, reciprocal), x.dtype), x.shape)


def _real(b: Builder, x: Tensor, scale: Tensor, to: DType) -> Tensor:
    factor = fn.stored_as(b.expr("same", scale), to)
    return b.store(b.expr("cast", x, ctype="float") * factor, to, shape=x.shape)


@operator("QuantizeWithOrder", domain=MICROSOFT, types={"x": FLOATS, "scale": _S})
def quantize_with_order(b: Builder, x: Tensor, scale: Tensor, *, order_input: int, order_output: int) -> Tensor:
    _scalars(b, scale_input=scale)
    return _to_order(b, _quantized(b, _to_rows(b, x, order_input), scale), order_output)


@operator("DequantizeWithOrder", domain=MICROSOFT, types={"x": _Q, "scale": _S})
def dequantize_with_order(
    b: Builder, x: Tensor, scale: Tensor, *, order_input: int, order_output: int, to: int
) -> Tensor:
    _scalars(b, scale_input=scale)
    dtype = dtypes.from_onnx(to)
    if dtype not in (FLOAT32, FLOAT16):
        b.invalid(f"to is {to}, expected float (1) or float16 (10)")
    return _to_order(b, _real(b, _to_rows(b, x, order_input), scale, dtype), order_output)


@operator("QOrderedGelu", domain=MICROSOFT, types={"x": _Q, "scale y_scale": _S})
def qordered_gelu(
    b: Builder,
    x: Tensor,
    scale: Tensor,
    y_scale: Tensor,
    *,
    order_X: int | None = None,
    order_Y: int | None = None,
) -> Tensor:
    """Of each element, so that the order does not matter."""
    if None not in (order_X, order_Y) and order_X != order_Y:
        b.invalid(f"order_X is {order_X} and order_Y {order_Y}, expected the same")
    _scalars(b, scale_X=scale, scale_Y=y_scale)
    return _quantized(b, gelu(b, _real(b, x, scale, FLOAT32)), y_scale)


@operator("QOrderedLayerNormalization", domain=MICROSOFT, types={"x": _Q, "x_scale y_scale": _S, "scale bias": FLOATS})
def qordered_layer_normalization(
    b: Builder,
    x: Tensor,
    x_scale: Tensor,
    scale: Tensor,
    bias: Tensor | None,
    y_scale: Tensor,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    order_X: int = _ROW,
    order_Y: int = _ROW,
) -> Tensor:
    _only(b, order_X=(order_X, _ROW), order_Y=(order_Y, _ROW))
    _scalars(b, scale_X=x_scale, scale_Y=y_scale)
    rows = _real(b, x, x_scale, FLOAT32)
    return _quantized(b, row_norm(b, rows, scale, bias, axis=axis, epsilon=epsilon)[0], y_scale)


def _product(b: Builder, x: Tensor, matrix: Tensor, alpha: Expr, *added: Expr) -> Tensor:
    """``alpha * (x @ matrix)`` and what is added to it, in float32, rounded to int8."""
    total = matrix_product(b, x, matrix, INT32)
    value = b.expr("cast", total, ctype="float") * alpha
    for term in added:
        value = b.expr("add", value, term)
    return _saturated(b, value, total.shape)


@operator("QOrderedMatMul", domain=MICROSOFT, types={"a y c": _Q, "a_scale b_scale y_scale bias c_scale": _S})
def qordered_matmul(
    b: Builder,
    a: Tensor,
    a_scale: Tensor,
    y: Tensor,
    b_scale: Tensor,
    y_scale: Tensor,
    bias: Tensor | None = None,
    c: Tensor | None = None,
    c_scale: Tensor | None = None,
    *,
    order_A: int,
    order_B: int,
    order_Y: int,
) -> Tensor:
    _only(b, order_A=(order_A, _ROW), order_B=(order_B, _COL), order_Y=(order_Y, _ROW))
    if a.rank not in (2, 3) or y.rank not in (2, 3) or y.shape[:-2] not in ((), (1,), a.shape[:-2]):
        b.invalid(f"matrices of shape {list(a.shape)} and {list(y.shape)}, expected 2 or 3 axes and the same batch")
    columns = y.shape[-1]
    _scalars(b, scale_A=a_scale, scale_Y=y_scale)
    b.expect("scale_B", b_scale, (), (1,), (columns,))
    b.expect("bias", bias, (columns,))
    added = [] if bias is None else [b.divide(bias, y_scale)]
    if c is not None:
        if c_scale is None:
            b.invalid("C without scale_C")
        shape = (*a.shape[:-1], columns)
        b.expect("C", c, shape, shape[-2:], (1, *shape[-2:]))
        _scalars(b, scale_C=c_scale)
        c = b.reshape(c, c.shape[-a.rank :])
        added.append(b.expr("cast", c, ctype="float") * b.divide(c_scale, y_scale))
    alpha = ratio(b, a_scale, b_scale, y_scale)
    matrix = _to_rows(b, y, _COL)
    if a.rank == 2 and matrix.rank == 3:
        matrix = b.reshape(matrix, matrix.shape[1:])
    return _product(b, a, matrix, alpha, *added)


@operator(
    "QOrderedAttention",
    domain=MICROSOFT,
    types={
        "x q_weight k_weight v_weight past": _Q,
        "x_scale q_scale k_scale v_scale q_weight_scale k_weight_scale v_weight_scale q_bias k_bias v_bias": _S,
        "scores_scale softmax_scale y_scale attention_bias": _S,
        "mask": ("int32",),
    },
)
def qordered_attention(
    b: Builder,
    x: Tensor,
    x_scale: Tensor,
    q_scale: Tensor,
    k_scale: Tensor,
    v_scale: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    v_weight: Tensor,
    q_weight_scale: Tensor,
    k_weight_scale: Tensor,
    v_weight_scale: Tensor,
    q_bias: Tensor,
    k_bias: Tensor,
    v_bias: Tensor,
    scores_scale: Tensor,
    softmax_scale: Tensor,
    y_scale: Tensor,
    mask: Tensor | None = None,
    past: Tensor | None = None,
    attention_bias: Tensor | None = None,
    *,
    num_heads: int,
    order_input: int,
    order_output: int,
    order_weight: int,
    qkv_hidden_sizes: Sequence[int] | None = None,
    unidirectional: int = 0,
) -> Tensor:
    """Scores, shares and the result are rounded to int8, each by its own scale. ``mask`` is 0 where a key is left out."""
    _only(
        b, order_input=(order_input, _ROW), order_weight=(order_weight, _COL), order_output=(order_output, _ROW),
        unidirectional=(unidirectional, 0),
    )  # fmt: skip
    if past is not None or attention_bias is not None:
        b.decline("past or attention_bias")
    if x.rank != 3 or q_weight.rank != 2 or num_heads < 1 or q_weight.shape[1] % num_heads:
        b.invalid(f"an input of shape {list(x.shape)}, weights of {list(q_weight.shape)}, {num_heads} heads; expected 3 axes, "
                  "2 axes, and heads that divide the columns of the weights")  # fmt: skip
    batch, length, inner = x.shape
    hidden = q_weight.shape[1]
    b.expect("mask_index", mask, (batch, length))
    _scalars(
        b, scale_input=x_scale, scale_Q_gemm=q_scale, scale_K_gemm=k_scale, scale_V_gemm=v_scale,
        scale_QKT_gemm=scores_scale, scale_QKT_softmax=softmax_scale, scale_values_gemm=y_scale,
    )  # fmt: skip
    if list(qkv_hidden_sizes or [hidden] * 3) != [hidden] * 3:
        b.decline(f"qkv_hidden_sizes {qkv_hidden_sizes} of weights for {hidden}")
    heads = []
    for name, weight, factor, bias, scale in (
        ("Q", q_weight, q_weight_scale, q_bias, q_scale),
        ("K", k_weight, k_weight_scale, k_bias, k_scale),
        ("V", v_weight, v_weight_scale, v_bias, v_scale),
    ):
        b.expect(f"{name}_weight", weight, (inner, hidden))
        b.expect(f"scale_{name}_weight", factor, (), (1,), (hidden,))
        b.expect(f"{name}_bias", bias, (hidden,))
        alpha = ratio(b, factor, x_scale, scale)
        made = _product(b, x, _to_rows(b, weight, _COL), alpha, b.divide(bias, scale))
        heads.append(split_heads(b, made, num_heads))
    q, k, v = heads
    scores = _product(b, q, k.transpose((0, 1, 3, 2)), ratio(b, q_scale, k_scale, scores_scale))
    # a masked key is 0 after the softmax too, so that a row without any key is 0
    kept = None if mask is None else b.expr("ne", b.reshape(mask, (batch, 1, 1, length)), 0, ctype="bool")
    value = b.expr("mul", b.expr("cast", scores, ctype="float"), scores_scale) * default_scale(q.shape[3])
    if kept is not None:
        value = where(kept, value, -1e30)
    weights = b.contiguous(b.store(value, FLOAT32, shape=scores.shape))
    shares = softmax_over(b, weights, batch * num_heads * length, length, 1)
    share = b.divide(shares, softmax_scale)
    if kept is not None:
        share = where(kept, share, 0)
    alpha = ratio(b, softmax_scale, v_scale, y_scale)
    return merge_heads(b, _product(b, _saturated(b, share, scores.shape), v, alpha))


@operator(
    "QOrderedLongformerAttention",
    domain=MICROSOFT,
    types={
        "x weight global_weight": _Q,
        "x_scale weight_scale bias bias_scale qkv_scale global_weight_scale global_bias global_scale y_scale": _S,
        "mask": ("float16",),
        "flags": ("int32",),
    },
)
def qordered_longformer_attention(
    b: Builder,
    x: Tensor,
    x_scale: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    bias: Tensor,
    bias_scale: Tensor,
    qkv_scale: Tensor,
    mask: Tensor,
    global_weight: Tensor,
    global_weight_scale: Tensor,
    global_bias: Tensor,
    global_scale: Tensor,
    flags: Tensor,
    y_scale: Tensor,
    *,
    num_heads: int,
    order_global_weight: int,
    order_input: int,
    order_output: int,
    order_weight: int,
    window: int,
) -> Tensor:
    """Queries, keys and values are rounded to int8; attention is that of float16. The biases are divided by the scale already."""
    _only(
        b, order_input=(order_input, _ROW), order_output=(order_output, _ROW), order_weight=(order_weight, _COL),
        order_global_weight=(order_global_weight, _COL),
    )  # fmt: skip
    _scalars(
        b, scale_input=x_scale, scale_weight=weight_scale, scale_qkv_gemm=qkv_scale, scale_output=y_scale,
        scale_global_weight=global_weight_scale, scale_global_gemm=global_scale,
    )  # fmt: skip
    if x.rank != 3:
        b.invalid(f"the input has shape {list(x.shape)}, expected 3 axes")
    hidden = x.shape[2]
    made: list[Projections] = []
    for name, matrix, factor, added, scale in (
        ("", weight, weight_scale, bias, qkv_scale),
        ("global_", global_weight, global_weight_scale, global_bias, global_scale),
    ):
        b.expect(f"{name}weight", matrix, (hidden, 3 * hidden))
        b.expect(f"{name}bias", added, (3 * hidden,))
        alpha = ratio(b, x_scale, factor, scale)
        whole = _product(b, x, _to_rows(b, matrix, _COL), alpha, b.expr("same", added))
        parts = _real(b, whole, scale, FLOAT16)
        made.append((parts.slice(2, 0, hidden), parts.slice(2, hidden, hidden), parts.slice(2, 2 * hidden, hidden)))
    return _quantized(b, longformer(b, made[0], made[1], mask, flags, num_heads, window), y_scale)
