"""The update of a cache (the rotation of a token's queries and keys, and the caches' new rows) in the product before it
(`vkep.kernels.matmul.fused`) or in the attention after it (`vkep.kernels.attention.stream`): a dispatch less in each layer of a
decoder's step."""

from __future__ import annotations

from dataclasses import replace

from vkep.ir.ops import KernelOp, Op
from vkep.kernels.attention.cache_update import CacheUpdateProblem
from vkep.kernels.attention.problem import AttentionProblem
from vkep.kernels.attention.stream import UpdatingAttentionProblem, not_updating
from vkep.kernels.matmul.form import not_turned
from vkep.kernels.matmul.fused import FusedProductProblem, not_one_row, product_and_form
from vkep.passes.rewrite import Changes, Graph


def update_into_product(update: Op, graph: Graph) -> Changes | None:
    """``update(x @ w)`` is one dispatch, where x is one row, and all columns are the update's queries, keys and values."""
    problem = update.problem if isinstance(update, KernelOp) else None
    if not isinstance(update, KernelOp) or not isinstance(problem, CacheUpdateProblem) or not_turned(problem):
        return None
    producer = graph.producer(update.inputs[0].storage, update)
    product, form = product_and_form(producer.problem if isinstance(producer, KernelOp) else None)
    if not isinstance(producer, KernelOp) or product is None or form.paired:
        return None
    if not_one_row(product) or product.dtype != problem.dtype:
        return None
    first = 0  # column of the queries, the keys, the values
    for t, heads, strides in zip(
        update.inputs[:3],
        (problem.heads, problem.kv_heads, problem.kv_heads),
        (problem.q_strides, problem.k_strides, problem.v_strides),
        strict=True,
    ):
        if (
            t.storage is not producer.outputs[0].storage
            or t.offset != first
            or (heads > 1 and strides[1] != problem.size)
        ):
            return None
        first += heads * problem.size
    if first != product.n:
        return None
    both = FusedProductProblem(product, replace(form, update=problem))
    return graph.fuse(both, [*producer.inputs, *update.inputs[3:]], update.outputs, [producer, update])


def update_into_attention(attention: Op, graph: Graph) -> Changes | None:
    """``attention(update(q, k, v))`` is one dispatch, for one token of each sequence."""
    problem = attention.problem if isinstance(attention, KernelOp) else None
    if (
        not isinstance(attention, KernelOp)
        or not isinstance(problem, AttentionProblem)
        or attention.epilogue is not None
    ):
        return None
    update = graph.producer(attention.inputs[0].storage, attention)
    update_problem = update.problem if isinstance(update, KernelOp) else None
    if (
        not isinstance(update, KernelOp)
        or not isinstance(update_problem, CacheUpdateProblem)
        or not_updating(problem, update_problem)
    ):
        return None
    operands = dict(zip((need.name for need in problem.needs()), attention.inputs, strict=True))
    first_row = dict(zip((need.name for need in update_problem.needs()), update.inputs, strict=True))["first"]
    rotated, *caches = update.outputs
    if operands["q"].offset != rotated.offset or operands["origin"].storage is not first_row.storage:
        return None
    if operands["origin"].offset != first_row.offset:
        return None
    for t, cache in zip((operands["k"], operands["v"]), caches, strict=True):
        if t.storage is not cache.storage or (t.offset, t.strides) != (cache.offset, cache.strides):
            return None
        if graph.users(cache.storage) != [attention]:  # a user between both would see the past alone
            return None
    fused = UpdatingAttentionProblem(replace(problem, q_strides=update_problem.q_strides), update_problem)
    inputs = [*update.inputs, *(t for name, t in operands.items() if name in ("bias", "sink"))]
    return graph.fuse(fused, inputs, [*attention.outputs, *caches], [update, attention])
