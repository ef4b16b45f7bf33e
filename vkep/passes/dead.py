"""Operations that contribute to no result."""

from __future__ import annotations

from collections.abc import Sequence

from vkep.ir.ops import Op, Pointwise
from vkep.ir.tensor import Storage
from vkep.passes.rewrite import Goal, read_by, written_by


def remove_dead(ops: Sequence[Op], goal: Goal) -> list[Op]:
    """The operations that contribute to a result, and the checks of their nodes."""
    results = {t.storage for t in goal.results}
    live = _contributing(ops, results)
    checks = [op for op in ops if isinstance(op, Pointwise) and op.is_check]
    if not checks:
        return live
    nodes = {label for op in live for label in op.labels}
    return _contributing(ops, results | {check.out.storage for check in checks if not nodes.isdisjoint(check.labels)})


def _contributing(ops: Sequence[Op], results: set[Storage]) -> list[Op]:
    needed = set(results)
    live: list[Op] = []
    for op in reversed(ops):
        if not needed.isdisjoint(written_by(op)):
            live.append(op)
            needed |= read_by(op)
    return live[::-1]
