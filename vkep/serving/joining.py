"""Which requests to a model may share a run: those whose rows are proved independent, or for which the deployment says so.

Independent of Ray.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from vkep.placement.rows import RowProof, independent, prove

if TYPE_CHECKING:
    from gpu_shared.capabilities import DeviceCapabilities
    from vkep.graph.model import Model

logger = logging.getLogger("vkep.serving")

#: proofs for sizes that others do not cover: sizes are a client's choice, and each proof takes as long as placing the model
_PROOFS = 16
#: how many shapes are remembered
_SHAPES = 4096

Shapes = Mapping[str, Sequence[int]]


class Joining:
    """Whether requests with inputs of one shape may share a run of up to ``most`` rows. Thread-safe."""

    def __init__(self, name: str, model: Model, caps: DeviceCapabilities, most: int, asserted: bool) -> None:
        """``asserted``: rows are independent whatever is proved."""
        self._name, self._model, self._caps, self._most, self.asserted = name, model, caps, most, asserted
        self._known: dict[Hashable, bool] = {}
        self._lock = threading.Lock()
        self._proofs: list[RowProof] = []
        self.off = most < 2
        if not self.off and not asserted:
            self._proofs.append(independent(model, caps))
            why = self._proofs[0].reason
            if why:
                logger.warning(
                    "%s: its requests run one at a time, since its rows are not proved independent: %s", name, why
                )

    def known(self, key: Hashable) -> bool | None:
        """The answer for shapes that were decided before; None: `decide` does it, which takes time."""
        return False if self.off else True if self.asserted else self._known.get(key)

    def decide(self, key: Hashable, shapes: Shapes) -> bool:
        """The answer for shapes, whose first sizes do not count."""
        if self.off:
            return False
        with self._lock:
            found = any(proof.covers(self._model, shapes, self._most) for proof in self._proofs)
            if not found and len(self._proofs) < _PROOFS:
                self._proofs.append(prove(self._model, self._caps, shapes))
                found = self._proofs[-1].covers(self._model, shapes, self._most)
            if len(self._known) >= _SHAPES:
                del self._known[next(iter(self._known))]
            self._known[key] = found
            return found

    def stop(self, why: str) -> None:
        """Join no further requests: joined rows were wrong."""
        self.off = True
        logger.error("%s: its requests run one at a time from now on: %s", self._name, why)


class Argument(Protocol):
    """An input or output as `vkep.NodeArg` describes it."""

    @property
    def name(self) -> str:
        """The name of the model's input."""

    @property
    def shape(self) -> Sequence[int | str | None] | None:
        """Its sizes; names and None are open."""


def rows_axis(inputs: Sequence[Argument], outputs: Sequence[Argument]) -> int | str | None:
    """The model's first axis if it is an axis of rows: the symbol, or the size, that all inputs and outputs have there.

    None: rows cannot be batched. A first axis without a name (or with different names) does not count as rows.
    """
    firsts = {argument.shape[0] if argument.shape else None for argument in (*inputs, *outputs)}
    return firsts.pop() if len(firsts) == 1 else None
