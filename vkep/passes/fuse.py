"""Fusion of pointwise operations: chains of them into one kernel, and those after products and convolutions into these."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from gpu_shared.capabilities import DeviceCapabilities
from vkep.ir import expr as ex
from vkep.ir.ops import KernelOp, Op, Pointwise
from vkep.ir.tensor import Tensor, collapse, same_shape
from vkep.kernels.select import supports
from vkep.passes.rewrite import Changes, Graph
from vkep.passes.simplify import by_inverses, whole_numbers
from vkep.passes.split import MAX_OPERANDS
from vkep.sizes import matches

#: maximum number of producers fused into one expression, and of operations in it: they bound the shader's size. Drivers need
#: more than linear time for long ones: lavapipe 2 seconds for 100 steps of Max (four operations each), 13 seconds for 200.
MAX_FUSED, MAX_OPERATIONS = 64, 512


def fuse_pointwise(op: Op, graph: Graph) -> Changes | None:
    """A pointwise operation computes its inputs itself where it is the only user of what pointwise operations produce."""
    if not isinstance(op, Pointwise):
        return None
    inlined: dict[ex.Leaf, ex.Expr] = {}  # the expression is rebuilt once, after all producers are known
    leaves, size, fused, labels = ex.leaves(op.expr), 0, [op], op.labels
    while len(fused) <= MAX_FUSED:
        for storage in dict.fromkeys([leaf.tensor.storage for leaf in leaves if leaf.tensor is not None]):
            producer = graph.producer(storage, *fused)
            if not isinstance(producer, Pointwise) or _narrows_another(producer, op, graph):
                continue
            read = [leaf for leaf in leaves if leaf.tensor is not None and leaf.tensor.storage is storage]
            inner = _inner(producer, read, op.out)
            if inner is None:
                continue
            more = ex.leaves(inner)
            merged = dict.fromkeys([new for leaf in leaves for new in (more if leaf in read else (leaf,))])
            grown = (size or ex.count(op.expr)) + ex.count(inner)
            if len(merged) <= MAX_OPERANDS and grown <= MAX_OPERATIONS:
                inlined.update(dict.fromkeys(read, inner))
                leaves, size, labels = tuple(merged), grown, [*producer.labels, *labels]
                fused.append(producer)
                break
        else:
            break
    if not inlined:
        return None
    return {**dict.fromkeys(fused, ()), op: [replace(op, expr=ex.inline(op.expr, inlined), labels=labels)]}


def _narrows_another(producer: Pointwise, op: Pointwise, graph: Graph) -> bool:
    """Whether a producer stores the sums of a kernel in a narrower type, and is another kernel's epilogue than ``op`` will be: as
    a part of that one it would leave the wider sums in memory."""
    size = producer.out.dtype.itemsize
    if size >= 4 or len(kernels := _kernels_before(op, graph)) < 2:
        return False
    own = _kernels_before(producer, graph)
    if max(kernels, key=graph.depth) in own:
        return False
    return any(k.outputs[0].dtype.itemsize > size and k.problem.stores(producer.out.dtype.name) for k in own)


def _kernels_before(op: Pointwise, graph: Graph) -> list[KernelOp]:
    """The kernels whose epilogue an operation could be, with the pointwise ones before it that only it needs."""
    users, kernels = [op], dict[KernelOp, None]()
    for user in users:  # which grows
        for storage in dict.fromkeys([t.storage for t in user.inputs]):
            producer = graph.producer(storage, *users)
            if isinstance(producer, Pointwise):
                if producer not in users:  # of two that read it, each finds it
                    users.append(producer)
            elif producer is not None and _takes_epilogue(producer):
                kernels[producer] = None
    return list(kernels)


def _takes_epilogue(kernel: KernelOp) -> bool:
    return kernel.problem.matrices is not None and kernel.epilogue is None


def _inner(producer: Pointwise, read: Sequence[ex.Leaf], out: Tensor) -> ex.Expr | None:
    """The producer's expression, to replace the leaves that ``read`` its result in an expression over the elements of
    ``out``; None where a read is not of the whole result, or an input of the producer has no view of that shape."""
    for leaf in read:
        if leaf.tensor is None or not matches(leaf.tensor.size, out.size) or not leaf.tensor.is_whole:
            return None
    if same_shape(producer.out.shape, out.shape):
        return _in_compute_type(producer.expr, producer.out)
    failed = False

    def reshaped(node: ex.Leaf) -> ex.Expr | None:
        """A read in the shape of ``out``; sets ``failed`` where it has no such view."""
        nonlocal failed
        view = None if node.tensor is None else node.tensor.reshape(out.shape)
        failed |= view is None
        return None if view is None else ex.leaf(view)

    inner = ex.substitute(producer.expr, reshaped)
    return None if failed else _in_compute_type(inner, producer.out)


def _in_compute_type(inner: ex.Expr, out: Tensor) -> ex.Expr:
    """The producer's expression in the compute type of ``out``, as a read of it has; it is not rounded to the stored type."""
    kind = out.dtype.glsl_compute
    return inner if inner.ctype == kind else ex.Expr(kind, "cast", (inner,))


