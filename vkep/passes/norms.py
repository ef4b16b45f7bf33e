"""RMS norms in the products that use them (`vkep.kernels.matmul.fused`), and those of heads in the update of a cache
(`vkep.kernels.attention.cache_update`)."""

from __future__ import annotations

from dataclasses import replace

from vkep.ir import expr as ex
from vkep.ir.ops import KernelOp, Op, Pointwise
from vkep.ir.tensor import Tensor
from vkep.kernels.attention.cache_update import CacheUpdateProblem
from vkep.kernels.launch import is_cpu
from vkep.kernels.matmul.fused import FusedProductProblem, not_one_row, product_and_form
from vkep.kernels.reductions.norm import LayerNormProblem
from vkep.passes.rewrite import Changes, Graph
from vkep.sizes import divides, matches


def add_to_norm(add: Op, graph: Graph) -> Changes | None:
    """``norm(x) + added``, for one row, is an RMS norm with a bias: some decoders normalize a layer's output before they add it
    to the residual."""
    if not isinstance(add, Pointwise) or add.expr.op != "add" or len(add.inputs) != 2 or not add.out.is_contiguous:
        return None
    for normed, added in (add.inputs, add.inputs[::-1]):
        norm = graph.producer(normed.storage, add)
        problem = _rms_norm(norm)
        if (
            isinstance(norm, KernelOp)
            and problem is not None
            and normed.is_whole
            and added.storage is not normed.storage
            and added.is_contiguous
            and all(isinstance(leaf, ex.Leaf) for leaf in add.expr.args)
            and added.dtype is normed.dtype is add.out.dtype
            and all(matches(n, problem.axis) for n in (added.size, normed.size, add.out.size))
        ):
            return graph.fuse(replace(problem, bias=True), [*norm.inputs, added], [add.out], [norm, add])
    return None


def norm_into_products(norm: Op, graph: Graph) -> Changes | None:
    """Each product of ``norm(x)``, one row, normalizes x itself, where all users are products that can."""
    problem = _rms_norm(norm)
    if not isinstance(norm, KernelOp) or problem is None or norm.outputs[0].storage in graph.results:
        return None
    changes: dict[Op, list[Op]] = {norm: []}
    for user in graph.users(norm.outputs[0].storage):
        product = _normed_product(norm, problem, user, graph)
        if product is None:
            return None
        changes[user] = [product]
    return changes if len(changes) > 1 else None


def head_norms_into_update(update: Op, graph: Graph) -> Changes | None:
    """The update of a cache normalizes its queries and keys itself, on a GPU: a CPU driver would compute a row's norm for each of
    its lanes."""
    problem = update.problem if isinstance(update, KernelOp) else None
    if not isinstance(update, KernelOp) or not isinstance(problem, CacheUpdateProblem) or is_cpu(graph.caps):
        return None
    if not problem.half or problem.epsilon is not None:
        return None
    queries, keys = (_before_norm(t, update, graph) for t in update.inputs[:2])
    if queries is None or keys is None:
        return None
    (q, q_norm, epsilon), (k, k_norm, k_epsilon) = queries, keys
    normed = {q_norm.outputs[0].storage, k_norm.outputs[0].storage}
    # values may be the norm of the keys
    if epsilon != k_epsilon or any(t.storage in normed for t in update.inputs[2:]):
        return None
    inputs = [q, k, *update.inputs[2:], q_norm.inputs[1], k_norm.inputs[1]]
    return graph.fuse(replace(problem, epsilon=epsilon), inputs, update.outputs, [q_norm, k_norm, update])


def _before_norm(t: Tensor, update: KernelOp, graph: Graph) -> tuple[Tensor, KernelOp, float] | None:
    """Where ``t`` is a norm of rows that ``update`` alone uses: these rows before it, the norm, and its epsilon."""
    norm = graph.producer(t.storage, update)
    problem = _rms_norm(norm)
    if not isinstance(norm, KernelOp) or problem is None or not isinstance(update.problem, CacheUpdateProblem):
        return None
    (x, _), [y] = norm.inputs, norm.outputs
    starts = (t.offset - y.offset, *t.strides[:3])
    in_rows = x.is_contiguous and y.is_contiguous and all(divides(problem.axis, start) for start in starts)
    if not in_rows or problem.axis != t.shape[3] or problem.dtype != update.problem.dtype:
        return None
    return Tensor(x.dtype, t.shape, x.storage, t.strides, t.offset - y.offset + x.offset), norm, problem.epsilon


def _rms_norm(op: Op | None) -> LayerNormProblem | None:
    """The problem of a plain RMS norm; None for other operations."""
    problem = op.problem if isinstance(op, KernelOp) and op.epilogue is None else None
    if not isinstance(problem, LayerNormProblem) or not problem.rms or not problem.scale:
        return None
    return None if problem.bias or problem.mean or problem.inv_std else problem


def _normed_product(norm: KernelOp, of: LayerNormProblem, user: Op, graph: Graph) -> KernelOp | None:
    """The user of a norm with the norm in it; None where it is no product that a kernel computes so."""
    product, form = product_and_form(user.problem if isinstance(user, KernelOp) else None)
    row = norm.outputs[0]
    if not isinstance(user, KernelOp) or product is None or form.epsilon is not None:
        return None
    others = [t for t in user.all_inputs[1:] if t.storage is row.storage]
    whole = user.inputs[0].storage is row.storage and matches(user.inputs[0].offset, row.offset)
    if others or not whole or not user.outputs[0].is_contiguous:
        return None
    if not_one_row(product) or of.rows != 1 or of.axis != product.k or of.dtype != product.dtype:
        return None
    problem = FusedProductProblem(product, replace(form, epsilon=of.epsilon))
    return graph.fused(problem, [*norm.inputs, *user.inputs[1:]], user.outputs, [norm, user])
