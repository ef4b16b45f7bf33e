"""Two products of the same few rows in one dispatch, with the expression that joins them: a decoder's gate and up
(`vkep.kernels.matmul.fused`)."""

from __future__ import annotations

from dataclasses import replace

from vkep.ir import expr as ex
from vkep.ir.ops import KernelOp, Op, Pointwise
from vkep.ir.tensor import Tensor
from vkep.kernels.matmul.form import Form
from vkep.kernels.matmul.fused import FusedProductProblem
from vkep.kernels.matmul.nbits_problem import MatMulNBitsProblem
from vkep.kernels.matmul.problem import MatMulProblem
from vkep.passes.fuse import as_epilogue
from vkep.passes.rewrite import Changes, Graph


def pair_products(op: Op, graph: Graph) -> Changes | None:
    """``f(x @ a, x @ b)`` is one dispatch: two products, of which f is an epilogue, or the halves of a product's columns."""
    match = _halves(op, graph) if isinstance(op, Pointwise) else _neighbours(op, graph)
    if match is None:
        return None
    first, second, gone = match
    pair = _pair(first, second, graph)
    return None if pair is None else {gone: [], op: [pair]}


def _is_product(op: Op | None) -> bool:
    return isinstance(op, KernelOp) and isinstance(op.problem, (MatMulNBitsProblem, MatMulProblem))


def _neighbours(op: KernelOp, graph: Graph) -> tuple[KernelOp, KernelOp, Op] | None:
    """A product, the one of the same rows that its epilogue reads, and the operation that then goes (the latter)."""
    if op.epilogue is None or not _is_product(op):
        return None
    for read in ex.tensors(op.epilogue):
        other = graph.producer(read.storage, op)
        if (
            isinstance(other, KernelOp)
            and other.epilogue is None
            and other.inputs[0] == op.inputs[0]
            and other.problem == op.problem
            and all(t.is_whole for t in ex.tensors(op.epilogue) if t.storage is read.storage)
            and all(t.storage is not read.storage for t in op.inputs)
        ):
            return op, other, other
    return None


def _halves(op: Pointwise, graph: Graph) -> tuple[KernelOp, KernelOp, Op] | None:
    """The product of the first half of a product's columns, with the expression of both halves as its epilogue; the product
    of the second half; and the operation that then goes (the whole product)."""
    for storage in dict.fromkeys([t.storage for t in op.inputs]):
        whole = graph.producer(storage, op)
        if isinstance(whole, KernelOp) and _is_product(whole) and whole.epilogue is None:
            halves = _halved(whole, op)
            if halves is not None:
                return (*halves, whole)
    return None


def _halved(whole: KernelOp, op: Pointwise) -> tuple[KernelOp, KernelOp] | None:
    """Two products, of half the columns each, in place of one; ``op``, which joins them, is the first one's epilogue. None where
    ``op`` reads the product otherwise."""
    problem, y = whole.problem, whole.outputs[0]
    assert isinstance(problem, (MatMulNBitsProblem, MatMulProblem))
    half = problem.n // 2
    several = isinstance(problem, MatMulProblem) and problem.products != 1
    if several or problem.n % 2 or op.out.size != problem.m * half:
        return None
    made = [Tensor.contiguous(y.dtype, (*y.shape[:-1], half)) for _ in range(2)]
    columns = {side * half: t.reshape(op.out.shape) for side, t in enumerate(made)}

    def half_read(node: ex.Leaf) -> ex.Expr | None:
        """The tensor of one half, in place of a read of that half of ``y``'s columns."""
        read = node.tensor
        if read is None or read.storage is not y.storage or not _is_rows_of(read, problem.m, half):
            return None
        to = columns.get(read.offset)
        return None if to is None else ex.leaf(to)

    expr = ex.substitute(op.expr, half_read)
    if any(t.storage is y.storage for t in ex.tensors(expr)):
        return None
    narrow, a = replace(problem, n=half), whole.inputs[0]
    first, second = (
        KernelOp(narrow, [a, *_columns(whole, side * half, half)], [t], whole.labels, whole.node)
        for side, t in enumerate(made)
    )
    epilogue, out = as_epilogue(Pointwise(op.out, expr), first), op.out.reshape(made[0].shape)
    if epilogue is None or out is None:
        return None
    labels = [*whole.labels, *op.labels]
    return replace(first, outputs=[out], labels=labels, epilogue=epilogue, epilogue_of=(made[0],)), second


def _is_rows_of(read: Tensor, rows: int, half: int) -> bool:
    """Whether a view has all rows of half a matrix's columns."""
    lines = read.reshape((rows, half)) if read.size == rows * half else None
    return lines is not None and lines.strides[1] == 1 and (rows == 1 or lines.strides[0] == 2 * half)


def _columns(product: KernelOp, first: int, count: int) -> list[Tensor]:
    """The weights of some of a product's columns."""
    problem, weights = product.problem, product.inputs[1:]
    if isinstance(problem, MatMulNBitsProblem):
        dense = [t.view((problem.n, t.size // problem.n), (t.size // problem.n, 1)) for t in weights]
        return [t.slice(0, first, count) for t in dense]
    assert isinstance(problem, MatMulProblem)
    row, column = problem.strides("b")[2:]
    [b] = weights
    return [b.view((problem.k, count), (row, column), b.offset + first * column)]


def _pair(first: KernelOp, second: KernelOp, graph: Graph) -> KernelOp | None:
    """Both products in one; None where the device computes them otherwise."""
    assert isinstance(first.problem, (MatMulNBitsProblem, MatMulProblem))
    if not first.outputs[0].is_contiguous:
        return None
    problem = FusedProductProblem(first.problem, Form(paired=True))
    pair = graph.fused(problem, [*first.inputs, *second.inputs[1:]], first.outputs, [second, first])
    return None if pair is None else replace(pair, epilogue_of=(*first.epilogue_of, second.outputs[0]))
