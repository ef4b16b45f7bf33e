"""The rotation of a token's queries and keys, and the caches' new rows, in the product that makes them
(`vkep.kernels.fused_product`) or in the attention that reads them (`vkep.kernels.attention_stream`): a dispatch less in each
layer of a decoder's step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from gpu_shared.capabilities import DeviceCapabilities
from vkep.ir.ops import KernelOp, Op
from vkep.ir.tensor import Tensor
from vkep.kernels.attention_problem import AttentionProblem
from vkep.kernels.attention_stream import UpdatingAttentionProblem, not_updating
from vkep.kernels.cache_update import CacheUpdateProblem
from vkep.kernels.fused_product import FusedProductProblem, not_one_row
from vkep.kernels.matmul_nbits_problem import MatMulNBitsProblem
from vkep.kernels.matmul_problem import MatMulProblem
from vkep.kernels.problem import Problem
from vkep.kernels.product_form import Form, not_turned
from vkep.kernels.select import bind, supports
from vkep.passes.fuse import Uses, sole_producer
from vkep.passes.in_place import follows


def turn_products(
    ops: Sequence[Op], results: Iterable[Tensor], caps: DeviceCapabilities, shared: Mapping[int, int]
) -> list[Op]:
    """The operations without updates of caches whose queries, keys and values are all that a product of one row computes, where
    the device has kernels that do both. ``results`` are the tensors that must exist at the end; ``shared`` as ``pairs`` of
    `vkep.passes.in_place.in_place`."""
    updates = [op for op in ops if isinstance(op, KernelOp) and isinstance(op.problem, CacheUpdateProblem)]
    if not updates:
        return list(ops)
    kept, uses = {t.storage for t in results}, Uses(ops)
    made: dict[int, Op | None] = {}
    for update in updates:
        product = sole_producer(update.inputs[0].storage, update, uses, kept)
        both = _turned(product, update, caps) if isinstance(product, KernelOp) else None
        if both is not None:
            made[id(product)], made[id(update)] = None, both
    turned = [new for old in ops if (new := made.get(id(old), old)) is not None]
    # a product that comes later may read an input's memory that an operation between has written to
    return turned if all(follows(turned, output, source) for output, source in shared.items()) else list(ops)


def join_updates(
    ops: Sequence[Op], results: Iterable[Tensor], caps: DeviceCapabilities, shared: Mapping[int, int]
) -> list[Op]:
    """The operations without updates of caches, by one token of each sequence, that the attention after them can do where the
    device has a kernel for both. ``results`` and ``shared`` as for `turn_products`."""
    kept, uses = {t.storage for t in results}, Uses(ops)
    made: dict[int, Op | None] = {}
    for op in ops:
        update = sole_producer(op.inputs[0].storage, op, uses, kept) if _is(op, AttentionProblem) else None
        if isinstance(op, KernelOp) and isinstance(update, KernelOp) and isinstance(update.problem, CacheUpdateProblem):
            both = _joined(update, op, uses, caps)
            if both is not None:
                made[id(update)], made[id(op)] = None, both
    joined = [new for old in ops if (new := made.get(id(old), old)) is not None]
    # what the update reads may be written to between it and the attention
    return joined if all(follows(joined, output, source) for output, source in shared.items()) else list(ops)


def _is(op: Op, kind: type[Problem]) -> bool:
    return isinstance(op, KernelOp) and isinstance(op.problem, kind)


def _joined(update: KernelOp, op: KernelOp, uses: Uses, caps: DeviceCapabilities) -> KernelOp | None:
    """Both in one; None where the attention reads other keys and values, or no kernel computes both."""
    attention, problem = op.problem, update.problem
    assert isinstance(attention, AttentionProblem) and isinstance(problem, CacheUpdateProblem)
    if op.epilogue is not None or not_updating(attention, problem):
        return None
    given = dict(zip((need.name for need in attention.needs()), op.inputs, strict=True))
    first = dict(zip((need.name for need in problem.needs()), update.inputs, strict=True))["first"]
    turned, *caches = update.outputs
    if given["q"].offset != turned.offset or given["origin"].storage is not first.storage:
        return None
    if given["origin"].offset != first.offset:
        return None
    for t, cache in zip((given["k"], given["v"]), caches, strict=True):
        if t.storage is not cache.storage or (t.offset, t.strides) != (cache.offset, cache.strides):
            return None
        if uses.readers[cache.storage] != [op]:  # a reader between both would see the past alone
            return None
    both = UpdatingAttentionProblem(replace(attention, q_strides=problem.q_strides), problem)
    inputs = [*update.inputs, *(t for name, t in given.items() if name in ("bias", "sink"))]
    outputs = [*op.outputs, *caches]
    if not supports(both.placed(bind(both, inputs, outputs)), caps):
        return None
    labels = list(dict.fromkeys([*update.labels, *op.labels]))
    return KernelOp(both, inputs, outputs, labels, op.node)


def _turned(of: KernelOp, update: KernelOp, caps: DeviceCapabilities) -> KernelOp | None:
    """Both in one; None where the product's columns are not the update's, or no kernel computes both."""
    product: Problem = of.problem
    form = product.form if isinstance(product, FusedProductProblem) else Form()
    product = product.product if isinstance(product, FusedProductProblem) else product
    problem = update.problem
    assert isinstance(problem, CacheUpdateProblem)
    if not isinstance(product, (MatMulNBitsProblem, MatMulProblem)) or form.paired or not_one_row(product):
        return None
    if not_turned(problem) or product.dtype != problem.dtype:
        return None
    first = 0  # column of the queries, the keys, the values
    for t, heads, strides in zip(
        update.inputs[:3],
        (problem.heads, problem.kv_heads, problem.kv_heads),
        (problem.q_strides, problem.k_strides, problem.v_strides),
        strict=True,
    ):
        if t.storage is not of.outputs[0].storage or t.offset != first or (heads > 1 and strides[1] != problem.size):
            return None
        first += heads * problem.size
    if first != product.n:
        return None
    both = FusedProductProblem(product, replace(form, update=problem))
    inputs = [*of.inputs, *update.inputs[3:]]
    if not supports(both.placed(bind(both, inputs, update.outputs)), caps):
        return None
    labels = list(dict.fromkeys([*of.labels, *update.labels]))
    return KernelOp(both, inputs, update.outputs, labels, update.node, of.epilogue, of.epilogue_of)
