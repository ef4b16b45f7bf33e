"""Matrix products: MatMul and Gemm, and of domain com.microsoft FusedMatMul and FusedGemm."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from vkep.dtypes import FLOAT16, FLOAT32, INT8, DType
from vkep.graph.attributes import GemmAttributes
from vkep.ir import algebra as fn
from vkep.ir.builder import Builder
from vkep.ir.tensor import Tensor, broadcast_shapes, collapse, same_shape
from vkep.kernels.matmul.generic import GenericProductProblem
from vkep.kernels.matmul.matmul import MatMulProblem
from vkep.kernels.problem import Problem
from vkep.kernels.select import supports
from vkep.ops.allowed import FLOATING
from vkep.ops.codes import computed_operands, operands, per_column
from vkep.ops.microsoft import MICROSOFT, activated
from vkep.ops.registry import FLOATS, operator
from vkep.sizes import cached, is_size, matches

#: layers recur, and so do plans for other sizes: checked and derived values are cached
_problem = cached(MatMulProblem)
#: element types of a product (ONNX MatMul and Gemm)
PRODUCT_TYPES = (*FLOATS, "bfloat16", "float64", "int32", "int64", "uint32", "uint64")


def matrix_product(b: Builder, x: Tensor, y: Tensor, dtype: DType | None = None, zero: int = 0) -> Tensor:
    """numpy's matmul of two tensors, each of rank 1 or more; views with any strides.

    The result is of ``dtype``, by default the first operand's; integers may be widened (int8 by uint8 to int32), and float16 and
    int8 to float32. ``zero``: the first operand is less by this, of int8 that `takes_wide`.
    """
    dtype = dtype or x.dtype
    if dtype.name == "bfloat16":  # sums are kept in float32 and rounded once
        wide = FLOAT32
        return b.cast(matrix_product(b, b.cast(x, wide), b.cast(y, wide)), dtype)
    lead_x, lead_y = x.rank == 1, y.rank == 1
    if x.rank == 0 or y.rank == 0:
        b.decline(f"a product of shapes {x.shape} and {y.shape}")
    if lead_x:
        x = x.view((1, *x.shape), (0, *x.strides))
    if lead_y:
        y = y.view((*y.shape, 1), (*y.strides, 0))
    (m, k), (k2, n) = x.shape[-2:], y.shape[-2:]
    if k != k2:
        b.decline(f"inner dimensions differ: {x.shape} by {y.shape}")
    try:
        batch_shape = broadcast_shapes(x.shape[:-2], y.shape[:-2])
    except ValueError:
        b.decline(f"batch dimensions of {x.shape} and {y.shape} do not broadcast")
    shape = [*batch_shape, *([] if lead_x else [m]), *([] if lead_y else [n])]
    if k == 0:
        return b.full(shape, 0, dtype)
    backwards = [any(s < 0 for s in t.strides) for t in (x, y)]
    if any(backwards):
        x, y = (b.contiguous(t) if back else t for t, back in zip((x, y), backwards, strict=True))
    return b.reshape(_batched(b, x, y, batch_shape, m, n, k, dtype, zero), shape)


def _batched(
    b: Builder, x: Tensor, y: Tensor, batch_shape: Sequence[int], m: int, n: int, k: int, dtype: DType, zero: int
) -> Tensor:
    rows = (
        x.reshape((math.prod(batch_shape) * m, k))
        if matches(y.size, k * n) and same_shape(x.shape[:-2], batch_shape)
        else None
    )
    if rows is not None:  # one matrix on the right: the batch is more rows
        return _product(b, rows, y.view((k, n), y.strides[-2:]), [1], [(0,), (0,)], rows.shape[0], n, k, dtype, zero)
    assert not zero
    x, y = x.expand((*batch_shape, m, k)), y.expand((*batch_shape, k, n))
    dims, strides = collapse(batch_shape, [x.strides[:-2], y.strides[:-2]])
    if len(dims) > 2:  # no two batch strides say it
        x, y = b.contiguous(x), b.contiguous(y)
        dims, strides = collapse(batch_shape, [x.strides[:-2], y.strides[:-2]])
    return _product(b, x, y, dims, strides, m, n, k, dtype, 0)


def _product(
    b: Builder,
    x: Tensor,
    y: Tensor,
    batch: Sequence[int],
    batch_strides: Sequence[Sequence[int]],
    m: int,
    n: int,
    k: int,
    dtype: DType,
    zero: int,
) -> Tensor:
    """A product over at most two batch axes."""
    outer, inner = batch if len(batch) == 2 else (1, batch[0])
    x_batch, y_batch = ((s[-2] if len(s) == 2 else 0, s[-1]) for s in batch_strides)
    sizes, strides = (outer, inner), ((*x_batch, *x.strides[-2:]), (*y_batch, *y.strides[-2:]))
    out = b.empty(dtype, (*sizes, m, n))
    problem: Problem
    wide = dtype is FLOAT32 and x.dtype is y.dtype and x.dtype in (FLOAT16, INT8)
    if wide or (dtype.name in FLOATS and x.dtype is y.dtype is dtype):
        # what a constant repeats as often as a size says is no weight that can be packed
        is_weight = y.storage.may_be_packed and not any(is_size(value) for value in (n, k, *strides[1]))
        of = x.dtype.name
        made = _problem(
            m, n, k, *strides, batch=sizes, dtype=of, b_constant=is_weight, to="float32" if wide else "", zero=zero
        )
        if wide and not supports(made, b.caps):
            assert not zero
            x, y = b.cast(x, FLOAT32), b.cast(y, FLOAT32)
            return _product(b, x, y, batch, batch_strides, m, n, k, dtype, 0)
        problem = made
    else:
        problem = GenericProductProblem(sizes, m, n, k, *strides, (x.dtype.name, y.dtype.name, dtype.name))
    b.compute(problem, [x, y], [out])
    return out


def takes_wide(
    b: Builder, x: Sequence[int], y: Sequence[int], transposed: bool = False, dtype: DType = FLOAT16
) -> bool:
    """Whether a kernel gives float32 results of a dense matrix of float16 or int8 of shape ``x``, or a stack of them, by a weight
    [k, n] of shape ``y``, which is dense or the transpose of what is."""
    if len(x) < 2 or len(y) != 2 or x[-1] != y[0] or 0 in x:
        return False
    m, (k, n) = math.prod(x[:-1]), y
    strides = (0, 0, k, 1), (0, 0, *((1, k) if transposed else (n, 1)))
    return supports(_problem(m, n, k, *strides, batch=(1, 1), dtype=dtype.name, b_constant=True, to="float32"), b.caps)


def _of_codes(b: Builder, x: Tensor, y: Tensor, transposed: bool = False) -> Tensor:
    """``x @ y``, or by the transposed y; of codes where both were dequantized."""
    both = computed_operands(b, x, y) if min(x.rank, y.rank) >= 2 and not transposed else None
    if both is not None and takes_wide(b, x.shape[-2:], y.shape[-2:], bool(matches(y.strides[-2], 1)), FLOAT16):
        return per_column(b, matrix_product(b, both.x, both.w, FLOAT32), both.factor, axis=-1)
    for of in operands(b, x, y, axis=0 if transposed else 1) if y.rank == 2 else ():
        w = of.w.transpose((1, 0)) if transposed else of.w
        if takes_wide(b, of.x.shape, w.shape, transposed, w.dtype):
            return per_column(b, matrix_product(b, of.x, w, FLOAT32, of.zero), of.factor, axis=-1)
    return matrix_product(b, x, y.transpose((1, 0)) if transposed else y)


@operator("MatMul", types={"T": PRODUCT_TYPES})
def matmul_(b: Builder, x: Tensor, y: Tensor) -> Tensor:
    return _of_codes(b, x, y)


@operator("Gemm", types={"T": PRODUCT_TYPES})
def gemm(b: Builder, x: Tensor, y: Tensor, c: Tensor | None = None, *, a: GemmAttributes, broadcast: int = 0) -> Tensor:
    """``alpha * x @ y + beta * c``; without ``broadcast``, before version 7, c has the product's shape."""
    if x.rank != 2 or y.rank != 2:
        b.decline(f"Gemm of shapes {x.shape} and {y.shape}; it takes matrices")
    dtype = x.dtype
    if dtype.name == "bfloat16":
        x, y = b.cast(x, FLOAT32), b.cast(y, FLOAT32)
        c = None if c is None else b.cast(c, FLOAT32)
    product = _of_codes(b, x.transpose((1, 0)) if a.transA else x, y, bool(a.transB))
    if a.alpha != 1.0:
        product = scaled(b, product, a.alpha)
    if c is not None and a.beta != 0.0:
        product = b.pointwise("add", product, c if a.beta == 1.0 else scaled(b, c, a.beta), shape=product.shape)
    return b.cast(product, dtype)


