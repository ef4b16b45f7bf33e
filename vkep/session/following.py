"""The signature that follows, where sizes change by the same numbers from run to run: a decoder's, token by token."""

from __future__ import annotations

from typing import Any

import numpy as np

from vkep import dtypes
from vkep.ir.program import ValueSpec

#: properties of a run's inputs, one by one: see `vkep.session.planned_graph.PlannedGraph.signature`
Signature = tuple[Any, ...]


class Following:
    """Foretells a run's signature from those of the runs before it."""

    def __init__(self) -> None:
        self._last: Signature = ()
        self._foretold: Signature | None = None

    def after(self, signature: Signature) -> Signature | None:
        """The signature after this one. None unless the one before foretold this one, and where nothing changes."""
        last, foretold = self._last, self._foretold
        self._last, self._foretold = signature, _next(last, signature)
        return self._foretold if foretold is not None and foretold == signature else None


def known_of(mark: Any) -> ValueSpec:
    """The known properties of an input from its part of a foretold signature."""
    dtype, shape, *room = mark
    return ValueSpec(dtypes.from_numpy(dtype), shape, *room)


def _next(last: Signature, now: Signature) -> Signature | None:
    """Each shape of ``now`` after it changes once more as it did since ``last``; None where none does, or anything else
    changes."""
    if len(last) != len(now):
        return None
    made = list(now)
    for k, (before, mark) in enumerate(zip(last, now, strict=True)):
        if before != mark:
            if not _alike(before, mark):
                return None
            shape = tuple([2 * size - old for size, old in zip(mark[1], before[1], strict=True)])
            if min(shape) < 0:
                return None
            made[k] = (mark[0], shape, *mark[2:])
    return tuple(made) if made != list(now) else None


def _alike(before: Any, mark: Any) -> bool:
    """Whether two parts of signatures are those of tensors that differ in sizes alone."""
    tensors = all(isinstance(m, tuple) and isinstance(m[0], np.dtype) for m in (before, mark))
    return tensors and before[0] == mark[0] and len(before[1]) == len(mark[1]) and before[2:] == mark[2:]
