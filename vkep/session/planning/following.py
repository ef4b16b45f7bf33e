"""The signature that follows, where sizes change by the same numbers from run to run: a decoder's, token by token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from vkep import dtypes
from vkep.ir.program import ValueSpec

#: properties of a run's inputs, one by one: see `vkep.session.planning.planned_graph.PlannedGraph.signature`
Signature = tuple[Any, ...]


class Following:
    """Predicts a run's signature from those of the runs before it. What does not change is the same object in all of them: a
    garbage collection comes after so many new objects."""

    def __init__(self) -> None:
        self._last: Signature = ()
        self._predicted: Signature | None = None

    def after(self, signature: Signature) -> tuple[Signature, Mapping[int, Any]] | None:
        """The signature after this one, and the parts in which it differs, by their positions. None unless the signature
        before this one predicted it, and where nothing changes."""
        last, held = self._last, self._predicted == signature
        if len(last) == len(signature):
            signature = tuple([b if b == mark else mark for b, mark in zip(last, signature, strict=True)])
        moved = _moved(last, signature)
        predicted = None if not moved else tuple([moved.get(k, mark) for k, mark in enumerate(signature)])
        self._last, self._predicted = signature, predicted
        return (predicted, moved) if held and predicted is not None else None


def known_of(mark: Any) -> ValueSpec:
    """The known properties of an input from its part of a predicted signature."""
    dtype, shape, *capacity = mark
    return ValueSpec(dtypes.from_numpy(dtype), shape, *capacity)


def _moved(last: Signature, now: Signature) -> dict[int, Any]:
    """The tensors of ``now`` whose shapes differ from the ones before, after another such change; none where anything else
    differs."""
    found: dict[int, Any] = {}
    after: dict[Any, Any] = {}  # the caches of all layers change alike
    for k, (before, mark) in enumerate(zip(last, now, strict=False)):
        if before is not mark:
            change = before, mark
            if change not in after:
                after[change] = _after(before, mark)
            found[k] = after[change]
            if found[k] is None:
                return {}
    return found if len(last) == len(now) else {}


def _after(before: Any, mark: Any) -> Any:
    """The part of a signature that follows two, of tensors that differ in sizes alone; None of others."""
    tensors = all(isinstance(m, tuple) and isinstance(m[0], np.dtype) for m in (before, mark))
    if not tensors or before[0] != mark[0] or len(before[1]) != len(mark[1]) or before[2:] != mark[2:]:
        return None
    shape = tuple([2 * size - old for size, old in zip(mark[1], before[1], strict=True)])
    return (mark[0], shape, *mark[2:]) if min(shape) >= 0 else None