def scaled(b: Builder, x: Tensor, factor: float) -> Tensor:
    """``x`` times a number that need not be whole, also for integers (truncated, as a cast of the product)."""
    if x.dtype.kind == "float":
        return b.pointwise("mul", x, factor)
    if factor == int(factor):
        return b.pointwise("mul", x, int(factor))
    value, by = b.reads(x, b.constant(np.array(factor, np.float64)))
    return b.store(fn.cast(fn.cast(value, "double") * by, value.ctype), x.dtype, shape=x.shape)


@operator("FusedMatMul", domain=MICROSOFT, types={"x y": FLOATING})
def fused_matmul(
    b: Builder,
    x: Tensor,
    y: Tensor,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    transBatchA: int = 0,
    transBatchB: int = 0,
) -> Tensor:
    if (transBatchA or transBatchB) and (x.rank != y.rank or x.rank < 3):
        b.invalid(f"batches of {list(x.shape)} and {list(y.shape)}; expected the same number of axes, at least 3")
    x, y = _oriented(x, transA, transBatchA), _oriented(y, transB, transBatchB)
    product = matrix_product(b, x, y)
    return product if alpha == 1.0 else scaled(b, product, alpha)


@operator("SparseToDenseMatMul", domain=MICROSOFT, types={"x y": ("float32", "float64")})
def sparse_to_dense_matmul(
    b: Builder, x: Tensor, y: Tensor, *, alpha: float = 1.0, transA: int = 0, transB: int = 0
) -> Tensor:
    if x.rank != 2 or y.rank > 2:
        b.invalid(f"a sparse tensor of shape {list(x.shape)}, a dense one of {list(y.shape)}; expected matrices")
    return fused_matmul(b, x, y, alpha=alpha, transA=transA, transB=transB)


def _oriented(x: Tensor, swap: int, batch: int) -> Tensor:
    if batch and x.rank > 2:  # move the first axis behind the batch axes
        x = x.transpose((*range(1, x.rank - 1), 0, x.rank - 1))
    if swap and x.rank >= 2:
        x = x.transpose((*range(x.rank - 2), x.rank - 1, x.rank - 2))
    return x


@operator("FusedGemm", domain=MICROSOFT, types={"x y c": FLOATS})
def fused_gemm(
    b: Builder,
    x: Tensor,
    y: Tensor,
    c: Tensor | None = None,
    *,
    a: GemmAttributes,
    activation: str = "",
    activation_alpha: float | None = None,
    activation_beta: float | None = None,
    activation_gamma: float | None = None,
) -> Tensor:
    given = {"alpha": activation_alpha, "beta": activation_beta, "gamma": activation_gamma}
    return activated(b, gemm(b, x, y, c, a=a), activation, **given)


operator("TransposeMatMul", domain=MICROSOFT, types={"x y": FLOATING})(fused_matmul)
