"""Operators on matrices other than products: Det, Inverse, CDist. Semantics: ONNX, and ONNX Runtime's schemas."""

from __future__ import annotations

from vkep.ir import algebra as fn
from vkep.ir.builder import Builder
from vkep.ir.expr import Expr
from vkep.ir.tensor import Tensor
from vkep.kernels.elimination import DeterminantProblem, InverseProblem
from vkep.ops.allowed import SINGLE, every
from vkep.ops.contraction import matrix_product
from vkep.ops.microsoft import MICROSOFT
from vkep.ops.reduction import reduce_axes
from vkep.ops.registry import FLOATS, operator


@operator("CDist", domain=MICROSOFT, types={"x y": ("float32", "float64")})
def distances(b: Builder, x: Tensor, y: Tensor, *, metric: str = "sqeuclidean") -> Tensor:
    """Distances of rows, by the sums of squares less twice the product, as ONNX Runtime's."""
    if metric not in ("sqeuclidean", "euclidean"):
        b.decline(f"metric is {metric!r}")
    if x.rank != 2 or y.rank != 2 or x.shape[1] != y.shape[1]:
        b.invalid(
            f"A has shape {list(x.shape)} and B {list(y.shape)}, expected [rows, features] with the same features"
        )
    squares = [reduce_axes(b, "sumsq", t, [1], keepdims=True) for t in (x, y)]
    product = matrix_product(b, x, y.transpose((1, 0)))

    def distance(x: Expr, y: Expr, both: Expr) -> Expr:
        square = fn.maximum(x + y - 2.0 * both, 0.0)
        return fn.sqrt(square) if metric == "euclidean" else square

    return b.pointwise(distance, squares[0], squares[1].transpose((1, 0)), product, shape=product.shape)


@operator("Inverse", domain=MICROSOFT, types={"x": (*FLOATS, "float64")})
def inverse(b: Builder, x: Tensor) -> Tensor:
    return b.result(InverseProblem(x.shape, x.dtype.name), x)


@operator("Det", types={"T": every("Det", among=(*SINGLE, "float64"))})
def det(b: Builder, x: Tensor) -> Tensor:
    return b.result(DeterminantProblem(x.shape, x.dtype.name), x)
