"""Copies that are not needed: what computes their source stores at their destination."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from vkep.ir import expr as ex
from vkep.ir.ops import KernelOp, Op, Pointwise
from vkep.ir.tensor import Storage, Tensor, alignment, memory_order
from vkep.passes.fuse import stored_in
from vkep.passes.rewrite import Changes, Graph
from vkep.sizes import matches


def elide_copy(copy: Op, graph: Graph) -> Changes | None:
    """The producers of what a plain copy reads (parts of a Concat, a plan's outputs, heads that become one row) store at the
    copy's destination, and other users read there."""
    source = copy.expr.tensor if isinstance(copy, Pointwise) and isinstance(copy.expr, ex.Leaf) else None
    if not isinstance(copy, Pointwise) or source is None or source.dtype is not copy.out.dtype:
        return None
    storage = source.storage
    order = memory_order(source)  # the axes may be in another one
    if not (source.is_whole or source.transpose(order).is_whole) or not matches(source.size, copy.out.size):
        return None
    if storage in graph.results or storage.is_constant or storage.port is not None:
        return None
    producers, users = graph.producers(storage), [op for op in graph.users(storage) if op is not copy]
    if (
        len(producers) != 1 or len(producers[0].outputs) != 1
    ):  # all move and keep their offsets, so the place must be dense
        if not (source.is_whole and copy.out.is_contiguous and _can_load(users, storage, copy.out)):
            return None
        return {copy: [], **{op: [moved(op, storage, copy.out)] for op in (*producers, *users)}}
    [producer] = producers
    result = producer.outputs[0]
    place = (copy.out if source.is_whole else copy.out.transpose(order)).reshape(result.shape)
    if place is None or not result.is_whole:
        return None
    if not source.is_whole and not (isinstance(producer, KernelOp) and matches(place.strides[-1], 1)):
        return None  # stores along a row stay side by side
    stored = stored_in(producer, place, graph.caps, labels=[*producer.labels, *copy.labels])
    if stored is None or (users and not (place.is_contiguous and _can_load(users, storage, place))):
        return None
    return {copy: [], producer: [stored], **{op: [moved(op, storage, place)] for op in users}}


def _can_load(users: Iterable[Op], storage: Storage, place: Tensor) -> bool:
    """Whether the users of a storage accept the alignment of ``place`` instead."""
    at = alignment(place)
    return all(
        op.problem.can_load(need.name, at)
        for op in users
        if isinstance(op, KernelOp)
        for need, t in zip(op.problem.operands[0], op.inputs, strict=True)
        if t.storage is storage
    )


def moved(op: Op, storage: Storage, place: Tensor) -> Op:
    """An operation that reads and writes at ``place``, which is dense, instead of in a storage."""

    def there(t: Tensor) -> Tensor:
        return t if t.storage is not storage else replace(t, storage=place.storage, offset=t.offset + place.offset)

    def leaf(node: ex.Leaf) -> ex.Expr | None:
        return ex.leaf(there(node.tensor)) if node.tensor is not None and node.tensor.storage is storage else None

    if isinstance(op, Pointwise):
        return replace(op, out=there(op.out), expr=ex.substitute(op.expr, leaf))
    epilogue = None if op.epilogue is None else ex.substitute(op.epilogue, leaf)
    inputs, outputs = map(there, op.inputs), map(there, op.outputs)
    return replace(op, inputs=list(inputs), outputs=list(outputs), epilogue=epilogue)
