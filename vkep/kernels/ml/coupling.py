"""Probabilities of classes from those of their pairs (``shaders/coupled_probabilities.comp``)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vkep.kernels.kernel import Kernel, KernelCall
from vkep.kernels.launch import flat_lanes
from vkep.kernels.problem import Need, Problem
from vkep.kernels.select import Candidate, Emission, implement

COUPLED = Kernel(
    "coupled_probabilities.comp",
    reach=lambda call: {
        "pairs": 4 * call["rows"] * (call["classes"] * (call["classes"] - 1) // 2),
        "q": 4 * call["rows"] * call["classes"] ** 2,
        **dict.fromkeys(("qp", "y"), 4 * call["rows"] * call["classes"]),
    },
)


@dataclass(frozen=True)
class CoupledProblem(Problem):
    """``y`` [rows, classes]: probabilities that agree best with those of the first class of each pair (i, j) of classes,
    ``pairs`` [rows, classes * (classes - 1) / 2], in the order (0, 1), (0, 2), ..., (1, 2), ... All are float32.
    """

    rows: int
    classes: int

    def needs(self) -> tuple[Need, ...]:
        return (Need("pairs", "float32", (self.rows, self.classes * (self.classes - 1) // 2)),)

    def makes(self) -> tuple[Need, ...]:
        return (Need("y", "float32", (self.rows, self.classes)),)

    def reference(self, pairs: np.ndarray) -> np.ndarray:
        n = self.classes
        i, j = np.triu_indices(n, 1)
        q = np.zeros((self.rows, n, n))
        q[:, i, j] = q[:, j, i] = -pairs * (1 - pairs)
        for first, second, p in zip(i, j, pairs.T, strict=True):
            q[:, first, first] += (1 - p) ** 2
            q[:, second, second] += p**2
        y = np.full((self.rows, n), 1.0 / n)
        for row, of in zip(y, q, strict=True):
            for _ in range(100):
                qp = of @ row
                total = row @ qp
                if np.abs(qp - total).max() < 0.005 / n:
                    break
                for at in range(n):
                    step = (total - qp[at]) / of[at, at]
                    row[at] += step
                    total = (total + step * (step * of[at, at] + 2 * qp[at])) / (1 + step) ** 2
                    qp[:] = (qp + step * of[at]) / (1 + step)
                    row /= 1 + step
        return y


def _coupled(problem: CoupledProblem, e: Emission) -> KernelCall:
    rows, classes = problem.rows, problem.classes
    scratch = {
        "q": e.target.scratch("float32", (rows, classes, classes)),
        "qp": e.target.scratch("float32", (rows, classes)),
    }
    return COUPLED.call(
        **flat_lanes(e.caps, rows),
        operands={**e.operands, **scratch},
        params={"rows": rows, "classes": classes},
        flops=20 * rows * classes**3,
    )


implement(CoupledProblem, Candidate("a lane a row", _coupled))
