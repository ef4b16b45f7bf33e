"""Outputs that a run writes to an input's memory: a cache that is bound to the same memory as its past.

The two share memory, so operations that read the input must precede those that write the output. Where an operation can
be computed in place, only the changed elements are written; otherwise the output is computed elsewhere and copied at
the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from vkep.ir import expr as ex
from vkep.ir.ops import KernelOp, Op, Pointwise, reads
from vkep.ir.tensor import Storage, Tensor
from vkep.passes.copies import moved
from vkep.passes.rewrite import Goal, Graph


def in_place(ops: Sequence[Op], goal: Goal) -> list[Op]:
    """The operations for a run whose outputs `Goal.shared` are in the memory of inputs."""
    late: list[int] = []  # outputs that cannot be written to their destination directly
    while True:
        kept = {output: source for output, source in goal.shared.items() if output not in late}
        made = [_over_operands(op, kept) for op in ops]
        for output, source in kept.items():
            made = _without_copy(made, output, source)
        found = Graph(made, replace(goal, shared=kept)).overwritten({op: [op] for op in made})
        if not found:
            break
        late += [storage.port for storage in found if storage.port is not None]
    for output in late:
        made = _copied_at_the_end(made, next(t for t in goal.results if t.storage.port == output))
    return made


def _port(tensor: Tensor) -> int | None:
    return tensor.storage.port


def _over_operands(op: Op, pairs: Mapping[int, int]) -> Op:
    """The operation computed in place, where its problem supports that."""
    if not isinstance(op, KernelOp):
        return op
    problem = op.problem
    needs, makes = problem.operands
    inputs = {need.name: t for need, t in zip(needs, op.inputs, strict=True)}
    wanted = set(pairs.values())  # whether any other view is whole is not asked: it may depend on sizes
    sources = {_port(t): name for name, t in inputs.items() if _port(t) in wanted and t.is_whole}
    over = {
        make.name: sources[pairs[port]]
        for make, t in zip(makes, op.outputs, strict=True)
        if (port := _port(t)) is not None and port in pairs and t.is_whole and pairs[port] in sources
    }
    instead = problem.in_place(over) if over else None
    if instead is None:
        return op
    kept = [inputs[need.name] for need in instead.operands[0]]
    return replace(op, problem=instead, inputs=kept)


def _without_copy(ops: Sequence[Op], output: int, source: int) -> list[Op]:
    """The operations without a copy of the input that others then write to: the data is already in place."""
    writers = [op for op in ops if any(_port(t) == output for t in op.outputs)]
    first = writers[0] if len(writers) > 1 else None
    if not (isinstance(first, Pointwise) and isinstance(first.expr, ex.Leaf) and first.expr.tensor is not None):
        return list(ops)
    read = first.expr.tensor
    same = read.storage.port == source and read.is_whole and first.out.is_whole and read.dtype is first.out.dtype
    return [op for op in ops if op is not first] if same else list(ops)


def _copied_at_the_end(ops: Sequence[Op], result: Tensor) -> list[Op]:
    """The operations with the output computed in a separate buffer, and copied after everything else."""
    storage = result.storage
    place = Tensor(result.dtype, result.shape, Storage(storage.nbytes, label=storage.label), result.strides)
    labels = [op.labels for op in ops if any(t.storage is storage for t in op.outputs)]
    touching = [any(t.storage is storage for t in (*reads(op), *op.outputs)) for op in ops]
    made = [moved(op, storage, place) if touches else op for op, touches in zip(ops, touching, strict=True)]
    return [*made, Pointwise(result, ex.leaf(place), labels[-1] if labels else [])]
