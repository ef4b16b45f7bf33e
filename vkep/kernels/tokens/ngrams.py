"""Counts of n-grams of integers in rows (``shaders/ngrams.comp``)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vkep.kernels.fastdiv import magic_params
from vkep.kernels.kernel import Kernel, KernelCall
from vkep.kernels.launch import ceil_div, element_type, flat_lanes
from vkep.kernels.problem import Need, Problem
from vkep.kernels.select import Candidate, Emission, implement

NGRAMS = Kernel(
    "ngrams.comp",
    variants=({"IN_T": "int"}, {"IN_T": "int64_t"}),
    reach=lambda call: {
        "x": ceil_div(call["total"], call["count"]) * call["steps"] * call.size_of("IN_T"),
        "pool": call["items"] * call.size_of("IN_T"),
        "grams": 8 * call["count"],
        "y": 4 * call["total"],
    },
)


@dataclass(frozen=True)
class NgramProblem(Problem):
    """``y`` [rows, count] (float32): the number of times that each n-gram occurs in each row of ``x`` [rows, steps].

    ``grams`` [count, 2] (uint32) has the start of each in ``pool`` [items], and its length. The items of an occurrence
    are equally spaced, 1 to ``apart`` steps apart.
    """

    rows: int
    steps: int
    items: int
    count: int
    apart: int
    dtype: str

    def needs(self) -> tuple[Need, ...]:
        return (
            Need("x", self.dtype, (self.rows, self.steps)),
            Need("pool", self.dtype, (self.items,)),
            Need("grams", "uint32", (self.count, 2)),
        )

    def makes(self) -> tuple[Need, ...]:
        return (Need("y", "float32", (self.rows, self.count)),)

    def reference(self, x: np.ndarray, pool: np.ndarray, grams: np.ndarray) -> np.ndarray:
        y = np.zeros((self.rows, self.count))
        for gram, (start, length) in enumerate(grams.astype(np.int64)):
            items = pool[start : start + length]
            for apart in range(1, (1 if len(items) == 1 else self.apart) + 1 if len(items) else 0):
                starts = self.steps - (len(items) - 1) * apart
                same = (
                    [x[:, k * apart : k * apart + starts] == item for k, item in enumerate(items)] if starts > 0 else []
                )
                y[:, gram] += np.logical_and.reduce(same).sum(axis=1) if same else 0
        return y


def _count(problem: NgramProblem, e: Emission) -> KernelCall:
    total = problem.rows * problem.count
    sizes = {"total": total, "steps": problem.steps, "items": problem.items, "apart": problem.apart}
    return NGRAMS.call(
        **flat_lanes(e.caps, total),
        operands=e.operands,
        params=sizes | magic_params("count", problem.count),
        defines={"IN_T": element_type(problem.dtype).glsl},
    )


implement(NgramProblem, Candidate("a lane a row and gram", _count))