def fuse_epilogue(op: Op, graph: Graph) -> Changes | None:
    """A pointwise operation on the result of a product or a convolution becomes the epilogue of that kernel."""
    if not isinstance(op, Pointwise):
        return None
    kernels = [
        producer
        for storage in dict.fromkeys([t.storage for t in op.inputs])
        if isinstance(producer := graph.producer(storage, op), KernelOp) and _takes_epilogue(producer)
    ]
    if len(kernels) > 1:  # the end of the longest chain first: the expression's other inputs can be computed before it
        kernels.sort(key=graph.depth, reverse=True)
    for kernel in kernels:
        expr, result = as_epilogue(op, kernel), kernel.outputs[0]
        out = op.out.reshape(result.shape) if expr is not None else None
        if out is not None:
            epilogue = {"epilogue": expr, "epilogue_of": (result,)}
            fused = stored_in(kernel, out, graph.caps, labels=[*kernel.labels, *op.labels], **epilogue)
            if fused is not None:
                return {kernel: [], op: [fused]}
    return None


def stored_in(op: Op, place: Tensor, caps: DeviceCapabilities, **more: Any) -> Op | None:
    """The operation with its first result in a view, and ``more`` fields changed; None where no kernel stores it there."""
    if isinstance(op, Pointwise):
        return replace(op, out=place, **more)
    problem = op.problem.stored_in(place)
    if problem is None or (problem is not op.problem and not supports(problem, caps)):
        return None
    return replace(op, problem=problem, outputs=[place, *op.outputs[1:]], **more)


def as_epilogue(op: Pointwise, kernel: KernelOp) -> ex.Expr | None:
    """An operation on a kernel's result as the kernel's epilogue; None where kernels have no such one."""
    out, matrices = kernel.outputs[0], kernel.problem.matrices
    assert matrices is not None
    if len(kernel.outputs) != 1 or not kernel.problem.stores(op.out.dtype.name) or not matches(op.out.size, out.size):
        return None
    if out.dtype.glsl_compute != "float":  # the compute types of epilogues
        return None
    # kernels' arguments have no fault word for the epilogue
    if len(ex.leaves(op.expr)) > MAX_OPERANDS or ex.is_checked(op.expr):
        return None
    failed = False
    value = ex.leaf(out)  # all reads of the result have the same index

    def in_epilogue(node: ex.Leaf) -> ex.Expr | None:
        """A read as the epilogue has it: the kernel's value, or a view that it can index; sets ``failed`` where neither holds."""
        nonlocal failed
        assert node.tensor is not None
        if node.tensor.storage is out.storage:
            failed |= not (node.tensor.is_whole and matches(node.tensor.size, out.size))
            return value
        view = node.tensor.reshape(out.shape)
        if view is None or epilogue_index(view, matrices) is None:
            failed = True
            return None
        return ex.leaf(view)

    expr = ex.substitute(op.expr, in_epilogue)
    if not failed and expr.ctype != "float":  # of kernels that store codes: their epilogues compute floats
        codes = whole_numbers(expr)
        return None if codes is None else by_inverses(codes, value)
    return None if failed else by_inverses(expr, value)


class IndexTerm(NamedTuple):
    """``of * stride`` of an epilogue's index into a view. ``of`` is "o", the flat index, "row", "col", or of the "matrix" the
    position along an axis: ``o / inner``, modulo ``dim`` unless that is 0."""

    of: str
    stride: int = 1
    inner: int = 1
    dim: int = 0


def epilogue_index(view: Tensor, matrices: tuple[int, int, int]) -> list[IndexTerm] | None:
    """An epilogue's index into a view of as many elements as its kernel's ``matrices`` (`Problem.matrices`), as terms to be
    added; None where there is none."""
    if view.is_contiguous:
        return [IndexTerm("o")]
    rows, columns = matrices[1:]
    lines, lead = view.reshape(matrices), []
    if lines is not None and matches(lines.strides[0], 0):
        strides = lines.strides[1:]
    else:
        size, first = rows * columns, view.rank
        while first and not matches(math.prod(view.shape[first:]), size):
            first -= 1
        matrix = view.view(view.shape[first:], view.strides[first:]).reshape((rows, columns))
        if matrix is None:
            return None
        strides = matrix.strides
        dims, [steps] = collapse(view.shape[:first], [view.strides[:first]])
        for axis, (dim, step) in enumerate(zip(dims, steps, strict=True)):
            if not matches(step, 0):
                lead.append(IndexTerm("matrix", step, size * math.prod(dims[axis + 1 :]), dim if axis else 0))
    terms = [
        *lead,
        *(IndexTerm(of, step) for of, step in zip(("row", "col"), strides, strict=True) if not matches(step, 0)),
    ]
    return None if any(term.stride < 0 for term in terms) else terms
