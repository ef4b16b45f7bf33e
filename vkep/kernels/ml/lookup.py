"""The positions of elements among sorted keys (``shaders/lookup.comp``)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vkep.kernels.kernel import Kernel, KernelCall
from vkep.kernels.launch import element_defines, element_type, flat_lanes
from vkep.kernels.problem import Need, Problem
from vkep.kernels.select import Candidate, Emission, implement


def _defines(dtype: str) -> dict[str, str]:
    return element_defines(dtype) | ({"FLOATING": "1"} if element_type(dtype).kind == "float" else {})


LOOKUP = Kernel(
    "lookup.comp",
    variants=tuple(map(_defines, ("float32", "int64"))),
    reach=lambda call: {
        "x": call["total"] * call.size_of("IN_T"),
        "keys": call["count"] * call.size_of("IN_T"),
        "y": 4 * call["total"],
    },
)


@dataclass(frozen=True)
class LookupProblem(Problem):
    """``y`` [total], int32: the index of each element of ``x`` [total] in ``keys`` [count], which ascend (NaN last);
    ``count`` where it is not among them."""

    total: int
    count: int
    dtype: str

    def needs(self) -> tuple[Need, ...]:
        return Need("x", self.dtype, (self.total,), flat=True), Need("keys", self.dtype, (self.count,))

    def makes(self) -> tuple[Need, ...]:
        return (Need("y", "int32", (self.total,), flat=True),)

    def reference(self, x: np.ndarray, keys: np.ndarray) -> np.ndarray:
        at = np.searchsorted(keys, x)  # NaN counts as the greatest
        found = keys[np.minimum(at, self.count - 1)]
        return np.where((at < self.count) & ((found == x) | ((found != found) & (x != x))), at, self.count)


def _lookup(problem: LookupProblem, e: Emission) -> KernelCall:
    return LOOKUP.call(
        **flat_lanes(e.caps, problem.total),
        operands=e.operands,
        params={"total": problem.total, "count": problem.count},
        defines=_defines(problem.dtype),
    )


implement(LookupProblem, Candidate("lookup", _lookup))
