"""Matrix products in floating point."""

from __future__ import annotations

from vkep.aten.builder import GraphBuilder, Number, Val
from vkep.aten.registry import aten


@aten("aten.linear.default")
def linear(b: GraphBuilder, x: Val, weight: Val, bias: Val | None = None) -> Val:
    weight, bias = b.cast(weight, x.elem), bias and b.cast(bias, x.elem)
    if x.rank == 2 and weight.rank == 2:
        return b.op("Gemm", x, weight, bias, transB=1)
    dims = [*x.dims[:-1], *weight.dims[:-1]]
    out = b.op("MatMul", x, b.transpose(weight, range(weight.rank)[::-1]), dims=dims)
    return out if bias is None else b.op("Add", out, bias)


@aten("aten.mm.default", "aten.bmm.default")
def matmul(b: GraphBuilder, x: Val, mat2: Val) -> Val:
    return b.op("MatMul", x, b.cast(mat2, x.elem), dims=[*x.dims[:-1], mat2.dims[-1]])


@aten("aten.addmm.default")
def addmm(b: GraphBuilder, x: Val, mat1: Val, mat2: Val, beta: Number = 1, alpha: Number = 1) -> Val:
    x, mat2 = b.cast(x, mat1.elem), b.cast(mat2, mat1.elem)
    return b.op("Gemm", mat1, mat2, x, alpha=float(alpha), beta=float(beta), dims=[mat1.dims[0], mat2.dims[1]])
